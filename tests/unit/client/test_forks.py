"""A child process can do nothing with its parent's clients, and every call says so instead of waiting for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kbroker.client import AsyncConsumer, AsyncProducer, Consumer, Deliveries, Delivery, Producer
from kbroker.testing import Broker

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

SECONDS = 60.0
CHILD_S = 30  #: then it is killed by SIGALRM


def in_child(call: Callable[[], object]) -> str:
    """What it returns or raises in a child process; "" when it does not come back."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)
        try:
            told = repr(call())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, told.encode()[:4096])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told_by_child:
        told = told_by_child.read()
    os.waitpid(child, 0)
    return told


def awaited(awaitable: Callable[[], Awaitable[Any]]) -> Any:
    async def wait() -> Any:
        return await awaitable()

    return asyncio.run(wait())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        for topic in ("t", "read"):
            started.create_topic(topic)
        yield started


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    """That sends nothing until it is flushed."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, client_id="forked", linger_ms=600_000) as made:
        yield made


WAITS: dict[str, Callable[[Delivery | Deliveries], object]] = {
    "result": lambda sent: sent.result(),
    "result with a timeout": lambda sent: sent.result(0.1),
    "exception": lambda sent: sent.exception(),
    "await": lambda sent: awaited(lambda: sent),
    "callback": lambda sent: sent.add_done_callback(print),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_a_child_cannot_wait_for_what_its_parent_sends(
    producer: Producer, wait: Callable[[Delivery | Deliveries], object]
) -> None:
    one, many = producer.send("t", b"one"), producer.send_many("t", [b"a", b"b"])
    for sent in (one, many):
        told = in_child(lambda sent=sent: wait(sent))  # type: ignore[misc]
        assert told.startswith(f"ForkedClient: this record was sent by process {os.getpid()}, before a fork")
    producer.flush(SECONDS)
    assert one.result(0) is one
    assert many.result(0) == 2


def test_a_child_knows_what_its_parent_was_told(producer: Producer) -> None:
    sent = producer.send("t", b"one")
    producer.flush(SECONDS)
    assert in_child(lambda: sent.result().offset) == str(sent.offset)
    assert in_child(lambda: awaited(lambda: sent).offset) == str(sent.offset)


def test_a_child_waits_for_what_it_sends_itself(broker: Broker, producer: Producer) -> None:
    producer.send("t", b"of the parent")

    def send() -> bool:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as own:
            return own.send("t", b"of the child").result(SECONDS).done()

    assert in_child(send) == "True"


def test_an_asyncio_producer_says_so_in_a_child(broker: Broker) -> None:
    async def send() -> tuple[AsyncProducer, Delivery, asyncio.Future[Delivery]]:
        made = AsyncProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=600_000)
        return made, await made.send("t", b"one"), asyncio.ensure_future(made.send_and_wait("t", b"two"))

    async def check() -> None:
        made, sent, waiting = await send()
        await asyncio.sleep(0)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: sent,
            made.flush,
            lambda: made.send("t", b"x"),
            lambda: made.send_and_wait("t", b"x"),
            lambda: made.send_many("t", [b"x"]),
        ]
        for call in calls:
            assert in_child(lambda call=call: awaited(call)).startswith("ForkedClient: ")  # type: ignore[misc]
        assert in_child(lambda: awaited(made.close)) == "None"
        await made.flush(SECONDS)
        await sent
        await waiting
        await made.close()

    asyncio.run(check())


def test_a_consumer_says_so_in_a_child(broker: Broker, producer: Producer) -> None:
    producer.send("read", b"one")
    producer.flush(SECONDS)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="forked") as consumer:
        consumer.assign({("read", 0): 0})  # type: ignore[dict-item]
        calls: list[Callable[[], object]] = [
            lambda: consumer.poll(SECONDS),
            lambda: next(iter(consumer)),
            lambda: consumer.position("read", 0),
            lambda: consumer.seek("read", 0, 0),
            lambda: consumer.pause("read", 0),
            lambda: consumer.commit(),
            lambda: consumer.commit_async(),
            lambda: consumer.unsubscribe(),
        ]
        for call in calls:
            assert in_child(call).startswith("ForkedClient: this client was made in process ")
        assert in_child(consumer.close) == "None"
        assert [record.value for record in consumer.poll(SECONDS)] == [b"one"]


def test_an_asyncio_consumer_says_so_in_a_child(broker: Broker, producer: Producer) -> None:
    producer.send("read", b"one")
    producer.flush(SECONDS)

    async def check() -> None:
        async with AsyncConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            await consumer.assign({("read", 0): 0})  # type: ignore[dict-item]
            calls: list[Callable[[], Awaitable[Any]]] = [lambda: consumer.poll(SECONDS), consumer.unsubscribe]
            for call in calls:
                assert in_child(lambda call=call: awaited(call)).startswith("ForkedClient: ")  # type: ignore[misc]
            assert in_child(lambda: awaited(consumer.close)) == "None"
            assert len(await consumer.poll(SECONDS)) > 0

    asyncio.run(check())
