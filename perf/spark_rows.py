"""Rows about Spark, next to its own Kafka connector on the JVM; both read the same kbroker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from typing import Any
from uuid import uuid4

from kbroker.client import Producer
from perf import machine
from perf.duel import Figure, absolute, compared, delete_topic
from perf.peers import Kbroker

COUNTS = {100: 4_000_000, 1024: 2_000_000}
"""The number of rows, by the size of their values."""

PARTITIONS = 4
ROUNDS = 2
RUNS = 3
WRITE_RUNS = 2
SIDES = ("kbroker", "jvm")
SETTINGS = {"log.segment.delete.delay.ms": 0}


def side(who: str, peer: Kbroker, topic: str, count: int, loads: list[str], runs: int) -> dict[str, dict[str, Any]]:
    """Return what one process of perf.spark_load has measured."""
    command = [sys.executable, "-m", "perf.spark_load", who, peer.address, topic, str(count), str(runs), *loads]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"spark {who} {loads}: {done.stderr[-2000:]}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def fill(peer: Kbroker, topic: str, size: int) -> None:
    """Produce records with different values and without keys."""
    import numpy

    values = numpy.random.default_rng(1).integers(97, 123, (10_000, size), dtype=numpy.uint8)
    column = values.view(f"S{size}").ravel()
    with Producer(bootstrap_servers=peer.address, partitioner="round_robin") as producer:
        for _ in range(COUNTS[size] // len(column)):
            producer.send_many(topic, column)


class Duel:
    """Runs both sides in turns, in processes of their own. Has the rates and seconds of each load, and the memory."""

    def __init__(
        self, peer: Kbroker, topic: str, size: int, ours: list[str], theirs: list[str] | None = None, runs: int = RUNS
    ):
        loads = {"kbroker": ours, "jvm": theirs or ours}
        count = COUNTS[size]
        self.rates: dict[str, dict[str, list[float]]] = {who: defaultdict(list) for who in SIDES}
        self.seconds: dict[str, dict[str, list[float]]] = {who: defaultdict(list) for who in SIDES}
        self.memory: dict[str, dict[str, list[float]]] = {who: defaultdict(list) for who in SIDES}
        for number in range(ROUNDS):
            for who in SIDES if number % 2 else reversed(SIDES):
                machine.touch_memory()
                found = side(who, peer, topic, count, loads[who], runs)
                for name, seconds in found["seconds"].items():
                    self.seconds[who][name] += seconds
                    self.rates[who][name] += [count / each / 1000 for each in seconds]
                for kind, most in found["memory"].items():
                    self.memory[who][kind].append(most)

    def best(self, who: str, *names: str) -> list[float]:
        """Return the rate of each run, with the best of these loads in it."""
        return list(map(max, *(self.rates[who][name] for name in names)))

    def compared(self, what: str, name: str, must: str, aim: str) -> Figure:
        return compared(what, self.rates["kbroker"][name], self.rates["jvm"][name], must, aim, "k rows/s")


def filled_topic(peer: Kbroker, size: int) -> str:
    topic = f"spark-{uuid4().hex[:8]}"
    peer.create_topic(topic, PARTITIONS)
    fill(peer, topic, size)
    return topic


def read() -> list[Figure]:
    """Rows per second of batch reads, and what memory they take."""
    figures = []
    with Kbroker(SETTINGS) as peer:
        for size in COUNTS:
            topic = filled_topic(peer, size)
            duel = Duel(peer, topic, size, ["count", "count-8", "noop", "parquet"])
            # Both are at their best: each has as many tasks as are good for it.
            ours, theirs = (duel.best(who, "count", "count-8") for who in SIDES)
            what = f"Spark batch read of {size} B"
            figures += [
                compared(f"{what}, count", ours, theirs, ">= 1.5", ">= 4", "k rows/s"),
                duel.compared(f"{what}, all columns to noop", "noop", ">= 1.5", ">= 4"),
                duel.compared(f"{what}, to Spark's Parquet", "parquet", ">= 1.2", ">= 2"),
            ]
            ours, theirs = (duel.memory[who]["jvm"] for who in SIDES)
            figures.append(compared(f"{what}: memory of the driver", ours, theirs, "<= 1.0", "<= 0.6", "MB"))
            workers = duel.memory["kbroker"]["worker"]
            figures.append(absolute(f"{what}: memory of the largest task", workers, "<= 300", "<= 150", "MB"))
            delete_topic(peer, topic)
    return figures


def lake() -> list[Figure]:
    """The loader next to the JVM connector with Spark's Parquet writer, with their default codecs and with the same."""
    figures = []
    with Kbroker(SETTINGS) as peer:
        for size in COUNTS:
            topic = filled_topic(peer, size)
            duel = Duel(peer, topic, size, ["lake-zstd", "lake-snappy"])
            rates, workers = duel.rates["kbroker"], duel.memory["kbroker"]["worker"]
            for ours, theirs in (("zstd", "snappy"), ("zstd", "zstd"), ("snappy", "snappy")):
                what = f"kbroker load of {size} B, {ours} : JVM connector + Spark's Parquet, {theirs}"
                others = duel.rates["jvm"][f"lake-{theirs}"]
                must, aim = (">= 4", ">= 8") if ours == theirs else ("", "")  # files of different sizes
                figures.append(compared(what, rates[f"lake-{ours}"], others, must, aim, "k rows/s"))
            what = f"kbroker load of {size} B"
            if size == 100:
                figures.append(absolute(what, rates["lake-zstd"], ">= 2000", ">= 4000", "k rows/s"))
            figures.append(absolute(f"{what}: memory of the largest task", workers, "<= 300", "<= 150", "MB"))
            delete_topic(peer, topic)
    return figures


def write() -> list[Figure]:
    """Rows of 100 B that Spark makes itself, into a topic."""
    with Kbroker(SETTINGS) as peer:
        topic = f"spark-{uuid4().hex[:8]}"
        peer.create_topic(topic, PARTITIONS)
        duel = Duel(peer, topic, 100, ["discard", "write"], ["write", "write-tuned"], WRITE_RUNS)
    ours, most = duel.rates["kbroker"]["write"], duel.rates["kbroker"]["discard"]
    what = "Spark batch write of 100 B"
    return [
        duel.compared(what, "write", ">= 1.5", ">= 2"),
        compared(f"{what} : the other one tuned", ours, duel.rates["jvm"]["write-tuned"], ">= 0.6", "", "k rows/s"),
        compared(f"{what} : a sink that discards", ours, most, "", ">= 0.9", "k rows/s"),
    ]


def latency() -> list[Figure]:
    """The time of a micro-batch that has hardly anything to do."""
    with Kbroker(SETTINGS) as peer:
        topic = f"spark-{uuid4().hex[:8]}"
        peer.create_topic(topic, PARTITIONS)
        duel = Duel(peer, topic, 100, ["latency"])
    ours, theirs = (duel.seconds[who]["latency"] for who in SIDES)
    count = min(len(ours), len(theirs))
    ours, theirs = ([each * 1000 for each in sorted(found)[:: len(found) // count][:count]] for found in (ours, theirs))
    return [compared("Spark micro-batch, noop sink", ours, theirs, "<= 1.2", "<= 1.0", "ms")]
