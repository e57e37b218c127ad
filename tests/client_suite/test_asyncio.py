"""The asyncio clients: producer, transactions, a consumer in a group, and the administrator's client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.client import AsyncAdminClient, AsyncConsumer, AsyncProducer, RebalanceListener
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.features import IDEMPOTENCE, TRANSACTIONS
from tests.client_suite.suite_broker import SECONDS, SuiteBroker


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, SECONDS))


def producer_of(broker: SuiteBroker, **options: Any) -> AsyncProducer:
    served = {"enable_idempotence": broker.has(IDEMPOTENCE)}
    return AsyncProducer(bootstrap_servers=broker.address, **(served | options))


def consumer_of(broker: SuiteBroker, **options: Any) -> AsyncConsumer:
    quick = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "heartbeat_interval_ms": 300}
    return AsyncConsumer(bootstrap_servers=broker.address, **(quick | options))


async def take(consumer: AsyncConsumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [each.value for each in await consumer.poll(1.0, count - len(found))]
    return found


class Noting(RebalanceListener):
    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.assigned |= set(partitions)

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.assigned -= set(partitions)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_what_tasks_send_is_delivered_and_read(broker: SuiteBroker, codec: str) -> None:
    topic = broker.new_topic(2)

    async def send(producer: AsyncProducer, partition: int) -> list[int]:
        sent = [await producer.send(topic, b"%d" % number, b"key", partition=partition) for number in range(100)]
        return [(await each).offset for each in sent]

    async def main() -> None:
        async with producer_of(broker, compression_type=codec) as producer:
            offsets = await asyncio.gather(send(producer, 0), send(producer, 1))
            assert offsets == [list(range(100))] * 2
            many = await producer.send_many(topic, [b"many"] * 100, partitions=0)
            await many
            assert (await producer.send_and_wait(topic, b"last", partition=0)).offset == 200
        async with consumer_of(broker) as consumer:
            await consumer.assign([(topic, 0), (topic, 1)])
            found = [record async for record in first(consumer, 301)]
            for partition, count in ((0, 201), (1, 100)):
                read = [each for each in found if each.partition == partition]
                assert [each.offset for each in read] == list(range(count))
                assert [each.value for each in read[:100]] == [b"%d" % number for number in range(100)]
            assert await consumer.end_offsets([(topic, 0), (topic, 1)]) == {(topic, 0): 201, (topic, 1): 100}

    run(main())


async def first(consumer: AsyncConsumer, count: int) -> Any:
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return


def test_members_share_commit_and_leave(broker: SuiteBroker) -> None:
    topic, group = broker.new_topic(2), broker.unique("awaited")
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}

    async def main() -> None:
        one, two = Noting(), Noting()
        async with producer_of(broker) as producer, consumer_of(broker, group_id=group) as stays:
            await stays.subscribe([topic], one)
            reading = asyncio.create_task(take(stays, 100))
            await producer.send_many(topic, [b"%d" % number for number in range(100)], partitions=[0, 1] * 50)
            assert sorted(await reading, key=lambda each: int(each or b"")) == [b"%d" % n for n in range(100)]
            assert one.assigned == both == set(stays.assignment())
            await stays.commit()
            async with consumer_of(broker, group_id=group) as leaves:
                await leaves.subscribe([topic], two)
                polling = [asyncio.create_task(poll_for_ever(each)) for each in (stays, leaves)]
                while not (len(one.assigned) == len(two.assigned) == 1):
                    await asyncio.sleep(0.02)
                assert one.assigned | two.assigned == both
                polling[1].cancel()
                await asyncio.wait(polling[1:])
            while one.assigned != both:
                await asyncio.sleep(0.02)
            polling[0].cancel()
            await asyncio.wait(polling)
            committed = await stays.committed(both)
            assert {at: each and each.offset for at, each in committed.items()} == dict.fromkeys(both, 50)

    run(main())


async def poll_for_ever(consumer: AsyncConsumer) -> None:
    while True:
        await consumer.poll(1.0)


def test_transactions_are_seen_together_or_not_at_all(broker: SuiteBroker) -> None:
    broker.need(TRANSACTIONS)
    source, target, group = broker.new_topic(), broker.new_topic(2), broker.unique("moved")

    async def main() -> None:
        async with (
            producer_of(broker, transactional_id=broker.unique("id")) as producer,
            consumer_of(broker, group_id=group, enable_auto_commit=False) as moved,
        ):
            await producer.init_transactions()
            async with producer.transaction():
                for number in range(10):
                    await producer.send(source, b"%d" % number)
            await moved.subscribe([source])
            values = await take(moved, 10)
            await producer.begin_transaction()
            await producer.send(target, b"never", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                for number, value in enumerate(values):
                    await producer.send(target, value, partition=number % 2)
                offsets = {at: moved.position(*at) for at in moved.assignment()}
                await producer.send_offsets_to_transaction(offsets, moved.group_metadata())
        async with consumer_of(broker, isolation_level="read_committed", group_id=group) as reader:
            await reader.assign([(target, 0), (target, 1)])
            assert sorted(await take(reader, 10), key=lambda each: int(each or b"")) == values
            assert len(await reader.poll(0.2)) == 0
            committed = await reader.committed([(source, 0)])
            assert [each and each.offset for each in committed.values()] == [11]  # the marker has an offset of its own

    run(main())


def test_transactions_that_are_not_served_are_refused(broker: SuiteBroker) -> None:
    async def main() -> None:
        async with producer_of(broker, transactional_id=broker.unique("id"), enable_idempotence=True) as producer:
            with broker.serving(IDEMPOTENCE):
                await producer.init_transactions()

    run(main())


def test_an_administrator_awaits_what_it_asks(broker: SuiteBroker) -> None:
    name, group = broker.unique("awaited"), broker.unique("group")

    async def main() -> None:
        async with AsyncAdminClient(bootstrap_servers=broker.address) as admin:
            await admin.create_topic(name, 3, 1)
            described, topics, cluster = await asyncio.gather(
                admin.describe_topics([name]), admin.list_topics(), admin.describe_cluster()
            )
            assert len(described[name].partitions) == 3
            assert name in topics
            assert [node.port for node in cluster.brokers] == [broker.port]
            with pytest.raises(BrokerError) as raised:
                await admin.create_topic(name, 3, 1)
            assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
            await admin.alter_offsets(group, {(name, 2): 7})
            assert {at: each.offset for at, each in (await admin.committed(group)).items()} == {(name, 2): 7}
            await admin.delete_topics([name])
            assert name not in await admin.list_topics()

    run(main())
