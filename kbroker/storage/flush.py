"""Flushes logs: the flusher threads of a log directory, and the check for logs whose flush is due by time.

The flusher threads fsync the partitions that acks wait for. The work itself is compiled (`partition_flush`): one
fdatasync serves every ack that waits for that partition, different partitions are synced in parallel, and a failed
fdatasync takes the directory offline.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kbroker._core.log.directory import LogDirectory
from kbroker.storage.log_context import TimedLog


class Flushers:
    """The flusher threads of one log directory."""

    def __init__(self, directory: LogDirectory, count: int):
        self._directory = directory
        self._threads = [
            threading.Thread(target=directory.run_flusher, name=f"flusher-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. Every queued partition is flushed before this returns."""
        self._directory.stop_flushers()
        for thread in self._threads:
            if thread.ident is not None:  # a start that failed started none
                thread.join()
        # Flush what was queued after the threads had ended.
        self._directory.run_flusher()


def request_due_flushes(logs: Iterable[TimedLog]) -> int:
    """Ask for a flush of each log with unflushed records older than its flush.ms. Return how many logs that are."""
    count = 0
    for log in logs:
        if log.state.unflushed_ms >= log.options.flush_ms:
            log.state.request_flush()
            count += 1
    return count
