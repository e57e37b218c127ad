"""Runs one Python client that consumes: `python -m perf.python_consumers KIND ADDRESS TOPIC COUNT`.

Prints as JSON messages per second and microseconds of CPU per message, from the first poll that returned messages to
the last message. Starting and connecting are not counted. KIND is one of CLIENTS; a kind with `-defaults` leaves the
client's options as they are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

PARTITIONS = 4
TUNED = {"fetch.queue.backoff.ms": 5, "queued.min.messages": 1_000_000}
Polls = Iterator[int]  # the number of messages of each poll; their values have been read


def kbroker_consumer(address: str, topic: str, **options: object) -> object:
    from kbroker.client.consumer.consumer import Consumer

    consumer = Consumer(bootstrap_servers=address, **options)
    consumer.assign({(topic, partition): 0 for partition in range(PARTITIONS)})  # type: ignore[misc]
    return consumer


def kbroker(address: str, topic: str) -> Polls:
    consumer = kbroker_consumer(address, topic)
    while True:
        records = consumer.poll(1.0)  # type: ignore[attr-defined]
        for record in records:
            record.value  # noqa: B018
        yield len(records)


def kbroker_arrow(address: str, topic: str) -> Polls:
    consumer = kbroker_consumer(address, topic, max_poll_records=100_000)
    while True:
        yield consumer.poll_arrow(1.0).num_rows  # type: ignore[attr-defined]


def kbroker_arrow_values(address: str, topic: str) -> Polls:
    consumer = kbroker_consumer(address, topic, max_poll_records=100_000)
    while True:
        yield consumer.poll_arrow(1.0, columns=["value"]).num_rows  # type: ignore[attr-defined]


def confluent(address: str, topic: str, options: dict[str, object] | None = None) -> Polls:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "perf", "enable.auto.commit": False, **(options or {})}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    while True:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            message.value()
        yield len(messages)


CLIENTS: dict[str, Callable[[str, str], Polls]] = {
    "kbroker": kbroker,
    "kbroker-arrow": kbroker_arrow,
    "kbroker-arrow-values": kbroker_arrow_values,
    "confluent": lambda address, topic: confluent(address, topic, dict(TUNED)),
    "confluent-defaults": confluent,
}


def main() -> None:
    kind, address, topic, count = sys.argv[1:]
    wanted = int(count)
    polls = CLIENTS[kind](address, topic)
    found = 0
    while found == 0:  # what connecting costs is not counted
        found = next(polls)
    wanted -= found
    found, started, cpu = 0, time.perf_counter(), time.process_time()
    while found < wanted:
        found += next(polls)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"msgs_per_s": found / seconds, "cpu_us": cpu_s / found * 1e6}))


if __name__ == "__main__":
    main()
