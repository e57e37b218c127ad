"""Compares brokers, lake and audit, hour by hour: `kbroker load --verify`. It changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker.model import TopicPartition
from kbroker.spark.loader import identity
from kbroker.spark.loader.audit import Audited, read_audit
from kbroker.spark.loader.brokers import Brokers
from kbroker.spark.loader.commits import Commit, LakeFile, all_commits, files_now
from kbroker.spark.loader.errors import NotALake
from kbroker.spark.loader.hours import HOUR_MS, LAST_MS, hour_name
from kbroker.spark.loader.lake import storage_of
from kbroker.spark.loader.plan import to_read
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.task import records_of
from kbroker.spark.loader.work import WorkUnit, divided, target_size
from kbroker.spark.offsets import Offsets

if TYPE_CHECKING:
    import pyarrow

    from kbroker.spark.loader.run import Tasks

UNDATED = -1
"""In place of the hour of records whose timestamps are no dates."""

Key = tuple[str, int]
"""Topic and hour."""


class Found(NamedTuple):
    """What there is of an hour: how many rows, and the sum of (partition + 1) * offset, which tells rows apart."""

    rows: int
    checksum: int


@dataclass
class HourCount:
    """Of one topic and hour of event time. `broker` and `lake`: of those offsets that both should have.

    `lake_in_all` counts those too that the brokers no longer have. `audit`: by tier, what was said to be there.
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
    """`problems` in words, beside those of hours; none: all is as it should be."""

    hours: list[HourCount] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems and all(each.verdict in (SAME, COMPACTED) for each in self.hours)


SAME, COMPACTED, DIFFERENT, AUDIT_DIFFERS = "same", "compacted", "DIFFERENT", "AUDIT DIFFERS"


def verify(settings: Settings, tasks: Tasks) -> Verification:
    """NotALake: there is none."""
    storage = storage_of(settings)
    if not identity.is_lake(storage):
        raise NotALake(f"{storage.name} is no lake of kbroker load")
    with Brokers(settings) as brokers:
        identity.check(storage, settings, brokers.cluster_id())
        last = None
        first: Offsets = {}
        before: Commit | None = None
        for last in all_commits(storage):
            _note_firsts(first, before, last)
            before = last
        if last is None:
            return Verification()
        wanted = set(brokers.topics()) if settings.topics or settings.pattern else set(last.topics)
        topics = sorted(wanted & last.topics.keys())
        there = brokers.partitions(topics)
        starts = {
            place: min(max(first[place], there.starts[place]), last.next_offsets[place])
            for place in there.ends
            if place in first and last.next_offsets[place] <= there.ends[place]
        }
        ranges = to_read(starts, last.next_offsets, brokers.record_bytes(there, starts), 1 << 62)
        compacted = brokers.compacted(topics)
    result = Verification()
    files = [file for file in files_now(storage).values() if file.topic in topics]
    result.problems += _missing(dict(storage.files("")), files, set(topics))
    units = divided(ranges, target_size(sum(each.size for each in ranges), tasks.slots, settings.task_bytes))
    broker = _sum(tasks.run(partial(_count_unit, settings), units, _weight, _nothing)) if units else {}
    kept = [file for file in files if not any(file.path in problem for problem in result.problems)]
    current = {name: state.generation for name, state in last.topics.items()}
    made = tasks.run(partial(_count_file, settings, starts, current), kept, _weight, _nothing) if kept else []
    lake, lake_in_all = _sum(each.shared for each in made), _sum(each.whole for each in made)
    result.problems += [each.problem for each in made if each.problem]
    audited = read_audit(settings, settings.audit_topic) if settings.audit_topic is not None else {}
    result.hours += _compared(broker, lake, lake_in_all, compacted, audited, set(topics))
    return result


def _note_firsts(first: Offsets, before: Commit | None, commit: Commit) -> None:
    """Where what the lake has of each partition begins, after one more commit."""
    if before is not None and before.topics != commit.topics:
        again = {name for name, state in before.topics.items() if commit.topics[name] != state}
        for place in [place for place in first if place.topic in again]:
            del first[place]
    for each in commit.ranges:
        place = TopicPartition(each.topic, each.partition)
        first[place] = min(first.get(place, each.start), each.start)


