"""Producers of a Python worker of Spark, kept from task to task: connecting anew costs more than a small task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kbroker.client import Producer
from kbroker.client.config import parse_options
from kbroker.client.producer.options import PRODUCER
from kbroker.spark.kafka_options import client_options
from kbroker.spark.options import WrongOption

MOST_IDLE = 4

_idle: dict[frozenset[tuple[str, str]], Producer] = {}


def producer_options(given: Mapping[str, str]) -> dict[str, Any]:
    """`kafka.*` options for a Producer. WrongOption: one is refused or wrong."""
    if "transactional.id" in given:
        raise WrongOption("option kafka.transactional.id cannot be set: exactlyOnce=true has ids of its own")
    found = {
        "client.id": "kbroker-spark",
        # Rows come in batches of thousands: what waits a little goes out in fewer and larger requests.
        "linger.ms": 5,
        **client_options(given, PRODUCER),
    }
    try:
        parse_options(PRODUCER, found, {}, "the producer")
    except (TypeError, ValueError) as error:
        raise WrongOption(f"option kafka.{error}") from None
    return found


@contextmanager
def task_producer(given: Mapping[str, str]) -> Iterator[Producer]:
    """One with these `kafka.*` options, for this task alone. After an error it is not used again."""
    key = frozenset(given.items())
    producer = _idle.pop(key, None) or Producer(producer_options(given))
    try:
        yield producer
    except BaseException:
        producer.close(timeout=0)
        raise
    _idle[key] = producer
    while len(_idle) > MOST_IDLE:
        _idle.pop(next(iter(_idle))).close()
