"""The thread that reads cold data, by itself."""

from __future__ import annotations

import threading

from kbroker._core.server.cold_reader import ColdReader


def test_it_ends_when_it_is_stopped_however_many_threads_run_it() -> None:
    reader = ColdReader()
    threads = [threading.Thread(target=reader.run) for _ in range(3)]
    for thread in threads:
        thread.start()
    reader.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    reader.run()  # returns at once
    assert (reader.regions, reader.bytes_read) == (0, 0)
