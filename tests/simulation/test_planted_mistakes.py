"""The simulator finds what has gone wrong in Kafka before: each mistake is planted in the real code, and must be found.

What each broke is in the issue that is named. A mistake is looked for in histories of the faults that bring it about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.cluster import fenced_writes
from kbroker.coordination import paths
from kbroker.coordination.store import EventKind, WatchEvent
from kbroker.rules import follower
from kbroker.rules.follower import LogView, TruncateTo
from tests.simulation.simulation import Outcome, Plan, run_seed
from tests.simulation.tree import TreeServer

SEEDS = 60


def found(faults: tuple[str, ...], *, seeds: int = SEEDS, **changes: Any) -> Outcome:
    """Run seeds with these faults only, until a promise is broken."""
    for seed in range(seeds):
        outcome = run_seed(seed, plan=replace(Plan.of(seed), faults=faults, **changes))
        if outcome.broken:
            return outcome
    raise AssertionError(f"not found in {seeds} seeds")


def test_truncation_to_the_high_watermark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-1211, KIP-101: a follower that restarts cuts off what is committed, and is elected."""

    def first_step(log: LogView) -> TruncateTo | None:
        return TruncateTo(log.high_watermark) if log.log_end_offset > log.high_watermark else None

    monkeypatch.setattr(follower, "first_step", first_step)
    found(("kill", "pause", "tree"))


def test_an_unfenced_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-6082: a controller that was paused goes on writing states after another one was elected."""
    init = fenced_writes.FencedWrites.__init__

    def without_check(self: Any, *args: Any) -> None:
        init(self, *args)
        self._check = fenced_writes.Check(paths.CONTROLLER_EPOCH)

    monkeypatch.setattr(fenced_writes.FencedWrites, "__init__", without_check)
    found(("pause", "tree", "lie"))


def test_a_missed_watch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that is not told of a broker's end elects nobody in its place."""

    def drops(self: Any, served: Any, event: WatchEvent) -> bool:
        return (
            event.kind is EventKind.CHILDREN and event.path == paths.BROKER_IDS and self.scheduler.chance.random() < 0.5
        )

    init = TreeServer.__init__

    def made(self: Any, *args: Any) -> None:
        init(self, *args)
        self.drop_event = lambda served, event: drops(self, served, event)

    monkeypatch.setattr(TreeServer, "__init__", made)
    found(("tree", "cut"))
