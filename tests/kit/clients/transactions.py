"""Transactional producers of `kbroker.client` in tests, and what a reader of committed records finds."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from kbroker.client import ConsumerGroupMetadata, Producer
from kbroker.testing import Broker

SECONDS = 30.0
PARTITIONS = 3
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 20}


def address_of(broker: Any) -> str:
    return str(broker.bootstrap_servers if isinstance(broker, Broker) else broker.address)


def new_id() -> str:
    return f"id-{uuid4().hex[:8]}"


def producer_of(broker: Any, version: int = 2, name: str | None = None, **options: Any) -> Producer:
    """Return a transactional producer on which init_transactions was called."""
    given = {"bootstrap_servers": address_of(broker), "transactional_id": name or new_id(), **QUICK, **options}
    made = Producer(**given)
    try:
        speak(made, version)
        made.init_transactions(SECONDS)
    except BaseException:
        made.close(0)
        raise
    return made


def speak(producer: Producer, version: int) -> None:
    """Make a producer believe that the cluster has this version of transactions."""
    network = producer._background.cluster.network
    network.note_features = lambda answer: None  # type: ignore[method-assign]
    network.features = {"transaction.version": version}


def send(producer: Producer, topic: str, *values: str) -> None:
    """Send each value to the next partition, in turn."""
    for number, value in enumerate(values):
        producer.send_nowait(topic, value, partition=number % PARTITIONS)


def transact(producer: Producer, topic: str, number: int) -> None:
    """Commit a transaction with a record in each partition and an offset of a group."""
    producer.begin_transaction()
    send(producer, topic, *[f"{number}"] * PARTITIONS)
    producer.send_offsets_to_transaction({(topic, 0): number + 1}, ConsumerGroupMetadata(f"g-{topic}"), SECONDS)
    producer.commit_transaction(SECONDS)


def committed(broker: Any, topic: str, timeout_s: float = SECONDS) -> list[list[str]]:
    """Return the values that a read_committed consumer finds in each partition, up to the partition's end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address_of(broker),
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, (found, ended)
        for message in consumer.consume(1000, 0.05):
            partition, value = message.partition(), message.value()
            assert partition is not None
            if message.error():
                ended.add(partition)
            else:
                found[partition].append((value or b"").decode())
    consumer.close()
    return found


def committed_offset(broker: Any, topic: str) -> int:
    """Return the offset that `transact` has committed for its group. Wait while a transaction has it pending."""
    consumer = Consumer({"bootstrap.servers": address_of(broker), "group.id": f"g-{topic}"})
    (found,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
    consumer.close()
    return int(found.offset)
