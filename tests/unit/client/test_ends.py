"""How clients of every class end: closed, forgotten, over and over."""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from kbroker.client import (
    AdminClient,
    AsyncAdminClient,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    SimpleConsumer,
)
from kbroker.testing import Broker


class Client(Protocol):
    def close(self) -> None: ...


SECONDS = 60.0
ROUNDS = 1000
WARM = 100  #: rounds after which what is made once has been made


def use_admin(port: int) -> AdminClient:
    admin = AdminClient(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    assert admin.list_topics() is not None
    return admin


def use_consumer(port: int) -> Consumer:
    consumer = Consumer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    consumer.assign({("ends", 0): 0})  # type: ignore[dict-item]
    assert len(consumer.poll(SECONDS, 1)) == 1
    return consumer


def use_producer(port: int) -> Producer:
    producer = Producer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    producer.send("ends", b"again")
    producer.flush(SECONDS)
    return producer


def use_simple_consumer(port: int) -> SimpleConsumer:
    consumer = SimpleConsumer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends")
    assert len(consumer.fetch("ends", 0, 0)) > 0
    return consumer


class Loop:
    """A client of asyncio in an event loop of its own."""

    def __init__(self, client: AsyncAdminClient | AsyncConsumer | AsyncProducer, use: Callable[[Any], Any]):
        self.runner = asyncio.Runner()
        self.client = client
        self.runner.run(use(client))

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()

    def __del__(self) -> None:
        self.runner.close()


def use_async_admin(port: int) -> Loop:
    async def use(admin: AsyncAdminClient) -> None:
        assert await admin.list_topics() is not None

    return Loop(AsyncAdminClient(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends"), use)


def use_async_consumer(port: int) -> Loop:
    async def use(consumer: AsyncConsumer) -> None:
        await consumer.assign({("ends", 0): 0})  # type: ignore[dict-item]
        assert len(await consumer.poll(SECONDS, 1)) == 1

    return Loop(AsyncConsumer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends"), use)


def use_async_producer(port: int) -> Loop:
    async def use(producer: AsyncProducer) -> None:
        await producer.send_and_wait("ends", b"again")

    return Loop(AsyncProducer(bootstrap_servers=f"127.0.0.1:{port}", client_id="ends"), use)


ASYNC = [use_async_admin, use_async_consumer, use_async_producer]
USES: list[Callable[[int], Client]] = [use_admin, use_consumer, use_producer, use_simple_consumer, *ASYNC]


def threads_left() -> list[str]:
    """Return the names of clients' threads that are left once those that are ending have had their time."""
    ending = [each for each in threading.enumerate() if each.name == "kbroker-client-ends"]
    for each in ending:
        each.join(SECONDS)
    return [each.name for each in ending if each.is_alive()]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a broker whose descriptors are not of this process."""
    with Broker() as broker:
        broker.create_topic("ends")
        use_producer(broker.port).close()
        yield broker.port


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_thousand_rounds_leave_nothing_behind(
    port: int, descriptors: Callable[[], int], use: Callable[[int], Client]
) -> None:
    for _ in range(WARM):
        use(port).close()
    gc.collect()
    before, peak = descriptors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(ROUNDS - WARM):
        use(port).close()
    gc.collect()
    assert threads_left() == []
    assert descriptors() <= before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 30 << 10


@pytest.mark.parametrize("use", [use_admin, use_consumer, use_simple_consumer, use_async_admin, use_async_consumer])
def test_a_forgotten_client_ends_and_says_so(
    port: int, descriptors: Callable[[], int], use: Callable[[int], Client]
) -> None:
    use(port).close()
    gc.collect()
    before = descriptors()
    with pytest.warns(ResourceWarning, match="was not closed: kbroker-client-ends"):
        use(port)
        gc.collect()
    assert threads_left() == []
    gc.collect()  # what the thread still held
    assert descriptors() <= before


@pytest.mark.parametrize("use", USES)
def test_a_closed_client_is_collected_in_silence(port: int, use: Callable[[int], Client]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(port).close()
        gc.collect()
    assert threads_left() == []


PREFORK = """
import os, signal, sys
from kbroker.client import Consumer, ForkedClient, Producer

def work(number):
    refused = 0
    for call in (lambda: before.send("ends", b"x"), lambda: before.send_nowait("ends", b"x"),
                 lambda: before.send_many("ends", [b"x"])):
        try:
            call()
        except ForkedClient:
            refused += 1
    if refused == 3:
        with Producer(**options) as own, Consumer(**options) as reading:
            own.send("ends", b"worker %d" % number).result(30)
            reading.assign({("ends", 0): 0})
            assert len(reading.poll(30, 1)) == 1
        return 7
    return 1

options = {"bootstrap_servers": "127.0.0.1:" + sys.argv[1]}
before = Producer(**options)
before.send("ends", b"master").result(30)
workers = []
for number in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        os._exit(work(number))
    workers.append(child)
    before.send("ends", b"master").result(30)  # the master goes on between and behind
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in workers] == [7, 7, 7]

import multiprocessing
for method in ("fork", "spawn"):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=print if method != "fork" else lambda: queue.put(work(9)))
    child.start()
    if method == "fork":
        assert queue.get() == 7
    child.join(50)
    assert child.exitcode == 0
before.send("ends", b"master").result(30)
before.close()
print("done")
"""


def test_workers_that_are_forked_make_clients_of_their_own(port: int, tmp_path: Path) -> None:
    """Workers are forked as gunicorn, Celery and multiprocessing do it."""
    script = tmp_path / "prefork.py"
    script.write_text(PREFORK.replace("options = {", "if __name__ != '__main__': sys.exit()\noptions = {"))
    done = subprocess.run([sys.executable, script, str(port)], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.strip().endswith("done"), done.stderr


INTERRUPTED = """
import os, signal, sys, threading
from kbroker.client import Consumer, Producer

options = {"bootstrap_servers": "127.0.0.1:" + sys.argv[1], "client_id": "interrupted"}
with Producer(**options, linger_ms=60_000) as producer, Consumer(**options, group_id="g") as consumer:
    consumer.subscribe("ends")
    producer.await_topic("ends")
    for wait in (lambda: consumer.poll(600), producer.flush, lambda: list(consumer)):
        bell = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        if wait == producer.flush:
            os.kill(broker := int(sys.argv[2]), signal.SIGSTOP)
            while open(f"/proc/{broker}/stat").read().rpartition(")")[2].split()[0] != "T":
                pass
            producer.send("ends", b"while nobody answers")
        bell.start()
        try:
            wait()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            bell.cancel()
            if wait == producer.flush:
                os.kill(broker, signal.SIGCONT)
    producer.flush(30)
    consumer.seek_to_beginning()
    assert len(consumer.poll(30)) > 0
print("done")
"""


def test_ctrl_c_ends_a_poll_a_flush_and_a_loop_and_all_goes_on() -> None:
    with Broker() as broker:
        broker.create_topic("ends")
        command = [sys.executable, "-c", INTERRUPTED, str(broker.port), str(broker.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["interrupted"] * 3 + ["done"], done.stderr


def test_an_exit_flushes_for_a_bounded_time_when_nobody_answers() -> None:
    script = """
import sys
from kbroker.client import Producer
producer = Producer(bootstrap_servers="127.0.0.1:" + sys.argv[1], linger_ms=60_000)
producer.await_topic("ends")
producer.send_nowait("ends", b"x")
import os, signal
os.kill(int(sys.argv[2]), signal.SIGSTOP)
"""
    with Broker() as broker:
        broker.create_topic("ends")
        command = [sys.executable, "-c", script, str(broker.port), str(broker.pid)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert time.monotonic() - began < 60  # 10 s, and a machine that is busy
        broker.resume()
