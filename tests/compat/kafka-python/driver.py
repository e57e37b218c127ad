"""kafka-python, 1.4 to 3.x: the scenarios of tests/compat/README.md.

With `api_version` it assumes that the broker has that version, and does not ask.
"""

from __future__ import annotations

import json
import time
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic
from kafka.errors import CommitFailedError, KafkaError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tests.compat import group
from tests.compat.conversation import run
from tests.compat.records import fingerprint, record

Json = dict[str, Any]
OLD = kafka.__version__ < "3"


def as_told(a: Json) -> Json:
    return {"api_version": tuple(a["api_version"])} if "api_version" in a else {}


def has_headers(a: Json) -> bool:
    return "api_version" not in a


def produce(a: Json) -> Json:
    producer = KafkaProducer(
        bootstrap_servers=a["bootstrap"],
        compression_type=None if a["codec"] == "none" else a["codec"],
        acks="all" if a["acks"] == -1 else a["acks"],
        linger_ms=20,
        retries=100,
        retry_backoff_ms=200,
        batch_size=65536,
        **({} if OLD else {"enable_idempotence": a["acks"] == -1}),
        **as_told(a),
    )
    sent = []
    for i in range(a["first"], a["first"] + a["count"]):
        key, value, headers = record(i, a["size"], a["nulls"], a["headers"])
        headers = [(name, content or b"") for name, content in headers] if has_headers(a) else []
        sent.append(
            (producer.send(a["topic"], key=key, value=value, headers=headers), fingerprint(key, value, headers))
        )
        if i % 1000 == 0:
            time.sleep(a["pause_ms"] / 1000)
    producer.flush(90)
    marks = [mark for future, mark in sent if future.succeeded()]
    producer.close(10)
    return {"acked": len(marks), "checksum": str(sum(marks) % 2**64)}


def consumer(a: Json, group: str | None, **more: object) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=a["bootstrap"],
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=200,
        **as_told(a),
        **more,
    )


def consume(a: Json) -> Json:
    reader = consumer(a, f"read-{time.time_ns()}")
    reader.subscribe([a["topic"]])
    count, total, partitions = 0, 0, {}
    deadline = time.monotonic() + a["timeout_s"]
    while count < a["count"] and time.monotonic() < deadline:
        for messages in reader.poll(500, max_records=10000).values():
            for message in messages:
                count += 1
                total += fingerprint(message.key, message.value, message.headers or [])
                seen = partitions.setdefault(str(message.partition), [message.offset, message.offset - 1, True])
                seen[2] = seen[2] and message.offset > seen[1]
                seen[1] = message.offset
    reader.close()
    return {"count": count, "checksum": str(total % 2**64), "partitions": partitions}


class Member(group.Member):
    def run(self) -> None:
        reader = consumer(
            self.a, self.a["group"], session_timeout_ms=6000, heartbeat_interval_ms=300, max_poll_records=200
        )
        reader.subscribe([self.a["topic"]])
        while not self.stopping:
            # The leader of a group joins again when it has metadata; kafka-python 3.0 forgets that join, and stands
            # still without partitions, when the poll that began it ends before the group has answered.
            for messages in reader.poll(100 if self.read else 10_000).values():
                self.read += len(messages)
                self.distinct.update((message.partition, message.offset) for message in messages)
            try:
                reader.commit()
            except CommitFailedError:
                pass  # a rebalance came between
            except AssertionError:
                pass  # nothing assigned yet
            time.sleep(0.02)  # leave something for the other member
        reader.close()


def committed(a: Json) -> int:
    if "api_version" in a:
        reader = consumer(a, a["group"])
        partitions = [TopicPartition(a["topic"], one) for one in reader.partitions_for_topic(a["topic"])]
        found = sum(reader.committed(one) or 0 for one in partitions)
        reader.close()
        return found
    admin = KafkaAdminClient(bootstrap_servers=a["bootstrap"])
    offsets = (admin.list_consumer_group_offsets if OLD else admin.list_group_offsets)(a["group"])
    if not OLD and offsets and not isinstance(next(iter(offsets.values())), OffsetAndMetadata):
        offsets = next(iter(offsets.values()))
    admin.close()
    return sum(max(offset.offset, 0) for offset in offsets.values())


