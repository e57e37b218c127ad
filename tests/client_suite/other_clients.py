"""Clients that write records for each other to read: ours, librdkafka's, kafka-python, aiokafka and Java's."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

from tests.client_suite.features import BATCHES, IDEMPOTENCE
from tests.client_suite.java_peer import HAS_HEADERS, HAS_ZSTD, JavaPeer
from tests.client_suite.suite_broker import SECONDS, Feature, SuiteBroker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Row(NamedTuple):
    """A record as its writer gives it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


class Found(NamedTuple):
    """A record as a reader sees it."""

    partition: int
    offset: int
    row: Row


class OtherClient(ABC):
    """One client library with one broker."""

    writes_to: Feature | None = None
    """The feature that a broker must have for this client to write to it; None: none."""
    codecs = CODECS
    has_headers = True

    def __init__(self, broker: SuiteBroker):
        self.broker = broker

    @property
    def can_write(self) -> bool:
        return self.writes_to is None or self.broker.has(self.writes_to)

    @abstractmethod
    def write(self, topic: str, partition: int, codec: str, rows: Sequence[Row]) -> None:
        """Write the rows in order; they are acknowledged when this returns."""

    @abstractmethod
    def read(self, topic: str, partitions: Sequence[int], count: int) -> list[Found]:
        """Read from the beginning, each partition in order; fewer than `count` records after SECONDS."""


class Ours(OtherClient):
    def write(self, topic: str, partition: int, codec: str, rows: Sequence[Row]) -> None:
        with self.broker.producer(compression_type=codec, linger_ms=20) as producer:
            for row in rows:
                producer.send_nowait(topic, row.value, row.key, row.headers or None, partition, row.timestamp)
            producer.flush(SECONDS)

    def read(self, topic: str, partitions: Sequence[int], count: int) -> list[Found]:
        found: list[Found] = []
        deadline = time.monotonic() + SECONDS
        with self.broker.consumer() as consumer:
            consumer.assign([(topic, number) for number in partitions])
            while len(found) < count and time.monotonic() < deadline:
                for each in consumer.poll(1.0):
                    row = Row(each.key, each.value, each.timestamp, tuple(each.headers))
                    found.append(Found(each.partition, each.offset, row))
        return found


class Confluent(OtherClient):
    """librdkafka."""

    def write(self, topic: str, partition: int, codec: str, rows: Sequence[Row]) -> None:
        settings = {
            "bootstrap.servers": self.broker.address,
            "compression.type": codec,
            "linger.ms": 20,
            "log_level": 0,
        }
        producer = confluent_kafka.Producer(settings)
        errors: list[Any] = []
        for row in rows:
            more = {"headers": list(row.headers)} if row.headers else {}
            producer.produce(
                topic, row.value, row.key, partition, lambda error, _: errors.append(error),
                timestamp=row.timestamp, **more,
            )  # fmt: skip
        assert producer.flush(SECONDS) == 0
        assert errors == [None] * len(rows)

    def read(self, topic: str, partitions: Sequence[int], count: int) -> list[Found]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.address, "group.id": "nobody's", "check.crcs": True}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        found: list[Found] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for each in consumer.consume(1000, 0.2):
                assert each.error() is None, each.error()
                row = Row(each.key(), each.value(), each.timestamp()[1], tuple(each.headers() or ()))
                found.append(Found(each.partition(), each.offset(), row))
        consumer.close()
        return found


class KafkaPython(OtherClient):
    def write(self, topic: str, partition: int, codec: str, rows: Sequence[Row]) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.broker.address,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            enable_idempotence=self.broker.has(IDEMPOTENCE),
        )
        sent = [producer.send(topic, row.value, row.key, list(row.headers), partition, row.timestamp) for row in rows]
        producer.flush(SECONDS)
        assert [each.get(0).partition for each in sent] == [partition] * len(rows)
        producer.close()

    def read(self, topic: str, partitions: Sequence[int], count: int) -> list[Found]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker.address, fetch_max_wait_ms=100)
        consumer.assign([kafka.TopicPartition(topic, number) for number in partitions])
        consumer.seek_to_beginning()
        found: list[Found] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for came in consumer.poll(200).values():
                for each in came:
                    row = Row(each.key, each.value, each.timestamp, tuple(each.headers))
                    found.append(Found(each.partition, each.offset, row))
        consumer.close()
        return found


class AioKafka(OtherClient):
    writes_to = BATCHES

    def write(self, topic: str, partition: int, codec: str, rows: Sequence[Row]) -> None:
        async def main() -> None:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.broker.address,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
                enable_idempotence=self.broker.has(IDEMPOTENCE),
            ) as producer:
                for each in [
                    await producer.send(topic, row.value, row.key, partition, row.timestamp, list(row.headers) or None)
                    for row in rows
                ]:
                    await each

        asyncio.run(asyncio.wait_for(main(), SECONDS))

    def read(self, topic: str, partitions: Sequence[int], count: int) -> list[Found]:
        found: list[Found] = []

        async def main() -> None:
            async with aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.broker.address, auto_offset_reset="earliest", fetch_max_wait_ms=100
            ) as consumer:
                consumer.assign([aiokafka.TopicPartition(topic, number) for number in partitions])
                while len(found) < count:
                    for came in (await consumer.getmany(timeout_ms=200)).values():
                        for each in came:
                            row = Row(each.key, each.value, each.timestamp, tuple(each.headers))
                            found.append(Found(each.partition, each.offset, row))

        asyncio.run(asyncio.wait_for(main(), SECONDS))
        return found


class Java(OtherClient):
    def __init__(self, broker: SuiteBroker, peer: JavaPeer):
        super().__init__(broker)
        self.peer = peer
        self.codecs = CODECS if peer.has(HAS_ZSTD) else CODECS[:-1]
        self.has_headers = peer.has(HAS_HEADERS)

    def write(self, topic: str, partition: int, codec: str, rows: Sequence[Row]) -> None:
        records = [
            [partition, in_hex(row.key), in_hex(row.value), row.timestamp, [[k, in_hex(v)] for k, v in row.headers]]
            for row in rows
        ]
        placed = self.peer.ask("produce", topic=topic, codec=codec, records=records)["placed"]
        assert placed == [[partition, number] for number in range(len(rows))]

    def read(self, topic: str, partitions: Sequence[int], count: int) -> list[Found]:
        answer = self.peer.ask("read", topic=topic, partitions=list(partitions), count=count)
        return [
            Found(
                partition,
                offset,
                Row(from_hex(key), from_hex(value), timestamp, tuple((k, from_hex(v)) for k, v in headers)),
            )
            for partition, offset, timestamp, key, value, headers in answer["records"]
        ]


def in_hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


KINDS: dict[str, type[OtherClient]] = {
    "ours": Ours,
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "java": Java,
}