def _missing(there: Mapping[str, int], files: Iterable[LakeFile], topics: set[str]) -> list[str]:
    problems = []
    known = set()
    for file in files:
        known.add(file.path)
        if file.path not in there:
            problems.append(f"{file.path} is gone")
        elif there[file.path] != file.size:
            problems.append(f"{file.path} has {there[file.path]} bytes and not {file.size}")
    for path in sorted(there):
        topic = path.split("/")[0].removeprefix("topic=")
        if path.endswith(".parquet") and path not in known and topic in topics:
            problems.append(f"{path} is of no commit")
    return problems


# --- counting, in tasks -----------------------------------------------------------------------------------

Counts = dict[Key, Found]


class FileCounts(NamedTuple):
    """`shared`: of offsets that the brokers have, too."""

    whole: Counts
    shared: Counts
    problem: str


def _count_unit(settings: Settings, unit: WorkUnit) -> Counts:
    """What the brokers have."""
    found: Counts = {}
    for each in unit.ranges:
        for records in records_of(settings, each):
            batch = records.arrow(["offset", "timestamp"])
            _count(found, each.topic, each.partition, batch.column("offset"), batch.column("timestamp"))
    return found


def _count_file(settings: Settings, starts: Offsets, generations: Mapping[str, int], file: LakeFile) -> FileCounts:
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    whole: Counts = {}
    shared: Counts = {}
    rows = 0
    last: dict[int, int] = {}
    with storage_of(settings).open_input(file.path) as source:
        for batch in parquet.ParquetFile(source).iter_batches(columns=["partition", "offset", "timestamp"]):
            rows += len(batch)
            for part in compute.unique(batch.column("partition")).to_pylist():
                one = batch.filter(compute.equal(batch.column("partition"), part))
                offsets = one.column("offset")
                if offsets[0].as_py() <= last.get(part, -1) or not _rises(offsets):
                    return FileCounts({}, {}, f"{file.path} has a record of partition {part} twice, or not in order")
                last[part] = offsets[-1].as_py()
                _count(whole, file.topic, part, offsets, one.column("timestamp"))
                start = starts.get(TopicPartition(file.topic, part))
                if start is not None and file.generation == generations[file.topic]:
                    one = one.filter(compute.greater_equal(offsets, start))
                    _count(shared, file.topic, part, one.column("offset"), one.column("timestamp"))
    problem = "" if rows == file.rows else f"{file.path} has {rows} rows and not {file.rows}"
    return FileCounts(whole, shared, problem)


def _rises(offsets: pyarrow.Array) -> bool:
    import pyarrow.compute as compute

    return compute.all(compute.greater(offsets[1:], offsets[:-1])).as_py() is not False


def _count(found: Counts, topic: str, partition: int, offsets: pyarrow.Array, stamps: pyarrow.Array) -> None:
    import pyarrow as arrow
    import pyarrow.compute as compute

    stamps = stamps.cast(arrow.int64())
    dated = compute.and_(compute.greater_equal(stamps, 0), compute.less_equal(stamps, LAST_MS))
    hours = compute.if_else(dated, compute.divide(stamps, HOUR_MS), arrow.scalar(UNDATED, arrow.int64()))
    table = (
        arrow.table({"hour": hours, "offset": offsets})
        .group_by("hour")
        .aggregate([("offset", "sum"), ("offset", "count")])
    )
    for hour, total, count in zip(
        *(table.column(n).to_pylist() for n in ("hour", "offset_sum", "offset_count")), strict=True
    ):
        before = found.get((topic, hour), Found(0, 0))
        found[(topic, hour)] = Found(before.rows + count, before.checksum + (partition + 1) * total)


def _weight(found: object) -> tuple[int, int]:
    return 0, 0


def _nothing(rows: int, size: int) -> None:
    pass


# --- comparing --------------------------------------------------------------------------------------------


def _sum(counts: Iterable[Counts]) -> Counts:
    rows: Counter[Key] = Counter()
    checksums: Counter[Key] = Counter()
    for each in counts:
        for key, found in each.items():
            rows[key] += found.rows
            checksums[key] += found.checksum
    return {key: Found(count, checksums[key]) for key, count in rows.items()}


def _compared(
    broker: Counts,
    lake: Counts,
    lake_in_all: Counts,
    compacted: set[str],
    audited: Audited,
    topics: set[str],
) -> list[HourCount]:
    nothing = Found(0, 0)
    of_audit: dict[Key, dict[str, int]] = {}
    for (topic, tier, hour), rows in audited.items():
        if topic in topics:
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
            verdict = AUDIT_DIFFERS
        name = "no date" if key[1] == UNDATED else hour_name(key[1])
        found.append(HourCount(key[0], name, there.rows, here.rows, whole.rows, audit, verdict))
    return found
