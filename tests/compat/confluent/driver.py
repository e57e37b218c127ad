"""confluent-kafka (librdkafka): the scenarios of tests/compat/README.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.compat.conversation import converse, run
from tests.compat.records import fingerprint, record

Json = dict[str, Any]


def as_told(a: Json) -> Json:
    """Return the settings with which librdkafka assumes `broker_version` instead of asking the broker."""
    if "broker_version" not in a:
        return {}
    return {"api.version.request": False, "broker.version.fallback": a["broker_version"]}


def produce(a: Json) -> Json:
    producer = Producer(
        {
            "bootstrap.servers": a["bootstrap"],
            "compression.type": a["codec"],
            "acks": a["acks"],
            "linger.ms": 20,
            "message.timeout.ms": 60000,
            "enable.idempotence": a.get("idempotent", False),
            "queue.buffering.max.messages": 1000000,
            **as_told(a),
        }
    )
    acked, total = 0, 0
    is_old = a.get("broker_version", "").startswith(("0.8", "0.9"))

    for i in range(a["first"], a["first"] + a["count"]):
        key, value, headers = record(i, a["size"], a["nulls"], a["headers"] and not is_old)

        def delivered(error: KafkaError | None, _: object, mark: int = fingerprint(key, value, headers)) -> None:
            nonlocal acked, total
            if error is None:
                acked += 1
                total += mark

        producer.produce(a["topic"], value=value, key=key, headers=headers, on_delivery=delivered)
        if i % 1000 == 0:
            producer.poll(0)
            time.sleep(a["pause_ms"] / 1000)
    producer.flush(60)
    return {"acked": acked, "checksum": str(total % 2**64)}


def consumer(a: Json, group: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": a["bootstrap"],
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            **as_told(a),
            **more,
        }
    )


def consume(a: Json) -> Json:
    reader = consumer(a, f"read-{time.time_ns()}")
    if a.get("broker_version") == "0.8.2":  # it had no groups
        ids = reader.list_topics(a["topic"], timeout=10).topics[a["topic"]].partitions
        reader.assign([TopicPartition(a["topic"], one, OFFSET_BEGINNING) for one in ids])
    else:
        reader.subscribe([a["topic"]])
    count, total, partitions = 0, 0, {}
    deadline = time.monotonic() + a["timeout_s"]
    while count < a["count"] and time.monotonic() < deadline:
        for message in reader.consume(10000, 0.5):
            if message.error():
                raise KafkaException(message.error())
            count += 1
            total += fingerprint(message.key(), message.value(), message.headers() or [])
            seen = partitions.setdefault(str(message.partition()), [message.offset(), message.offset() - 1, True])
            seen[2] = seen[2] and message.offset() > seen[1]
            seen[1] = message.offset()
    reader.close()
    return {"count": count, "checksum": str(total % 2**64), "partitions": partitions}


NEWER = {("consumer", "one"), ("consumer", "two"), ("upgrade", "two"), ("downgrade", "one")}
"""Scenarios and members that use the newer protocol of groups."""


def group(a: Json) -> Json:
    def member(instance: str) -> Consumer:
        settings: Json = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
        if (a.get("protocol"), instance) in NEWER:
            settings = {"group.protocol": "consumer", "group.remote.assignor": a["assignor"] or "uniform"}
        elif a["assignor"]:
            settings["partition.assignment.strategy"] = a["assignor"]
        if a["static"]:
            settings["group.instance.id"] = instance
        return consumer(a, a["group"], **settings)

    first, second = member("one"), member("two")
    topics = [a.get("pattern") or a["topic"]]
    first.subscribe(topics)
    seen: set[tuple[int, int]] = set()
    acknowledged: dict[int, int] = {}
    counts, again = [0, 0], 0
    joined, left = False, False
    deadline = time.monotonic() + a["timeout_s"]
    while len(seen) < a["count"] and time.monotonic() < deadline:
        for number, member in enumerate((first, second)):
            if (number == 0 and left) or (number == 1 and not joined):
                continue
            for message in member.consume(200, 0.1):
                if message.error():
                    raise KafkaException(message.error())
                counts[number] += 1
                seen.add((message.partition(), message.offset()))
                again += message.offset() < acknowledged.get(message.partition(), 0)
            try:
                for place in member.commit(asynchronous=False) or ():
                    if place.error is None:
                        acknowledged[place.partition] = max(acknowledged.get(place.partition, 0), place.offset)
            except KafkaException as error:
                if error.args[0].code() not in (
                    KafkaError._NO_OFFSET,
                    KafkaError.REBALANCE_IN_PROGRESS,
                    KafkaError.ILLEGAL_GENERATION,
                    KafkaError.STALE_MEMBER_EPOCH,
                ):
                    raise
        time.sleep(0.01)  # leave something for the other member
        if not joined and len(seen) >= a["count"] // 10:
            second.subscribe(topics)
            joined = True
        if joined and not left and counts[1] and len(seen) >= a["count"] // 2:
            first.close()
            left = True
    partitions = [TopicPartition(a["topic"], p) for p in second.list_topics(a["topic"]).topics[a["topic"]].partitions]
    committed = sum(max(p.offset, 0) for p in committed_offsets(second, partitions, deadline))
    second.close()
    return {"members": counts, "distinct": len(seen), "committed": committed, "again": again}


def committed_offsets(member: Consumer, partitions: list[TopicPartition], deadline: float) -> list[TopicPartition]:
    """Return the group's offsets. librdkafka hands NOT_COORDINATOR on, and finds the new coordinator meanwhile."""
    while True:
        try:
            return list(member.committed(partitions, timeout=10))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def seek(a: Json) -> Json:
    reader = consumer(a, f"seek-{time.time_ns()}")
    reader.assign([TopicPartition(a["topic"], a["partition"], a["offset"])])
    deadline = time.monotonic() + 30
    message = None
    while message is None and time.monotonic() < deadline:
        message = reader.poll(1)
    by_time = None
    if "broker_version" not in a:
        wanted = TopicPartition(a["topic"], a["partition"], a["timestamp_ms"])
        by_time = reader.offsets_for_times([wanted], timeout=10)[0].offset
    earliest, latest = reader.get_watermark_offsets(TopicPartition(a["topic"], a["partition"]), timeout=10)
    reader.close()
    return {
        "at_offset": message.offset() if message else None,
        "by_time": by_time,
        "earliest": earliest,
        "latest": latest,
    }


