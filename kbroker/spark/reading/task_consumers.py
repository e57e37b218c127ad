"""Consumers for tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kbroker.client import Consumer
from kbroker.client.consumer.options import CONSUMER
from kbroker.spark.kafka_options import client_options
from kbroker.spark.workers import KeptClients


def new_consumer(given: Mapping[str, str]) -> Consumer:
    """One with these `kafka.*` options that reads what it is told to, and nothing else."""
    return Consumer(
        {
            "client.id": "kbroker-spark",
            # Never more than a task may have. Answers of 1 MiB, the default, come into memory that is used again.
            "queued.max.bytes": 8 << 20,
            **client_options(given, CONSUMER),
            "auto.offset.reset": "none",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
        }
    )


_kept = KeptClients(new_consumer, Consumer.close, Consumer.close)


@contextmanager
def task_consumer(given: Mapping[str, str]) -> Iterator[Consumer]:
    """One with these `kafka.*` options, for this task alone."""
    with _kept.one(given) as consumer:
        yield consumer
        consumer.assign({})
