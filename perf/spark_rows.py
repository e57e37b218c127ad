"""Rows about Spark, next to its own Kafka connector on the JVM; both read the same kbroker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from uuid import uuid4

from kbroker.client import Producer
from perf import machine
from perf.duel import Figure, absolute, compared, delete_topic
from perf.peers import Kbroker

COUNT = 2_000_000
PARTITIONS = 4
ROUNDS = 2
RUNS = 3
SIDES = ("kbroker", "jvm")
SETTINGS = {"log.segment.delete.delay.ms": 0}

Side = dict[str, dict[str, list[float]]]


def side(who: str, peer: Kbroker, topic: str, loads: list[str], runs: int = RUNS) -> dict[str, dict[str, list[float]]]:
    """What one process of perf.spark_load has measured."""
    command = [sys.executable, "-m", "perf.spark_load", who, peer.address, topic, str(COUNT), str(runs), *loads]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"spark {who} {loads}: {done.stderr[-2000:]}")
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def fill(peer: Kbroker, topic: str, size: int) -> None:
    """COUNT values that differ, without keys."""
    import numpy

    values = numpy.random.default_rng(1).integers(97, 123, (10_000, size), dtype=numpy.uint8)
    column = values.view(f"S{size}").ravel()
    with Producer(bootstrap_servers=peer.address, partitioner="round_robin") as producer:
        for _ in range(COUNT // len(column)):
            producer.send_many(topic, column)


def read() -> list[Figure]:
    """Rows per second of batch reads, and what memory they take."""
    figures = []
    loads = {
        "count": ("count", ">= 1.5", ">= 4"),
        "noop": ("all columns to noop", ">= 1.5", ">= 4"),
        "parquet": ("to Spark's Parquet", ">= 1.2", ">= 2"),
    }
    with Kbroker(SETTINGS) as peer:
        for size in (100, 1024):
            topic = f"spark-{uuid4().hex[:8]}"
            peer.create_topic(topic, PARTITIONS)
            fill(peer, topic, size)
            rates: dict[str, dict[str, list[float]]] = {who: defaultdict(list) for who in SIDES}
            memory: dict[str, dict[str, list[float]]] = {who: defaultdict(list) for who in SIDES}
            for number in range(ROUNDS):
                for who in SIDES if number % 2 else reversed(SIDES):
                    machine.touch_memory()
                    found = side(who, peer, topic, [*loads, "count-8"])
                    seconds = found["seconds"]
                    # Both at their best: with as many tasks as are good for each.
                    seconds["count"] = list(map(min, seconds["count"], seconds.pop("count-8")))
                    for name, runs in seconds.items():
                        rates[who][name] += [COUNT / each / 1000 for each in runs]
                    for kind, most in found["memory"].items():
                        memory[who][kind].append(float(most))  # type: ignore[arg-type]
            for name, (what, must, aim) in loads.items():
                ours, theirs = rates["kbroker"][name], rates["jvm"][name]
                figures.append(compared(f"Spark batch read of {size} B, {what}", ours, theirs, must, aim, "k rows/s"))
            ours, theirs = memory["kbroker"]["jvm"], memory["jvm"]["jvm"]
            figures.append(compared(f"driver's JVM, {size} B", ours, theirs, "<= 1.0", "<= 0.6", "MB"))
            most = memory["kbroker"]["worker"]
            figures.append(absolute(f"the largest worker, {size} B", most, "<= 300", "<= 150", "MB"))
            delete_topic(peer, topic)
    return figures
