"""pykafka: the scenarios of tests/compat/README.md, with magic 0 and offsets that OffsetCommit 1 stores."""

from __future__ import annotations

import queue
import time
from typing import Any

from pykafka import KafkaClient
from pykafka.common import CompressionType, OffsetType
from pykafka.exceptions import KafkaException, MessageSizeTooLarge

from tests.compat import group
from tests.compat.conversation import run
from tests.compat.records import fingerprint, record

Json = dict[str, Any]
CODECS = {
    "none": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
}


STOP_TIMEOUT_S = 60

CLIENTS: list[KafkaClient] = []
"""The clients in use, kept here because a topic does not keep its client alive."""


def topic_of(a: Json) -> Any:
    client = KafkaClient(hosts=a["bootstrap"], broker_version=a["broker_version"])
    CLIENTS.append(client)
    return client.topics[a["topic"]]


def produce(a: Json) -> Json:
    producer = topic_of(a).get_producer(
        compression=CODECS[a["codec"]],
        required_acks=a["acks"],
        delivery_reports=True,
        linger_ms=20,
        max_retries=100,
        retry_backoff_ms=200,
        max_request_size=65536,
    )
    acked, failed, total = 0, 0, 0

    def collect() -> None:
        nonlocal acked, failed, total
        while True:
            try:
                message, error = producer.get_delivery_report(block=False)
            except queue.Empty:
                return
            if error is None:
                acked += 1
                total += fingerprint(message.partition_key, message.value, [])
            else:
                failed += 1

    for i in range(a["first"], a["first"] + a["count"]):
        key, value, _ = record(i, a["size"], a["nulls"], False)
        producer.produce(value, partition_key=key)
        if i % 1000 == 0:
            collect()
            time.sleep(a["pause_ms"] / 1000)
    deadline = time.monotonic() + STOP_TIMEOUT_S  # `stop` itself drops what it has not sent within ten seconds
    while acked + failed < a["count"] and time.monotonic() < deadline:
        time.sleep(0.01)
        collect()
    producer.stop()
    return {"acked": acked, "checksum": str(total % 2**64)}


def consume(a: Json) -> Json:
    reader = topic_of(a).get_simple_consumer(
        auto_offset_reset=OffsetType.EARLIEST,
        fetch_wait_max_ms=200,
        consumer_timeout_ms=200,
    )
    count, total, partitions = 0, 0, {}
    deadline = time.monotonic() + a["timeout_s"]
    while count < a["count"] and time.monotonic() < deadline:
        message = reader.consume()
        if message is None:
            continue
        count += 1
        total += fingerprint(message.partition_key, message.value, [])
        seen = partitions.setdefault(str(message.partition_id), [message.offset, message.offset - 1, True])
        seen[2] = seen[2] and message.offset > seen[1]
        seen[1] = message.offset
    reader.stop()
    return {"count": count, "checksum": str(total % 2**64), "partitions": partitions}


class Member(group.Member):
    def run(self) -> None:
        reader = topic_of(self.a).get_balanced_consumer(
            self.a["group"].encode(),
            managed=True,
            auto_offset_reset=OffsetType.EARLIEST,
            consumer_timeout_ms=100,
            heartbeat_interval_ms=300,
            fetch_message_max_bytes=8192,
            queued_max_messages=100,
            fetch_wait_max_ms=100,
        )
        while not self.stopping:
            for _ in range(200):
                message = reader.consume(block=True)
                if message is None:
                    break
                self.read += 1
                self.distinct.add((message.partition_id, message.offset))
                if self.stopping:
                    break
            try:
                reader.commit_offsets()
            except KafkaException:
                pass  # a rebalance came between
            time.sleep(0.02)  # leave something for the other member
        reader.stop()


def committed(a: Json) -> int:
    reader = topic_of(a).get_simple_consumer(a["group"].encode(), auto_start=False)
    reader.start()
    offsets = [max(answer.offset, 0) for _, answer in reader.fetch_offsets()]
    reader.stop()
    return sum(offsets)


def seek(a: Json) -> Json:
    topic = topic_of(a)
    partition = topic.partitions[a["partition"]]
    reader = topic.get_simple_consumer(partitions=[partition], auto_offset_reset=OffsetType.EARLIEST)
    reader.reset_offsets([(partition, a["offset"] - 1)])  # it names the last that was read
    at = reader.consume().offset
    reader.stop()
    return {
        "at_offset": at,
        "by_time": None,
        "earliest": partition.earliest_available_offset(),
        "latest": partition.latest_available_offset(),
    }


def limits(a: Json) -> Json:
    producer = topic_of(a).get_sync_producer(max_request_size=100_000_000, max_retries=1)
    try:
        producer.produce(b"x" * a["size"])
    except MessageSizeTooLarge as error:
        return {"ok": False, "error": type(error).__name__}
    finally:
        producer.stop()
    return {"ok": True, "error": None}


if __name__ == "__main__":
    scenarios = {
        "produce": produce,
        "consume": consume,
        "group": lambda a: group.group(a, Member, committed),
        "seek": seek,
        "limits": limits,
    }
    run(scenarios)
