"""AsyncConsumer against kbroker, in this process."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kbroker.client import (
    AsyncConsumer,
    BrokerError,
    ClientClosed,
    Producer,
    RebalanceListener,
    TopicPartition,
    UsageError,
)
from kbroker.errors import ErrorCode
from tests.kit.brokers.whole import WholeBroker

Run = Callable[[Coroutine[Any, Any, None]], None]
numbers = itertools.count()
SECONDS = 20.0


@pytest.fixture
def topic(broker: WholeBroker) -> str:
    """Two partitions, no records."""
    name = f"awaited-{next(numbers)}"
    broker.create_topic(name, 2)
    return name


def append(broker: WholeBroker, topic: str, partition: int, values: list[bytes]) -> None:
    with Producer(bootstrap_servers=f"127.0.0.1:{broker.port}") as producer:
        producer.send_many(topic, values, partitions=partition)


def consumer_of(broker: WholeBroker, **options: Any) -> AsyncConsumer:
    quick = {"retry_backoff_ms": 1, "fetch_max_wait_ms": 50, "auto_offset_reset": "earliest"}
    return AsyncConsumer(bootstrap_servers=f"127.0.0.1:{broker.port}", **(quick | options))


async def take(consumer: AsyncConsumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in await consumer.poll(SECONDS, count - len(found))]
    return found


def test_what_comes_is_iterated_while_other_tasks_run(run: Run, broker: WholeBroker, topic: str) -> None:
    values = [b"%d" % i for i in range(500)]

    async def main() -> None:
        async with consumer_of(broker, max_poll_records=10) as consumer:
            await consumer.assign([(topic, 0)])
            turns = 0

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await one_turn()

            counting = asyncio.ensure_future(count_turns())
            thread = threading.Thread(target=append, args=[broker, topic, 0, values])
            thread.start()
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 500:
                    break
            counting.cancel()
            thread.join()
            assert found == values
            assert turns >= 50
            assert consumer.position(topic, 0) == 500
            assert await consumer.end_offsets([(topic, 0)]) == {TopicPartition(topic, 0): 500}

    run(main())


async def one_turn() -> None:
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned


def test_a_poll_waits_for_what_comes_and_no_longer_than_told(run: Run, broker: WholeBroker, topic: str) -> None:
    async def main() -> None:
        async with consumer_of(broker) as consumer:
            await consumer.assign_topics(topic)
            assert len(await consumer.poll(0.02)) == 0
            assert len(await consumer.poll(0)) == 0
            polling = asyncio.ensure_future(consumer.poll(SECONDS))
            await one_turn()
            with pytest.raises(UsageError, match="another task polls"):
                await consumer.poll(0)
            await asyncio.to_thread(append, broker, topic, 1, [b"came"])
            assert [record.value for record in await polling] == [b"came"]
            await consumer.seek_to_beginning()
            assert await take(consumer, 1) == [b"came"]

    run(main())


def test_a_cancelled_poll_loses_nothing(run: Run, broker: WholeBroker, topic: str) -> None:
    values = [b"%d" % i for i in range(300)]
    append(broker, topic, 0, values)

    async def main() -> None:
        async with consumer_of(broker) as consumer:
            await consumer.assign([(topic, 0)])
            found: list[bytes | None] = []
            for number in itertools.count():
                polling = asyncio.ensure_future(consumer.poll(SECONDS, 7))
                for _ in range(number % 4):
                    await one_turn()
                polling.cancel()
                try:
                    found += [record.value for record in await polling]
                except asyncio.CancelledError:
                    await one_turn()
                if len(found) == len(values):
                    break
            assert found == values

    run(main())


def test_what_a_broker_refuses_is_raised(run: Run, broker: WholeBroker, topic: str) -> None:
    async def main() -> None:
        async with consumer_of(broker, auto_offset_reset="none") as consumer:
            await consumer.assign({TopicPartition(topic, 0): 99})
            with pytest.raises(BrokerError) as refused:
                await consumer.poll(SECONDS)
            assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(ClientClosed):
            await consumer.poll(0)

    run(main())


def test_closing_ends_a_poll_and_an_iteration(run: Run, broker: WholeBroker, topic: str) -> None:
    async def iterate(consumer: AsyncConsumer) -> None:
        async for _ in consumer:
            pass

    async def main() -> None:
        for wait in (lambda consumer: consumer.poll(SECONDS), iterate):
            consumer = consumer_of(broker)
            await consumer.assign([(topic, 0)])
            waiting = asyncio.ensure_future(wait(consumer))
            await one_turn()
            await one_turn()
            await consumer.close()
            await waiting
            await consumer.close()

    run(main())


class Listener(RebalanceListener):
    """With coroutines, which use the consumer."""

    def __init__(self, consumer: AsyncConsumer):
        self.consumer = consumer
        self.said: list[tuple[str, list[TopicPartition]]] = []

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        await self.consumer.committed(partitions)
        self.said.append(("assigned", partitions))

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        await self.consumer.commit()
        self.said.append(("revoked", partitions))


def test_who_leaves_does_not_hear_why_it_was_not_let_in(run: Run, broker: WholeBroker, topic: str) -> None:
    async def main() -> None:
        group = f"awaiting-{topic}"
        async with consumer_of(broker, group_id=group, partition_assignment_strategy="range") as first:
            await first.subscribe(topic)
            while not first.assignment():
                await first.poll(0.01)
            async with consumer_of(broker, group_id=group, partition_assignment_strategy="sticky") as refused:
                await refused.subscribe(topic)
                while not refused._group.steps.are_waiting:  # type: ignore[union-attr]
                    await first.poll(0.01)

    run(main())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_listeners_that_are_coroutines(run: Run, broker: WholeBroker, topic: str, protocol: str) -> None:
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for partition in (0, 1):
        append(broker, topic, partition, [b"%d" % partition] * 5)

    async def main() -> None:
        group = f"awaiting-{topic}"
        async with consumer_of(broker, group_id=group, group_protocol=protocol, enable_auto_commit=False) as consumer:
            listener = Listener(consumer)
            await consumer.subscribe([topic], listener)
            assert sorted(await take(consumer, 10)) == [b"0"] * 5 + [b"1"] * 5
            assert listener.said == [("assigned", both)]
            await consumer.unsubscribe()
            assert listener.said[1:] == [("revoked", both)]
            assert consumer.assignment() == []
        async with consumer_of(broker, group_id=group, group_protocol=protocol) as consumer:
            found = await consumer.committed(both)
            assert [each.offset if each else None for each in found.values()] == [5, 5]
            await consumer.subscribe(topic)
            append(broker, topic, 0, [b"new"])
            assert await take(consumer, 1) == [b"new"]
        async with consumer_of(broker, group_id=group, group_protocol=protocol) as consumer:
            found = await consumer.committed(both)
            assert [each.offset if each else None for each in found.values()] == [6, 5]

    run(main())
