"""Compares brokers, lake and audit, hour by hour: `kbroker load --verify`. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import Commit, LakeFile
from kbroker.spark.loader.commits.commit_files import all_commits, change
from kbroker.spark.loader.commits.publish import is_published
from kbroker.spark.loader.errors import LoadFailed, NotALake
from kbroker.spark.loader.hours import UNDATED, hour_name
from kbroker.spark.loader.lake import identity
from kbroker.spark.loader.lake.storage import Directory, ObjectStore, storage_of
from kbroker.spark.loader.plans.brokers import Brokers
from kbroker.spark.loader.plans.plan import ALL_AT_ONCE, to_read
from kbroker.spark.loader.plans.work_units import LEAST_SIZE, divided, target_size
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.tasks.spark_tasks import Tasks
from kbroker.spark.loader.verification.audit import Audited, read_audit
from kbroker.spark.loader.verification.counting import (
    Counts,
    Files,
    Found,
    Key,
    count_files,
    count_unit,
    shared_out,
    sum_of,
)
from kbroker.spark.options.offsets import Offsets


@dataclass
class HourCount:
    """The records of one topic and hour of event time.

    `broker` and `lake` count records at offsets that both should have. `lake_in_all` also counts records that the
    brokers no longer have. `audit` has the counts in the audit, by tier.
    """

    topic: str
    hour: str
    broker: int
    lake: int
    lake_in_all: int
    audit: dict[str, int]
    verdict: str


@dataclass
class Verification:
    """What a comparison has found: the counts by hour, and other problems in words."""

    hours: list[HourCount] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems and all(each.verdict in GOOD for each in self.hours)


SAME, COMPACTED, DIFFERENT, AUDIT_DIFFERS = "same", "compacted", "DIFFERENT", "AUDIT DIFFERS"

OPEN = "open"
"""The audit differs, but more is to be loaded, and the hour is not complete."""

GOOD = (SAME, COMPACTED, OPEN)


class Lake:
    """The contents of a lake as of its `last` commit.

    `files`: by path. `first`: the first loaded offset of each partition. `complete`: hours that are marked so.
    """

    def __init__(self, storage: Directory | ObjectStore):
        self.last: Commit | None = None
        self.files: dict[str, LakeFile] = {}
        self.first: Offsets = {}
        self.complete: set[Key] = set()
        for commit in all_commits(storage):
            self._add(commit)

    def _add(self, commit: Commit) -> None:
        before, self.last = self.last, commit
        if before is not None and before.topics != commit.topics:
            again = {name for name, state in before.topics.items() if commit.topics[name] != state}
            self.first = {place: at for place, at in self.first.items() if place.topic not in again}
        for each in commit.ranges:
            place = TopicPartition(each.topic, each.partition)
            self.first[place] = min(self.first.get(place, each.start), each.start)
        change(self.files, commit)
        self.complete |= {(topic, hour) for topic, hours in commit.complete_hours.items() for hour in hours}


def verify(settings: Settings, tasks: Tasks) -> Verification:
    """Compare the brokers, the audit and what the lake's last commit covers. Loads may go on meanwhile.

    A topic that was deleted or made again since is not compared with the brokers. Raises NotALake when there is no
    lake, and LoadFailed when a topic is named that the lake does not have.
    """
    storage = storage_of(settings)
    if not identity.is_lake(storage):
        raise NotALake(f"{storage.name} is no lake of kbroker load")
    settings = identity.as_made(storage, settings)
    with Brokers(settings) as brokers:
        identity.check(storage, settings, brokers.cluster_id())
        while True:
            lake = Lake(storage)
            if lake.last is None:
                return Verification()
            found = _verified(settings, tasks, brokers, storage, lake, lake.last)
            if found is not None:
                return found


def _verified(
    settings: Settings,
    tasks: Tasks,
    brokers: Brokers,
    storage: Directory | ObjectStore,
    lake: Lake,
    last: Commit,
) -> Verification | None:
    """Return the comparison, or None if files that it is about were replaced meanwhile."""
    coming, leaving = set[str](), set[str]()
    if not is_published(storage, last):
        coming, leaving = {file.staged for file in last.files}, set(last.removed)
    wanted = set(brokers.topics()) if settings.topics or settings.pattern else set(last.topics)
    if strange := set(settings.topics) - last.topics.keys():
        raise LoadFailed(f"{storage.name} has no topic {min(strange)}: there is nothing to compare")
    topics = sorted(wanted & last.topics.keys())
    on_brokers = brokers.still_there(topics)
    there = brokers.partitions(on_brokers)
    known = [place for place in there.ends if there.topic_ids[place.topic] == last.topics[place.topic].topic_id]
    starts = {
        place: min(max(lake.first[place], there.starts[place]), last.next_offsets[place])
        for place in known
        if place in lake.first and last.next_offsets[place] <= there.ends[place]
    }
    ranges = to_read(starts, last.next_offsets, brokers.record_bytes(there, starts), ALL_AT_ONCE)
    compacted = brokers.compacted(on_brokers)
    files = [file for file in lake.files.values() if file.topic in topics]
    units = divided(ranges, target_size(sum(each.size for each in ranges), tasks.slots, settings.task_bytes))
    made = tasks.run(partial(count_unit, settings), units, _weight, _nothing) if units else []
    counted = [each for unit in made for each in unit]
    for each in counted:
        if each.is_gone:
            starts[each.range.place] = max(starts[each.range.place], each.range.start)
    broker = sum_of(each.counts for each in counted if each.range.until > starts[each.range.place])
    what = Files(settings, starts, {name: state.generation for name, state in last.topics.items()}, coming)
    target = target_size(sum(max(file.size, LEAST_SIZE) for file in files), tasks.slots, settings.task_bytes)
    parts = list(shared_out(files, target))
    in_files = tasks.run(partial(count_files, what), parts, _weight, _nothing) if parts else []
    audited = Audited()
    if settings.audit_topic is not None:
        audited = read_audit(settings, settings.audit_topic, identity.lake_id(storage), last.number)
    paths = [path for path, _ in storage.files("")]
    later = list(all_commits(storage, last.number))
    if any(path in lake.files for commit in later for path in commit.removed):
        return None
    result = Verification(problems=[problem for each in in_files for problem in each.problems])
    expected = {*lake.files, *leaving, *(file.path for commit in later for file in commit.files)}
    result.problems += _unexpected(paths, expected, set(topics))
    behind = {place.topic for place, end in there.ends.items() if last.next_offsets.get(place, 0) < end}
    behind |= {each.topic for commit in later for each in commit.ranges}
    result.hours += _compared(
        broker,
        sum_of(each.shared for each in in_files),
        sum_of(each.whole for each in in_files),
        compacted,
        {what: rows for what, rows in audited.items() if what[0] in topics},
        lambda topic, hour: topic in behind and (topic, hour) not in lake.complete,
    )
    return result


def _weight(found: object) -> tuple[int, int]:
    return 0, 0


def _nothing(rows: int, size: int) -> None:
    pass


def _unexpected(paths: Iterable[str], expected: Collection[str], topics: Collection[str]) -> list[str]:
    return [
        f"{path} is of no commit"
        for path in sorted(paths)
        if path.endswith(".parquet") and path not in expected and path.split("/")[0].removeprefix("topic=") in topics
    ]


def _compared(
    broker: Counts,
    lake: Counts,
    lake_in_all: Counts,
    compacted: set[str],
    audited: Audited,
    is_open: Callable[[str, int], bool],
) -> list[HourCount]:
    nothing = Found(0, 0)
    of_audit: dict[Key, dict[str, int]] = {}
    for (topic, tier, hour), rows in audited.items():
        of_audit.setdefault((topic, hour), {})[tier] = rows
    found = []
    for key in sorted({*broker, *lake, *lake_in_all, *of_audit}):
        there, here, whole = broker.get(key, nothing), lake.get(key, nothing), lake_in_all.get(key, nothing)
        if there == here:
            verdict = SAME
        else:
            verdict = COMPACTED if key[0] in compacted and there.rows < here.rows else DIFFERENT
        audit = of_audit.get(key, {})
        if verdict == SAME and any(rows != whole.rows for rows in audit.values()):
            verdict = OPEN if is_open(*key) else AUDIT_DIFFERS
        name = "no date" if key[1] == UNDATED else hour_name(key[1])
        found.append(HourCount(key[0], name, there.rows, here.rows, whole.rows, audit, verdict))
    return found
