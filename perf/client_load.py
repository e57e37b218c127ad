"""Runs one side of a row about producers in Python: `python -m perf.client_load LOAD WHO ADDRESS TOPIC COUNT`.

Prints JSON: seconds, CPU seconds of this process, and figures of the load's own. Before its time begins it has sent a
few thousand messages and waited for them.
"""

from __future__ import annotations

import json
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

SIZE = 100
PARTITIONS = 4
VALUE = b"x" * SIZE
WARM = 5_000
COLUMN = 50_000


def ours(address: str) -> Any:
    from kbroker.client import Producer

    return Producer(bootstrap_servers=address)


def theirs(address: str) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "queue.buffering.max.messages": 2_000_000}
    )


def produce(who: str, address: str, topic: str) -> Callable[[int], None]:
    """Return what produces a number of messages, without a future or callback for each."""
    if who == "kbroker":
        producer = ours(address)

        def send(count: int) -> None:
            send_nowait = producer.send_nowait
            for _ in range(count):
                send_nowait(topic, VALUE)
            producer.flush(300)

        return send
    return _confluent(address, topic, {})


def produce_and_hear(who: str, address: str, topic: str) -> Callable[[int], None]:
    """Return what produces a number of messages, with a future (kbroker) or a callback (confluent-kafka) for each."""
    if who == "kbroker":
        producer = ours(address)

        def send(count: int) -> None:
            deliveries = [producer.send(topic, VALUE) for _ in range(count)]
            producer.flush(300)
            if any(delivery.exception(0) is not None for delivery in deliveries):
                raise RuntimeError("messages that could not be sent")

        return send
    failed: list[Any] = []
    return _confluent(address, topic, {"callback": lambda error, _message: failed.append(error) if error else None})


def _confluent(address: str, topic: str, how: dict[str, Any]) -> Callable[[int], None]:
    producer = theirs(address)

    def send(count: int) -> None:
        call, poll = producer.produce, producer.poll
        for number in range(count):
            while True:
                try:
                    call(topic, VALUE, **how)
                    break
                except BufferError:
                    poll(0.01)
            if number % 1000 == 0:
                poll(0)
        if producer.flush(300):
            raise RuntimeError("messages that could not be sent")

    return send


def columns(who: str, address: str, topic: str) -> Callable[[int], None]:
    """Return what sends a number of messages with send_many of a NumPy column, or as many bytes through a socket."""
    if who == "kbroker":
        import numpy as np

        producer = ours(address)
        values = np.full((COLUMN, SIZE), ord("x"), dtype=np.uint8)

        def send(count: int) -> None:
            for _ in range(count // COLUMN):
                producer.send_many(topic, values)
            producer.flush(300)

        return send
    host, _, port = address.rpartition(":")
    sink = socket.create_connection((host, int(port)))
    block = b"x" * (1 << 20)

    def write(count: int) -> None:
        left = count * SIZE
        while left > 0:
            left -= sink.send(block[: min(left, len(block))])

    return write


def latency(who: str, address: str, topic: str) -> dict[str, float]:
    """Produce one message at a time and wait for it."""
    taken: list[float] = []
    producer: Any
    if who == "kbroker":
        producer = ours(address)

        def one() -> None:
            producer.send(topic, VALUE).result(30)
    else:
        producer = theirs(address)

        def one() -> None:
            producer.produce(topic, VALUE)
            if producer.flush(30):
                raise RuntimeError("a message that could not be sent")

    for number in range(6_000):
        started = time.perf_counter()
        one()
        if number >= 1_000:
            taken.append((time.perf_counter() - started) * 1e6)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50_us": cuts[49], "p99_us": cuts[98]}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    load, who, address, topic, count = *sys.argv[1:5], int(sys.argv[5])
    if load == "latency":
        print(json.dumps(latency(who, address, topic)))
        return 0
    send = {"produce": produce, "produce-and-hear": produce_and_hear, "columns": columns}[load](who, address, topic)
    send(WARM if load != "columns" else COLUMN)
    cpu, started = cpu_seconds(), time.perf_counter()
    send(count)
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu_seconds": cpu_seconds() - cpu}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
