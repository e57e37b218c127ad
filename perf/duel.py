"""Two brokers side by side in one run, and the table of figures that comes out of it."""

from __future__ import annotations

import operator
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from perf import machine
from perf.peers import Kafka, Kbroker, Peer

Measured = dict[str, float]
COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """One line of the table. `ratio` is ours : the other's (or the figure itself); bounds are like '>= 1.0'."""

    what: str
    ours: str
    other: str
    ratio: float
    must: str
    aim: str

    def holds(self, bound: str) -> bool:
        if not bound:
            return True
        sign, _, number = bound.partition(" ")
        return bool(COMPARE[sign](round(self.ratio, 3), float(number)))

    @property
    def verdict(self) -> str:
        if not self.must:
            return ""
        if not self.holds(self.must):
            return "**missed**"
        return "aim" if self.holds(self.aim) else "must"


def compared(what: str, ours: float, other: float, must: str, aim: str, unit: str = "") -> Figure:
    """A figure that is judged by the ratio of ours to the other's."""
    return Figure(
        what, f"{ours:,.4g} {unit}".strip(), f"{other:,.4g} {unit}".strip(), ours / other if other else 0.0, must, aim
    )


def absolute(what: str, ours: float, must: str, aim: str, unit: str = "", other: str = "") -> Figure:
    """A figure that is judged as it is."""
    return Figure(what, f"{ours:,.4g} {unit}".strip(), other, ours, must, aim)


class Duel:
    """kbroker and Apache Kafka, both started, loaded in turn: A B, B A, A B. A context manager."""

    def __init__(self, overrides: dict[str, object] | None = None, kbroker_only: dict[str, object] | None = None):
        both = {"log.segment.delete.delay.ms": 0, **(overrides or {})}
        self.ours = Kbroker({**both, **(kbroker_only or {})})
        self.kafka = Kafka(both)
        self.stack = ExitStack()
        self.topics = 0

    def __enter__(self) -> Duel:
        self.stack.enter_context(self.ours)
        self.stack.enter_context(self.kafka)
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def new_topic(self, peer: Peer, partitions: int, config: dict[str, str] | None = None) -> str:
        self.topics += 1
        topic = f"bench-{self.topics}"
        peer.create_topic(topic, partitions, config)
        return topic

    def alternate(
        self, load: Callable[[Peer], Measured], rounds: int = 3, warm_up: bool = True
    ) -> tuple[Measured, Measured]:
        """Medians of what `load` measures, for kbroker and for Kafka."""

        def measured(peer: Peer) -> Measured:
            machine.touch_memory()
            return load(peer)

        if warm_up:
            measured(self.kafka)
            measured(self.ours)
        results: dict[str, list[Measured]] = {self.ours.name: [], self.kafka.name: []}
        for number in range(rounds):
            order = [self.ours, self.kafka] if number % 2 == 0 else [self.kafka, self.ours]
            for peer in order:
                results[peer.name].append(measured(peer))
        return medians(results[self.ours.name]), medians(results[self.kafka.name])


def medians(runs: list[Measured]) -> Measured:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def delete_topic(peer: Peer, topic: str) -> None:
    """And its files, before the next run starts."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": peer.address})
    admin.delete_topics([topic])[topic].result(60)
    deadline = time.monotonic() + 30
    while any((peer.folder / "data").glob(f"{topic}-*")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{peer.name} keeps the files of {topic}")
        time.sleep(0.05)


def free_space_gb(peer: Peer) -> float:
    return shutil.disk_usage(peer.folder).free / 1e9
