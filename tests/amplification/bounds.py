"""The table of what a request may cost: a constant, and a factor for each byte of the request.

The constant is what any request may cost, however short it is: everything that a full broker knows of one thing, and
what the interpreter takes now and then. The factor is for the shortest element of an array, one byte, which becomes an
object, is looked up and is answered with its own error. Bounds have room for slow machines, and are far below anything
that is worth sending as an attack.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.protocol.api import ApiKey
from tests.amplification.figures import ENDED, MIB, Figures

MS = 1_000_000


class Bound(NamedTuple):
    constant: int
    factor: float
    """What is added for each byte of the request."""
    why: str

    def of(self, request: int) -> int:
        return int(self.constant + self.factor * request)


BOUNDS: dict[str, Bound] = {
    "answer": Bound(1 * MIB, 32, "an empty name is answered with its error and nothing else: 30 bytes for one"),
    "memory": Bound(32 * MIB, 96, "an element and its answer as objects, with a place in a list each"),
    "time": Bound(400 * MS, 3000, "an element is read, looked up and answered in Python: 1 us where it is one byte"),
    "stands": Bound(150 * MS, 200, "small requests are served where they were read, others in the interpreter's turns"),
    "written": Bound(256 << 10, 4, "records, with what is written of each batch beside it"),
    "stays": Bound(32 * MIB, 1, "caches and what the allocator keeps; nothing of a connection that is gone"),
}
EXCEPTIONS: dict[tuple[ApiKey, str], Bound] = {
    (ApiKey.FETCH, "stands"): Bound(150 * MS, 100, "served by the processor, compiled: 30 ns for a byte"),
    (ApiKey.OFFSET_COMMIT, "written"): Bound(
        256 << 10,
        256,
        "version 0: each is on disk when it is answered, in up to three pages of the store: no faster than it syncs",
    ),
    (ApiKey.FIND_COORDINATOR, "memory"): Bound(24 * MIB, 16, "a key as a text, with a place in a list"),
    (ApiKey.DESCRIBE_CONFIGS, "answer"): Bound(
        1 * MIB,
        80,
        "8 bytes name a group, there or not: 500 are its settings; 0.2 us a byte, and an answer ends at 100 MB",
    ),
    (ApiKey.CREATE_TOPICS, "answer"): Bound(1 * MIB, 128, "35 bytes name a topic: all its settings (KIP-525)"),
    (ApiKey.CREATE_TOPICS, "time"): Bound(400 * MS, 100_000, "18 bytes name a topic: its folder, its files"),
    (ApiKey.CREATE_TOPICS, "memory"): Bound(32 * MIB, 1_000, "a topic with a partition takes 20 KiB"),
    (ApiKey.CREATE_TOPICS, "stays"): Bound(32 * MIB, 1_000, "a topic with a partition takes 20 KiB"),
    (ApiKey.CREATE_TOPICS, "written"): Bound(256 << 10, 400, "what the store writes of a topic"),
    (ApiKey.WRITE_TXN_MARKERS, "time"): Bound(400 * MS, 8_000, "4 bytes are a batch that is written, and its answer"),
    (ApiKey.WRITE_TXN_MARKERS, "written"): Bound(
        256 << 10, 32, "4 bytes name a partition, 78 are the marker in it, which retention removes"
    ),
}
OF_MEMBERS: dict[tuple[ApiKey, str], Bound] = {
    (ApiKey.LEADER_AND_ISR, "time"): Bound(400 * MS, 60_000, "45 bytes name a partition: its folder, its files"),
    (ApiKey.LEADER_AND_ISR, "memory"): Bound(32 * MIB, 400, "45 bytes name a partition: its log takes 8 KiB"),
    (ApiKey.LEADER_AND_ISR, "stays"): Bound(32 * MIB, 400, "45 bytes name a partition: its log takes 8 KiB"),
}
"""What replaces bounds where the broker is a member of a cluster. The requests of a controller make logs."""


def limit_of(api_key: ApiKey, request: int) -> Figures:
    """Return the upper bounds for a request of `request` bytes."""
    return Figures(**{name: EXCEPTIONS.get((api_key, name), bound).of(request) for name, bound in BOUNDS.items()})


def limit_of_member(api_key: ApiKey, request: int) -> Figures:
    """Return the upper bounds for a request of `request` bytes to a member of a cluster."""
    bounds = {name: EXCEPTIONS.get((api_key, name), bound) for name, bound in BOUNDS.items()}
    return Figures(**{name: OF_MEMBERS.get((api_key, name), bound).of(request) for name, bound in bounds.items()})


def limit_above(figures: Figures) -> Figures:
    """Return bounds of about twice the time of `figures`, and without limits for everything else."""
    return Figures(
        answer=1 << 40, memory=1 << 40, written=1 << 40, stays=1 << 40, stands=1 << 60, time=2 * figures.time + 50 * MS
    )


def excess(figures: Figures, limit: Figures) -> str | None:
    """Return a text of the figures that are over their limit; None if none is."""
    if figures.outcome == ENDED:
        return figures.outcome
    over = [
        f"{name} {getattr(figures, name):,} > {getattr(limit, name):,}"
        for name in BOUNDS
        if getattr(figures, name) > getattr(limit, name)
    ]
    return ", ".join(over) or None
