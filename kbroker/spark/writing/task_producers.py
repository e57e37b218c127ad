"""Producers of a Python worker of Spark, kept from task to task: connecting anew costs more than a small task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kbroker.client import Producer
from kbroker.client.producer.options import PRODUCER
from kbroker.spark.errors import WrongOption
from kbroker.spark.kafka_options import check_allowed, client_options

MOST_IDLE = 4

_idle: dict[frozenset[tuple[str, str]], Producer] = {}


def check_producer_options(given: Mapping[str, str]) -> None:
    """WrongOption: one of `kafka.*` is refused or wrong. Reads no files: they may be where tasks run only."""
    check_allowed(given, writing=True)
    if "transactional.id" in given:
        raise WrongOption("option kafka.transactional.id cannot be set: exactlyOnce=true has ids of its own")
    secured = ("security.", "sasl.", "ssl.")
    client_options({name: value for name, value in given.items() if not name.startswith(secured)}, PRODUCER)


def producer_options(given: Mapping[str, str]) -> dict[str, Any]:
    """`kafka.*` options for a Producer."""
    # Rows come in batches of thousands: what waits a little goes out in fewer and larger requests.
    return {"client.id": "kbroker-spark", "linger.ms": 5, **client_options(given, PRODUCER)}


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
