"""Topics for tests of reading: what is sent to them, and the options that name them. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kbroker.client import AdminClient, Producer
from kbroker.model import TopicPartition
from tests.kit.parts.processors import wait_until

T0_MS = 1_700_000_000_000
QUICK = {
    "kafkaConsumer.pollTimeoutMs": 1500,
    "kafka.default.api.timeout.ms": 1500,
    "kafka.request.timeout.ms": 1500,
    "fetchOffset.retryIntervalMs": 10,
}
"""Options of a reader that gives up soon."""


def options(servers: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a reader. What is no text is given as JSON."""
    found = {"kafka.bootstrap.servers": servers} | given
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def fill(servers: str, topic: str, partitions: int, count: int, *, start: int = 0, make: bool = True) -> None:
    """Send `count` records, in turn over the partitions and a millisecond apart.

    Among them is every kind of empty key, value and headers. The topic is made unless `make` is False.
    """
    if make:
        with AdminClient(bootstrap_servers=servers) as admin:
            admin.create_topic(topic, partitions, configs={"retention.ms": "-1"})  # its records are years old
    with Producer(bootstrap_servers=servers) as producer:
        for i in range(start, start + count):
            producer.send_nowait(
                topic,
                None if i % 7 == 0 else b"value %d" % i,
                key=None if i % 5 == 0 else b"key %d" % i,
                headers=[("a", b"%d" % i), ("b", None)] if i % 3 == 0 else None,
                partition=i % partitions,
                timestamp=T0_MS + i,
            )


def places(topic: str, *offsets: int) -> dict[str, dict[str, int]]:
    """Return the JSON of options that gives each partition of a topic an offset."""
    return {topic: {str(number): offset for number, offset in enumerate(offsets)}}


def delete_before(servers: str, *before: tuple[str, int, int]) -> None:
    """Delete the records of partitions before an offset, as retention does."""
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, number): offset for topic, number, offset in before})


def delete_topic(servers: str, topic: str) -> None:
    """Delete a topic, and return when nobody knows of it any more."""
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics(), "a topic that is gone", 20)
