"""With a lock and the GIL nothing is made that the collector may run for; see docs/THREADS.md."""

import subprocess
import sys
import textwrap

import pytest

SECONDS = 60

#: The collector runs at each allocation and gives the GIL away, to threads that wait for the same locks.
FREQUENT = """
    import gc, select, threading
    gc.callbacks.append(lambda phase, _: select.select([], [], [], 0))
    gc.set_threshold(1)

    def beside(*calls):
        def go_on(call):
            while not ended.is_set():
                call()
        ended = threading.Event()
        running = [threading.Thread(target=go_on, args=[call], daemon=True) for call in calls]
        for thread in running:
            thread.start()
        return ended
"""

PRODUCER = """
    from kbroker.client import Producer
    from tests.kit.brokers.produce import ProduceBroker

    with ProduceBroker(faults=("refuse", "drop"), probability=0.3) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Producer(bootstrap_servers=address, retry_backoff_ms=1, reconnect_backoff_ms=1) as producer:
            ended = beside(lambda: producer.accumulator.is_flushed(0))
            for i in range(30):
                producer.send_nowait("t", b"%d" % i)
                producer.flush()
            ended.set()
"""

CONSUMER = """
    from kbroker._core.client.consumer.fetch import FetchEngine

    engine = FetchEngine(None, max_wait_ms=0)
    engine.assign("t", 0, 5)
    found = []
    ended = beside(lambda: engine.epochs("t", 0))
    for _ in range(1000):
        found.append(engine.epochs("t", 0))
    ended.set()
    assert set(found) == {(5, -1, 5, -1)}
"""


@pytest.mark.parametrize("program", [PRODUCER, CONSUMER])
def test_the_collector_may_run_at_any_time(program: str) -> None:
    code = textwrap.dedent(FREQUENT) + textwrap.dedent(program)
    subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], timeout=SECONDS, check=True)
