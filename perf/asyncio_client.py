"""Runs one asyncio client, in a process of its own.

    python -m perf.asyncio_client kbroker produce HOST:PORT TOPIC COUNT SIZE

Prints as JSON what it took. aiokafka is at its best here: batches of 128 KiB that linger for 5 ms, many records a call.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

Work = Callable[[str, str, int, int], Coroutine[Any, Any, None]]
RECORDS_A_CALL = 10_000


async def kbroker_produce(address: str, topic: str, count: int, size: int) -> None:
    from kbroker.client import AsyncProducer

    value = b"x" * size
    async with AsyncProducer(bootstrap_servers=address, acks=1) as producer:
        for _ in range(count):
            await producer.send(topic, value)


async def aiokafka_produce(address: str, topic: str, count: int, size: int) -> None:
    from aiokafka import AIOKafkaProducer

    value = b"x" * size
    async with AIOKafkaProducer(
        bootstrap_servers=address, acks=1, linger_ms=5, max_batch_size=131_072, max_request_size=1 << 20
    ) as producer:
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()


async def kbroker_consume(address: str, topic: str, count: int, size: int) -> None:
    from kbroker.client import AsyncConsumer

    seen = 0
    async with AsyncConsumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        await consumer.assign_topics(topic)
        async for record in consumer:
            seen += len(record.value or b"") == size
            if seen == count:
                break


async def aiokafka_consume(address: str, topic: str, count: int, size: int) -> None:
    from aiokafka import AIOKafkaConsumer

    seen = 0
    async with AIOKafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=RECORDS_A_CALL)).values():
                for record in records:
                    seen += len(record.value or b"") == size


WORK: dict[tuple[str, str], Work] = {
    ("kbroker", "produce"): kbroker_produce,
    ("kbroker", "consume"): kbroker_consume,
    ("aiokafka", "produce"): aiokafka_produce,
    ("aiokafka", "consume"): aiokafka_consume,
}


def main() -> None:
    client, what, address, topic, count, size = sys.argv[1:]
    import_module("kbroker.client.aio.consumer" if client == "kbroker" else "aiokafka")  # before the clocks start
    started, cpu = time.perf_counter(), time.process_time()
    asyncio.run(asyncio.wait_for(WORK[client, what](address, topic, int(count), int(size)), 280))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"msgs_per_s": int(count) / seconds, "cpu_us": cpu / int(count) * 1e6}))


if __name__ == "__main__":
    main()