def limits(a: Json) -> Json:
    producer = Producer(
        {
            "bootstrap.servers": a["bootstrap"],
            "message.max.bytes": 100_000_000,
            "message.timeout.ms": 20000,
            **as_told(a),
        }
    )
    errors: list[KafkaError | None] = []
    producer.produce(a["topic"], value=b"x" * a["size"], on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    error = errors[0]
    return {"ok": error is None, "error": None if error is None else error.name()}


def admin(a: Json) -> Json:
    client = AdminClient({"bootstrap.servers": a["bootstrap"]})
    topic = f"{a['prefix']}-a"
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def retention() -> str:
        return str(client.describe_configs([resource])[resource].result(20)["retention.ms"].value)

    client.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "3600000"})])[topic].result(20)
    try:
        client.create_topics([NewTopic(topic, 3, 1)])[topic].result(20)
        duplicate = None
    except KafkaException as error:
        duplicate = error.args[0].name()
    created = topic in client.list_topics(timeout=10).topics
    before = retention()
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    change = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    client.incremental_alter_configs([changed])[changed].result(20)
    after = retention()
    partitions = len(client.list_topics(topic, timeout=10).topics[topic].partitions)
    producer = Producer({"bootstrap.servers": a["bootstrap"]})
    for i in range(10):
        producer.produce(topic, value=b"%d" % i, partition=0)
    producer.flush(20)
    target = TopicPartition(topic, 0, 5)
    low = client.delete_records([target])[target].result(20).low_watermark
    client.list_consumer_groups().result(20)
    client.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 10
    while topic in client.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.1)
    return {
        "created": created,
        "partitions": partitions,
        "retention_before": before,
        "retention_after": after,
        "low_watermark": low,
        "duplicate_error": duplicate,
        "deleted": topic not in client.list_topics(timeout=10).topics,
    }


