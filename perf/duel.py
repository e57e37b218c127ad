"""Two brokers side by side in one run, and the table of figures that comes out of it."""

from __future__ import annotations

import operator
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf import machine
from perf.peers import Before, Kafka, Kbroker, Peer

Measured = dict[str, float]
Runs = dict[str, list[float]]
CEILING = 0.95  # a throughput row also holds when the client itself reaches this share of what it can do
BEFORE_ROUNDS = 7
COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """One line of the table. `ratio` is ours : the other's (or the figure itself); bounds are like '>= 1.0'.

    `ceiling`, of a throughput row: the share of its own ceiling that the client reached with kbroker.
    """

    what: str
    ours: str
    other: str
    ratio: float
    must: str
    aim: str
    ceiling: float = 0.0

    def holds(self, bound: str) -> bool:
        if not bound or (bound == self.must and self.ceiling >= CEILING):
            return True
        sign, _, number = bound.partition(" ")
        return bool(COMPARE[sign](round(self.ratio, 3), float(number)))

    @property
    def verdict(self) -> str:
        if not self.holds(self.must):
            return "**missed**"
        if self.aim and self.holds(self.aim):
            return "aim"
        if not self.must:
            return "aim missed" if self.aim else ""
        return f"must (the client at {self.ceiling:.2f} of its ceiling)" if self.ceiling >= CEILING else "must"


def compared(
    what: str,
    ours: Sequence[float],
    other: Sequence[float],
    must: str = "",
    aim: str = "",
    unit: str = "",
    ceiling: float = 0.0,
) -> Figure:
    """Return a figure that is judged by the median, over the rounds, of the ratio of ours to the other's.

    The runs of a round are neighbours in time: what slows the machine for a while slows both. The medians that are
    shown may come from different rounds.
    """
    ratio = statistics.median(a / b if b else 0.0 for a, b in zip(ours, other, strict=True))
    return Figure(what, shown(ours, unit), shown(other, unit), ratio, must, aim, ceiling)


def absolute(
    what: str, ours: Sequence[float], must: str, aim: str, unit: str = "", other: Sequence[float] = ()
) -> Figure:
    """Return a figure that is judged by itself: by its median over the rounds."""
    return Figure(what, shown(ours, unit), shown(other, unit) if other else "", statistics.median(ours), must, aim)


def shown(runs: Sequence[float], unit: str) -> str:
    return f"{statistics.median(runs):,.4g} {unit}".strip()


class Duel:
    """kbroker and Apache Kafka, both running, loaded in turn: A B, B A, A B. A context manager.

    With `Duel.before`, the kbroker of that checkout is the peer instead of Kafka.
    """

    before: ClassVar[Path | None] = None

    def __init__(
        self,
        overrides: dict[str, object] | None = None,
        kbroker_only: dict[str, object] | None = None,
        kafka: type[Kafka] = Kafka,
    ):
        both = {"log.segment.delete.delay.ms": 0, **(overrides or {})}
        ours = {**both, **(kbroker_only or {})}
        self.ours = Kbroker(ours)
        self.peer: Peer = kafka(both) if self.before is None else Before(self.before, ours)
        self.stack = ExitStack()
        self.topics = 0

    def __enter__(self) -> Duel:
        self.stack.enter_context(self.ours)
        self.stack.enter_context(self.peer)
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def new_topic(self, peer: Peer, partitions: int, config: dict[str, str] | None = None) -> str:
        self.topics += 1
        topic = f"bench-{self.topics}"
        peer.create_topic(topic, partitions, config)
        return topic

    def alternate(
        self, load: Callable[[Peer], Measured], rounds: int = 3, warm_up: bool = True, writes: bool = True
    ) -> tuple[Runs, Runs]:
        """Return what `load` measures in each round, for kbroker and for its peer. `writes`: it writes much to files.

        Beside another kbroker there are at least BEFORE_ROUNDS rounds, since a few per cent are to be seen.
        """

        def measured(peer: Peer) -> Measured:
            if writes:
                machine.touch_memory()
            return load(peer)

        if warm_up:
            measured(self.peer)
            measured(self.ours)
        ours: Runs = defaultdict(list)
        other: Runs = defaultdict(list)
        both = [(self.ours, ours), (self.peer, other)]
        for number in range(rounds if self.before is None else max(rounds, BEFORE_ROUNDS)):
            for peer, runs in both if number % 2 == 0 else reversed(both):
                for key, value in measured(peer).items():
                    runs[key].append(value)
        return ours, other


def delete_topic(peer: Peer, topic: str) -> None:
    """Delete a topic, and wait until its files are gone, before the next run starts."""
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
