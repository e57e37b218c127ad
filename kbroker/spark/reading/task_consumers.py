"""Consumers of a Python worker of Spark, kept from task to task: connecting anew costs more than a small task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kbroker.client import Consumer
from kbroker.client.consumer.options import CONSUMER
from kbroker.spark.kafka_options import client_options

MOST_IDLE = 4

_idle: dict[frozenset[tuple[str, str]], Consumer] = {}


@contextmanager
def task_consumer(given: Mapping[str, str]) -> Iterator[Consumer]:
    """One with these `kafka.*` options, for this task alone. After an error it is not used again."""
    key = frozenset(given.items())
    consumer = _idle.pop(key, None) or Consumer(
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
    try:
        yield consumer
        consumer.assign({})
    except BaseException:
        consumer.close()
        raise
    _idle[key] = consumer
    while len(_idle) > MOST_IDLE:
        _idle.pop(next(iter(_idle))).close()