class Transactions:
    """Scenario `transactions`: one transactional producer and, to move records, one member of a group."""

    def __init__(self, a: Json):
        self.a = a
        self.reader: Consumer | None = None

    def insist(self, step: Callable[[], object]) -> None:
        """Call `step` again as long as the library says that its error can be retried."""
        deadline = time.monotonic() + 60
        while True:
            try:
                step()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def init(self, step: Json) -> None:
        settings = {"transactional.id": step["id"], "transaction.timeout.ms": step["timeout_ms"]}
        quick: Json = {
            "socket.timeout.ms": min(step["timeout_ms"], 10000),
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        self.producer = Producer({"bootstrap.servers": self.a["bootstrap"], "linger.ms": 0, **settings, **quick})
        self.insist(lambda: self.producer.init_transactions(10))
        if step.get("source"):
            quick = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
            if step.get("protocol") == "consumer":
                quick = {"group.protocol": "consumer"}
            self.reader = consumer(self.a, step["group"], **quick, **{"isolation.level": "read_committed"})
            self.reader.subscribe([step["source"]])

    def begin(self, step: Json) -> None:
        self.producer.begin_transaction()

    def send(self, step: Json) -> Json:
        found: list[tuple[KafkaError | None, Message]] = []
        self.producer.produce(
            step["topic"], step["value"].encode(), partition=step["partition"],
            on_delivery=lambda error, message: found.append((error, message)),
        )  # fmt: skip
        try:
            self.producer.flush(60)
        except SystemError as mixed:  # a fatal error is raised where a callback is being called
            raise mixed.__cause__ or mixed from None
        error, message = found[0]
        if error is not None:
            raise KafkaException(error)
        return {"offset": message.offset()}

    def move(self, step: Json) -> Json:
        assert self.reader is not None
        values, offsets = [], {}
        deadline = time.monotonic() + 60
        while len(values) < step["count"] and time.monotonic() < deadline:
            message = self.reader.poll(0.2)
            if message is None or message.error():
                continue
            values.append(message.value().decode())
            offsets[message.partition()] = message.offset() + 1
            self.producer.produce(step["topic"], message.value() + b"!", partition=message.partition())
        places = [TopicPartition(message.topic(), partition, offset) for partition, offset in offsets.items()]
        group = self.reader.consumer_group_metadata()
        self.insist(lambda: self.producer.send_offsets_to_transaction(places, group, 10))
        return {"values": values}

    def commit(self, step: Json) -> None:
        self.insist(lambda: self.producer.commit_transaction(10))

    def abort(self, step: Json) -> None:
        self.insist(lambda: self.producer.abort_transaction(10))

    def read(self, step: Json) -> Json:
        reader = consumer(self.a, "readers", **{"isolation.level": step["isolation"], "fetch.wait.max.ms": 100})
        reader.assign([TopicPartition(step["topic"], one, OFFSET_BEGINNING) for one in range(step["partitions"])])
        values: dict[int, list[str]] = {one: [] for one in range(step["partitions"])}
        until, count = time.monotonic() + step["timeout_s"], 0
        while time.monotonic() < until:
            for message in reader.consume(1000, 0.1):
                if message.error():
                    raise KafkaException(message.error())
                values[message.partition()].append(message.value().decode())
                count += 1
                if count == step["count"]:  # what is too much comes soon after
                    until = time.monotonic() + step["more_ms"] / 1000
        reader.close()
        return {"values": values}

    def leave(self, step: Json) -> None:
        if self.reader is not None:
            self.reader.close()


def transactions(a: Json) -> Json:
    told = Transactions(a)
    names = ("init", "begin", "send", "move", "commit", "abort", "read", "leave")
    return converse({name: getattr(told, name) for name in names}, KafkaException)


if __name__ == "__main__":
    scenarios = {"produce": produce, "consume": consume, "group": group, "seek": seek, "limits": limits, "admin": admin}
    scenarios["transactions"] = transactions
    run(scenarios)
