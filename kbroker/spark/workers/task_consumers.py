"""Consumers for tasks, which a Python worker keeps from task to task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kbroker.client import Consumer
from kbroker.client.config.consumer import CONSUMER
from kbroker.spark.options.kafka_options import client_options
from kbroker.spark.workers.kept_clients import KeptClients


def new_consumer(given: Mapping[str, str]) -> Consumer:
    """Return a consumer with the `kafka.*` options `given`, which reads only what it is told to."""
    return Consumer(
        {
            "client.id": "kbroker-spark",
            # The most memory that a task may have. Answers of 1 MiB, the default, come into memory that is used again.
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
    """Yield a consumer with the `kafka.*` options `given`, for this task alone."""
    with _kept.lend(given) as consumer:
        yield consumer
        consumer.assign({})
