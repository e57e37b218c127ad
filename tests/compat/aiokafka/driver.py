"""aiokafka: the scenarios of tests/compat/README.md."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, TopicAlreadyExistsError

from tests.compat.conversation import converse_async, run
from tests.compat.records import fingerprint, record

Json = dict[str, Any]


async def produce(a: Json) -> Json:
    producer = AIOKafkaProducer(
        bootstrap_servers=a["bootstrap"],
        compression_type=None if a["codec"] == "none" else a["codec"],
        acks="all" if a["acks"] == -1 else a["acks"],
        linger_ms=5,
        max_batch_size=65536,
        enable_idempotence=a["acks"] == -1,
    )
    await producer.start()
    acked, total, waiting = 0, 0, []
    end = a["first"] + a["count"]
    for i in range(a["first"], end):
        key, value, headers = record(i, a["size"], a["nulls"], a["headers"])
        waiting.append(
            (await producer.send(a["topic"], value=value, key=key, headers=headers), fingerprint(key, value, headers))
        )
        if i % 1000 == 0:
            await asyncio.sleep(a["pause_ms"] / 1000)
    await producer.flush()
    for future, mark in waiting:
        if (await asyncio.gather(future, return_exceptions=True))[0] is not None and future.exception() is None:
            acked, total = acked + 1, total + mark
    await producer.stop()
    return {"acked": acked, "checksum": str(total % 2**64)}


def consumer(a: Json, group: str | None, *topics: str, **more: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=a["bootstrap"],
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=200,
        **more,
    )


async def consume(a: Json) -> Json:
    reader = consumer(a, f"read-{time.time_ns()}", a["topic"])
    await reader.start()
    count, total, partitions = 0, 0, {}
    deadline = time.monotonic() + a["timeout_s"]
    while count < a["count"] and time.monotonic() < deadline:
        for messages in (await reader.getmany(timeout_ms=500)).values():
            for message in messages:
                count += 1
                total += fingerprint(message.key, message.value, message.headers)
                seen = partitions.setdefault(str(message.partition), [message.offset, message.offset - 1, True])
                seen[2] = seen[2] and message.offset > seen[1]
                seen[1] = message.offset
    await reader.stop()
    return {"count": count, "checksum": str(total % 2**64), "partitions": partitions}


ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


async def group(a: Json) -> Json:
    distinct: set[tuple[int, int]] = set()
    counts = [0, 0]
    stopping = [False, False]
    deadline = time.monotonic() + a["timeout_s"]

    async def member(number: int) -> None:
        options: Json = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300, "max_poll_records": 200}
        if a["assignor"]:
            options["partition_assignment_strategy"] = [ASSIGNORS[a["assignor"]]]
        if a["static"]:
            options["group_instance_id"] = f"member-{number}"
        reader = consumer(a, a["group"], a["topic"], **options)
        await reader.start()
        while not stopping[number]:
            for messages in (await reader.getmany(timeout_ms=100)).values():
                counts[number] += len(messages)
                distinct.update((message.partition, message.offset) for message in messages)
            try:
                await reader.commit()
            except (CommitFailedError, IllegalStateError):
                pass  # a rebalance came between
            await asyncio.sleep(0.02)  # leave something for the other member
        await reader.stop()

    async def wait(enough: Any) -> None:
        while not enough() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    first = asyncio.create_task(member(0))
    await wait(lambda: len(distinct) >= a["count"] // 10)
    second = asyncio.create_task(member(1))
    await wait(lambda: counts[1] and len(distinct) >= a["count"] // 2)
    stopping[0] = True
    await first
    await wait(lambda: len(distinct) >= a["count"])
    await asyncio.sleep(0.3)
    stopping[1] = True
    await second
    admin_client = AIOKafkaAdminClient(bootstrap_servers=a["bootstrap"])
    await admin_client.start()
    offsets = await admin_client.list_consumer_group_offsets(a["group"])
    await admin_client.close()
    return {
        "members": counts,
        "distinct": len(distinct),
        "committed": sum(max(offset.offset, 0) for offset in offsets.values()),
    }


async def seek(a: Json) -> Json:
    partition = TopicPartition(a["topic"], a["partition"])
    reader = consumer(a, None)
    await reader.start()
    reader.assign([partition])
    reader.seek(partition, a["offset"])
    message = await asyncio.wait_for(reader.getone(partition), 30)
    by_time = (await reader.offsets_for_times({partition: a["timestamp_ms"]}))[partition]
    earliest = (await reader.beginning_offsets([partition]))[partition]
    latest = (await reader.end_offsets([partition]))[partition]
    await reader.stop()
    return {
        "at_offset": message.offset,
        "by_time": by_time.offset if by_time else -1,
        "earliest": earliest,
        "latest": latest,
    }


async def limits(a: Json) -> Json:
    producer = AIOKafkaProducer(bootstrap_servers=a["bootstrap"], max_request_size=100_000_000)
    await producer.start()
    try:
        await producer.send_and_wait(a["topic"], b"x" * a["size"])
    except KafkaError as error:
        return {"ok": False, "error": type(error).__name__}
    finally:
        await producer.stop()
    return {"ok": True, "error": None}


async def admin(a: Json) -> Json:
    topic = f"{a['prefix']}-a"
    client = AIOKafkaAdminClient(bootstrap_servers=a["bootstrap"])
    await client.start()

    async def retention() -> str:
        answers = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return next(str(entry[1]) for entry in answers[0].resources[0][4] if entry[0] == "retention.ms")

    def refused(answer: Any) -> str | None:
        return next((str(error[1]) for error in answer.topic_errors if error[1]), None)

    await client.create_topics([NewTopic(topic, 3, 1, topic_configs={"retention.ms": "3600000"})])
    try:
        duplicate = refused(await client.create_topics([NewTopic(topic, 3, 1)]))
    except TopicAlreadyExistsError as error:
        duplicate = type(error).__name__
    created, before = topic in await client.list_topics(), await retention()
    await client.create_partitions({topic: NewPartitions(5)})
    await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
    after, partitions = await retention(), len((await client.describe_topics([topic]))[0]["partitions"])
    producer = AIOKafkaProducer(bootstrap_servers=a["bootstrap"])
    await producer.start()
    for i in range(10):
        await producer.send_and_wait(topic, b"%d" % i, partition=0)
    await producer.stop()
    partition = TopicPartition(topic, 0)
    low = (await client.delete_records({partition: RecordsToDelete(before_offset=5)}))[partition]
    await client.list_consumer_groups()
    await client.delete_topics([topic])
    deadline = time.monotonic() + 10
    while topic in await client.list_topics() and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    deleted = topic not in await client.list_topics()
    await client.close()
    return {
        "created": created,
        "partitions": partitions,
        "retention_before": before,
        "retention_after": after,
        "low_watermark": low,
        "duplicate_error": duplicate,
        "deleted": deleted,
    }


class Transactions:
    """Scenario `transactions`: one transactional producer and, to move records, one member of a group."""

    def __init__(self, a: Json):
        self.a = a
        self.reader: AIOKafkaConsumer | None = None

    async def init(self, step: Json) -> None:
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self.a["bootstrap"],
            transactional_id=step["id"],
            transaction_timeout_ms=step["timeout_ms"],
        )
        await self.producer.start()
        if step.get("source"):
            self.group = step["group"]
            self.reader = consumer(self.a, self.group, step["source"], isolation_level="read_committed")
            await self.reader.start()

    async def begin(self, step: Json) -> None:
        await self.producer.begin_transaction()

    async def send(self, step: Json) -> Json:
        sent = await self.producer.send_and_wait(step["topic"], step["value"].encode(), partition=step["partition"])
        return {"offset": sent.offset}

    async def move(self, step: Json) -> Json:
        assert self.reader is not None
        values, offsets = [], {}
        while len(values) < step["count"]:
            message = await asyncio.wait_for(self.reader.getone(), 60)
            values.append(message.value.decode())
            offsets[TopicPartition(message.topic, message.partition)] = message.offset + 1
            await self.producer.send(step["topic"], message.value + b"!", partition=message.partition)
        await self.producer.send_offsets_to_transaction(offsets, self.group)
        return {"values": values}

    async def commit(self, step: Json) -> None:
        await self.producer.commit_transaction()

    async def abort(self, step: Json) -> None:
        await self.producer.abort_transaction()

    async def read(self, step: Json) -> Json:
        reader = consumer(self.a, None, isolation_level=step["isolation"])
        await reader.start()
        places = [TopicPartition(step["topic"], one) for one in range(step["partitions"])]
        reader.assign(places)
        await reader.seek_to_beginning(*places)
        values: dict[int, list[str]] = {one: [] for one in range(step["partitions"])}
        until, count = time.monotonic() + step["timeout_s"], 0
        while time.monotonic() < until:
            for place, messages in (await reader.getmany(timeout_ms=100)).items():
                values[place.partition] += [message.value.decode() for message in messages]
                if count < step["count"] <= count + len(messages):  # what is too much comes soon after
                    until = time.monotonic() + step["more_ms"] / 1000
                count += len(messages)
        await reader.stop()
        return {"values": values}

    async def leave(self, step: Json) -> None:
        if self.reader is not None:
            await self.reader.stop()


async def transactions(a: Json) -> Json:
    told = Transactions(a)
    names = ("init", "begin", "send", "move", "commit", "abort", "read", "leave")
    return await converse_async({name: getattr(told, name) for name in names}, Exception)


if __name__ == "__main__":
    scenarios = {"produce": produce, "consume": consume, "group": group, "seek": seek, "limits": limits, "admin": admin}
    scenarios["transactions"] = transactions
    run({name: lambda a, scenario=scenario: asyncio.run(scenario(a)) for name, scenario in scenarios.items()})