def seek(a: Json) -> Json:
    partition = TopicPartition(a["topic"], a["partition"])
    reader = consumer(a, None)
    reader.assign([partition])
    reader.seek(partition, a["offset"])
    deadline = time.monotonic() + 30
    at = None
    while at is None and time.monotonic() < deadline:
        for messages in reader.poll(500).values():
            at = at if at is not None else messages[0].offset
    by_time = None
    if "api_version" not in a or tuple(a["api_version"]) >= (0, 10, 1):
        found = reader.offsets_for_times({partition: a["timestamp_ms"]})[partition]
        by_time = found.offset if found else -1
    earliest, latest = reader.beginning_offsets([partition])[partition], reader.end_offsets([partition])[partition]
    reader.close()
    return {"at_offset": at, "by_time": by_time, "earliest": earliest, "latest": latest}


def old_offsets(a: Json) -> Json:
    """Commit and fetch offsets as a client of an old broker: without group membership, by the version it knows."""
    partition = TopicPartition(a["topic"], 0)

    def reader() -> KafkaConsumer:
        one = consumer(a, a["group"])
        one.assign([partition])
        return one

    first = reader()
    before = first.committed(partition)
    if a["offset"] is not None:
        first.commit({partition: OffsetAndMetadata(a["offset"], "m")})
    first.close()
    second = reader()
    found = {
        "before": before,
        "committed": second.committed(partition),
        "position": second.position(partition),
        "earliest": second.beginning_offsets([partition])[partition],
        "latest": second.end_offsets([partition])[partition],
    }
    second.close()
    return found


def limits(a: Json) -> Json:
    producer = KafkaProducer(bootstrap_servers=a["bootstrap"], max_request_size=100_000_000, **as_told(a))
    try:
        producer.send(a["topic"], value=b"x" * a["size"]).get(20)
    except KafkaError as error:
        return {"ok": False, "error": type(error).__name__}
    return {"ok": True, "error": None}


def admin(a: Json) -> Json:
    return (old_admin if OLD else new_admin)(a)


def made_twice(client: KafkaAdminClient, topic: str) -> str | None:
    try:
        client.create_topics([NewTopic(topic, 3, 1)])
    except TopicAlreadyExistsError as error:
        return type(error).__name__
    return None


def old_admin(a: Json) -> Json:
    topic = f"{a['prefix']}-a"
    client = KafkaAdminClient(bootstrap_servers=a["bootstrap"])

    def retention() -> str:
        (answer,) = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = answer.resources[0][4]
        return next(str(entry[1]) for entry in entries if entry[0] == "retention.ms")

    client.create_topics([NewTopic(topic, 3, 1, topic_configs={"retention.ms": "3600000"})])
    duplicate, created, before = made_twice(client, topic), topic in client.list_topics(), retention()
    client.create_partitions({topic: NewPartitions(5)})
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
    after, partitions = retention(), len(client.describe_topics([topic])[0]["partitions"])
    client.list_consumer_groups()
    client.delete_topics([topic])
    return finished(client, topic, duplicate, created, before, after, partitions, None)


def new_admin(a: Json) -> Json:
    topic = f"{a['prefix']}-a"
    client = KafkaAdminClient(bootstrap_servers=a["bootstrap"])

    def retention() -> str:
        described = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        text = json.dumps(described, default=str)
        return "3600000" if "3600000" in text else "7200000" if "7200000" in text else text

    client.create_topics({topic: {"num_partitions": 3, "configs": {"retention.ms": "3600000"}}})
    duplicate, created, before = made_twice(client, topic), topic in client.list_topics(), retention()
    client.create_partitions({topic: 5})
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
    after, partitions = retention(), len(client.describe_topics([topic])[0]["partitions"])
    producer = KafkaProducer(bootstrap_servers=a["bootstrap"])
    for i in range(10):
        producer.send(topic, value=b"%d" % i, partition=0)
    producer.close(10)
    partition = TopicPartition(topic, 0)
    client.delete_records({partition: 5})
    reader = consumer(a, None)
    low = reader.beginning_offsets([partition])[partition]
    reader.close()
    client.list_groups()
    client.delete_topics([topic])
    return finished(client, topic, duplicate, created, before, after, partitions, low)


def finished(
    client: KafkaAdminClient,
    topic: str,
    duplicate: str | None,
    created: bool,
    before: str,
    after: str,
    partitions: int,
    low: int | None,
) -> Json:
    deadline = time.monotonic() + 10
    while topic in client.list_topics() and time.monotonic() < deadline:
        time.sleep(0.1)
    return {
        "created": created,
        "partitions": partitions,
        "retention_before": before,
        "retention_after": after,
        "low_watermark": low,
        "duplicate_error": duplicate,
        "deleted": topic not in client.list_topics(),
    }


if __name__ == "__main__":
    scenarios = {
        "produce": produce,
        "consume": consume,
        "group": lambda a: group.group(a, Member, committed),
        "seek": seek,
        "old_offsets": old_offsets,
        "limits": limits,
        "admin": admin,
    }
    run(scenarios)
