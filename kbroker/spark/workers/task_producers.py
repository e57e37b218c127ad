"""Producers for tasks, which a Python worker keeps from task to task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.client import Producer
from kbroker.client.config.producer import PRODUCER
from kbroker.spark.errors import WrongOption
from kbroker.spark.options.kafka_options import check_allowed, client_options
from kbroker.spark.workers.kept_clients import KeptClients


def check_producer_options(given: Mapping[str, str]) -> None:
    """Raise WrongOption when a `kafka.*` option is refused or wrong.

    Reads no files: they may exist only where tasks run.
    """
    check_allowed(given, writing=True)
    if "transactional.id" in given:
        raise WrongOption("option kafka.transactional.id cannot be set: exactlyOnce=true has ids of its own")
    secured = ("security.", "sasl.", "ssl.")
    client_options({name: value for name, value in given.items() if not name.startswith(secured)}, PRODUCER)


def producer_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a Producer for the `kafka.*` options `given`."""
    # Rows come in batches of thousands: if they wait a little, they go out in fewer and larger requests.
    return {"client.id": "kbroker-spark", "linger.ms": 5, **client_options(given, PRODUCER)}


def new_producer(given: Mapping[str, str]) -> Producer:
    return Producer(producer_options(given))


def drop(producer: Producer) -> None:
    """Close a producer without sending what it still has: that belongs to a task that has failed."""
    producer.close(timeout=0)


_kept = KeptClients(new_producer, Producer.close, drop)

task_producer = _kept.lend
"""A context manager that yields a producer with these `kafka.*` options, for this task alone."""
