"""The crash campaign: lives of brokers are cut at any operation, and all promises are checked on what is left on disk.

One seed is one life, cut at many places. What a cut leaves is recovered, sometimes twice, and sometimes lives on and is
cut again, in the middle of its recovery too. Same seed, same run.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from kbroker.errors import KbrokerError
from kbroker.groups.records import offset_value
from kbroker.groups.replay import PartitionReplay
from kbroker.inspection.directory_check import Verifier
from kbroker.inspection.entries import Finding
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.protocol.records import Batch
from kbroker.storage import file_names
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.producer_state import decode_snapshot
from tests.kit.crash.fs import CrashFileSystem, Link, Rename, Unlink
from tests.kit.crash.history import BrokenPromise, Check, batches_of
from tests.kit.crash.life import EXPIRATION_MS, Life, Plan, start
from tests.kit.logs.home import ManualClock
from tests.kit.logs.indexes import wrong_indexes
from tests.kit.logs.quick_disk import UnsyncedFileSystem, quick_directory

CUTS = 10


@dataclass(slots=True)
class Figures:
    """Counts of what a campaign has done."""

    seeds: int = 0
    operations: int = 0
    crashes: int = 0
    recoveries: int = 0
    logs: int = 0
    promises: int = 0

    def add(self, other: Figures) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds, {self.operations} file operations, {self.crashes} crashes, "
            f"{self.recoveries} recoveries of {self.logs} logs, {self.promises} promises checked"
        )


def run_seed(
    seed: int, cuts: int = CUTS, file_system: type[CrashFileSystem] = CrashFileSystem, *, only: int | None = None
) -> Figures:
    """Run one life and its cuts. Raises BrokenPromise with everything that is needed to reproduce it."""
    chance = random.Random(seed)
    plan = Plan.of(chance)
    figures = Figures(seeds=1)
    with quick_directory() as home:
        life = Life(home / "disk", plan, f"life {seed}", file_system=file_system)
        try:
            life.live()
        except (AssertionError, KbrokerError) as failure:
            raise BrokenPromise(
                f"seed {seed} ({plan.name}), {life.fs.around(life.fs.position)}: {failure}"
            ) from failure
        _cut(home, life, cuts, chance, figures, f"seed {seed} ({plan.name})", generation=1)
        figures.operations += life.fs.position - life.first_position
    return figures


def _cut(
    home: Path, life: Life, cuts: int, chance: random.Random, figures: Figures, story: str, generation: int
) -> None:
    positions = _positions(life, cuts, chance)
    for number, position in enumerate(positions):
        killed = chance.random() < 0.15
        disk = home / f"{generation}-{number}"
        if killed:
            life.fs.after_kill(position, disk)
        else:
            life.fs.after_power_cut(position, number, disk)
        told = f"{story}, {'killed' if killed else 'cut'} at operation {position} ({life.fs.around(position)})"
        figures.crashes += 1
        try:
            if generation < 3 and chance.random() < 0.25:
                _live_on(home, disk, life, position, chance, figures, told, generation)
            else:
                recovery = Recovery(disk, life, position, killed=killed, figures=figures)
                recovery.check(twice=chance.random() < 0.4, stop=chance.random() < 0.3)
        except BrokenPromise as failure:
            raise failure if str(failure).startswith("seed") else BrokenPromise(f"{told}: {failure}") from failure
        except (AssertionError, KbrokerError, OSError, ValueError) as failure:
            raise BrokenPromise(f"{told}: {failure!r}") from failure
        shutil.rmtree(disk)


def _positions(life: Life, cuts: int, chance: random.Random) -> list[int]:
    """Draw positions for the cuts: anywhere, but some where names change."""
    first, last = life.first_position, life.fs.position
    changes = [at + 1 for at in range(first, last) if isinstance(life.fs.journal[at], Rename | Unlink | Link)]
    return sorted(
        chance.choice(changes) if changes and chance.random() < 0.3 else chance.randint(first, last)
        for _ in range(cuts)
    )


def _live_on(
    home: Path,
    disk: Path,
    life: Life,
    position: int,
    chance: random.Random,
    figures: Figures,
    told: str,
    generation: int,
) -> None:
    """Let a broker recover from what a cut has left and go on, and cut again: in the recovery or later."""
    again = Life(
        disk, life.plan, f"{life.seed} {position}", file_system=type(life.fs),
        catalogue=life.catalogue.carried_over(position),
        histories={key: history.carried_over(position) for key, history in life.histories.items()},
        now_ms=life.now_at(position), tombstones=life.tombstones,
    )  # fmt: skip
    again.live(steps=chance.choice((0, 0, 10, 30)), lives=1)
    figures.operations += again.fs.position - again.first_position
    _cut(home, again, chance.choice((1, 3)), chance, figures, told, generation + 1)


class Recovery:
    """A broker that starts on what a crash has left, and the checks of it."""

    def __init__(self, disk: Path, life: Life, position: int, *, killed: bool, figures: Figures):
        self.disk, self.life, self.position, self.killed, self.figures = disk, life, position, killed, figures
        self.clock = ManualClock(life.now_at(position))

    def check(self, *, twice: bool, stop: bool) -> None:
        if twice:
            self._recover_twice()
        logs = self._start()
        try:
            present = {at: self._check_log(logs, at, topic_id) for at, topic_id in self._expected()}
            self._check_groups(logs, present)
            if stop:
                logs.stop()
            else:
                logs.write_checkpoints()
        finally:
            logs.abandon()
        findings = list(self._findings())
        self._hold(not findings, f"verify-log finds {len(findings)} problems, stopped: {stop}: {findings[:2]}")
        for path in self.disk.glob("*/*-[0-9]"):
            wrong = wrong_indexes(path)
            self._hold(not wrong, f"{len(wrong)} wrong index entries: {wrong[:1]}")

    def _findings(self) -> Iterator[Finding]:
        """The findings of `kbroker verify-log`, without those of files that may be damaged, as unused snapshots."""
        # A compacted log may have lost what was unflushed in its middle; names in any order cut holes.
        plan = self.life.plan
        verifier = Verifier(has_gaps=plan.reorder or any(topic.options.compacted for topic in plan.topics))
        for directory in sorted(self.disk.iterdir()):
            for finding in verifier.check(directory):
                if not _may_change(Path(finding.path)):
                    yield finding

    def _hold(self, condition: bool, text: str) -> None:
        self.figures.promises += 1
        if not condition:
            raise BrokenPromise(text)

    def _start(self) -> LogManager:
        self.figures.recoveries += 1
        logs = start(
            UnsyncedFileSystem(),
            self.disk,
            self.life.plan,
            self.life.catalogue,
            self.position,
            self.clock,
            f"{self.life.seed} {self.position} {self.figures.recoveries}",
        )
        for entry in self.life.catalogue.state_at(self.position).values():
            if entry.state == "doomed":
                for topic in self.life.plan.topics:
                    for number in range(topic.partition_count * (topic.name == entry.name)):
                        logs.delete(TopicPartition(topic.name, number))
        return logs

    def _expected(self) -> list[tuple[TopicPartition, object]]:
        counts = {topic.name: topic.partition_count for topic in self.life.plan.topics}
        return [
            (TopicPartition(entry.name, number), entry.topic_id)
            for entry in self.life.catalogue.state_at(self.position).values()
            if entry.state == "here"
            for number in range(counts[entry.name])
        ]

    def _open(self, logs: LogManager, at: TopicPartition, topic_id: object) -> Log:
        log = logs.create(at.topic, topic_id, at.partition_id, self.life.options[at.topic])  # type: ignore[arg-type]
        log.open()
        return log

    def _recover_twice(self) -> None:
        """Check that a second recovery changes nothing.

        A damaged snapshot is removed when it is first read, whenever that is. Indexes that were trusted may be made
        anew: they are right before and after, and not always the same.
        """
        was_unclean = not any(self.disk.glob("*/.kafka_cleanshutdown"))
        trees = []
        for _ in range(2):
            logs = self._start()
            for at, topic_id in self._expected():
                self._open(logs, at, topic_id)
            logs.abandon()
            trees.append({path: path.read_bytes() for path in self.disk.glob("*/*/*") if not _may_change(path)})
        changed = [str(path) for path in trees[0].keys() | trees[1].keys() if trees[0].get(path) != trees[1].get(path)]
        self._hold(not was_unclean or not changed, f"a second recovery changed {changed}")

    def _check_log(self, logs: LogManager, at: TopicPartition, topic_id: object) -> Check:
        log = self._open(logs, at, topic_id)
        check = Check(
            log, self.life.histories[topic_id, at.partition_id], self.position, self.killed,  # type: ignore[index]
            log.options.flush_messages, self.life.plan.reorder, self.clock.now_ms - EXPIRATION_MS,
        )  # fmt: skip
        check.run()
        check.goes_on(self.clock.now_ms)
        self.figures.logs += 1
        self.figures.promises += check.checked
        return check

    def _check_groups(self, logs: LogManager, checks: dict[TopicPartition, Check]) -> None:
        """Check by the broker's own replay that no committed offset of a group is ahead of what was acknowledged."""
        offsets = checks.get(TopicPartition(GROUP_OFFSETS_TOPIC, 0))
        orders = checks.get(TopicPartition("orders", 0))
        if offsets is None or orders is None:
            return
        replay = PartitionReplay("offsets")
        for batch in batches_of(offsets.log):
            assert isinstance(batch, Batch)
            if batch.info.base_offset + 1 < offsets.log.log_end_offset:  # but not the one of this check
                replay.apply_batch(batch)
        newest = {row[0]: row[1] for _, row in sorted(offsets.present.items())}
        sent = orders.history.reached(self.position)
        for group_id, _, committed in replay.groups():
            for partition, at in committed.committed.items():
                value = offset_value(at)
                self._hold(value in newest.values(), f"group {group_id} has {at}, which is not its newest")
                self._hold(at.offset <= sent, f"group {group_id} is at {at.offset} of {partition}, ahead of {sent}")
                if orders.flush_messages == 1 and not orders.history.was_truncated:
                    self._hold(
                        at.offset <= orders.log.log_end_offset, f"group {group_id} is at {at.offset}, beyond the log"
                    )


def _may_change(path: Path) -> bool:
    if path.suffix != file_names.SNAPSHOT:
        return path.suffix in (file_names.INDEX, file_names.TIME_INDEX)
    try:
        decode_snapshot(path.read_bytes())
    except ValueError:
        return True
    return False
