"""Counts the records of each hour, on brokers and in files, in tasks of `kbroker load --verify`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import LakeFile
from kbroker.spark.loader.errors import RecordsLost
from kbroker.spark.loader.hours import HOUR_MS, UNDATED, is_dated
from kbroker.spark.loader.lake.storage import Directory, ObjectStore, storage_of
from kbroker.spark.loader.plans.work_units import LEAST_SIZE, WorkUnit
from kbroker.spark.loader.settings import FAIL, Settings
from kbroker.spark.loader.tasks.task import first_behind, records_of
from kbroker.spark.options.offsets import Offsets
from kbroker.spark.reading.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow

Key = tuple[str, int]
"""Topic and hour."""


class Found(NamedTuple):
    """The number of rows of an hour, and a sum by which different rows are noticed: of (partition + 1) * offset."""

    rows: int
    checksum: int


Counts = dict[Key, Found]


class RangeCounts(NamedTuple):
    """The rows that the brokers have in `range`.

    `is_gone`: the range begins later than it was asked for, because the records before are gone.
    """

    range: OffsetRange
    counts: Counts
    is_gone: bool


class FileCounts(NamedTuple):
    """The rows in files: all of them (`whole`), and those at offsets that the brokers have too (`shared`).

    `problems`: in words, what is not as the files' commits say.
    """

    whole: Counts
    shared: Counts
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """What all tasks that count files are told.

    `starts`: the first offsets that the brokers have, of the topics' present `generations`. `coming`: paths of files
    that are staged and about to get their names.
    """

    settings: Settings
    starts: Offsets
    generations: Mapping[str, int]
    coming: Collection[str]


def count_unit(settings: Settings, unit: WorkUnit) -> list[RangeCounts]:
    """Count what the brokers have of a unit's ranges. Records that are deleted meanwhile are not counted.

    Raises LoadFailed when a topic was cut off or made again.
    """
    return [_count_range(replace(settings, data_loss=FAIL), each) for each in unit.ranges]


def _count_range(settings: Settings, wanted: OffsetRange) -> RangeCounts:
    left = wanted
    while True:
        found: Counts = {}
        try:
            for records in records_of(settings, left):
                batch = records.arrow(["offset", "timestamp"])
                _count(found, left.topic, left.partition, batch.column("offset"), batch.column("timestamp"))
        except RecordsLost:
            left = left._replace(start=min(first_behind(settings, left.place, left.start), left.until))
        else:
            return RangeCounts(left, found, left != wanted)


def shared_out(files: Iterable[LakeFile], target: int) -> Iterator[list[LakeFile]]:
    """Yield groups of files that have `target` bytes or less together, or of one file that has more."""
    found: list[LakeFile] = []
    size = 0
    for file in files:
        weight = max(file.size, LEAST_SIZE)
        if found and size + weight > target:
            yield found
            found, size = [], 0
        found.append(file)
        size += weight
    if found:
        yield found


def count_files(what: Files, files: Sequence[LakeFile]) -> FileCounts:
    storage = storage_of(what.settings)
    made = [_count_file(what, storage, file) for file in files]
    return FileCounts(
        sum_of(each.whole for each in made),
        sum_of(each.shared for each in made),
        tuple(problem for each in made for problem in each.problems),
    )


def sum_of(counts: Iterable[Counts]) -> Counts:
    rows: Counter[Key] = Counter()
    checksums: Counter[Key] = Counter()
    for each in counts:
        for key, found in each.items():
            rows[key] += found.rows
            checksums[key] += found.checksum
    return {key: Found(count, checksums[key]) for key, count in rows.items()}


def _count_file(what: Files, storage: Directory | ObjectStore, file: LakeFile) -> FileCounts:
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    whole: Counts = {}
    shared: Counts = {}
    rows = 0
    last: dict[int, int] = {}
    source = _opened(storage, [file.staged] * (file.staged in what.coming) + [file.path])
    if source is None:
        return FileCounts({}, {}, (f"{file.path} is gone",))
    with source:
        if (size := source.size()) != file.size:
            return FileCounts({}, {}, (f"{file.path} has {size} bytes and not {file.size}",))
        for batch in parquet.ParquetFile(source).iter_batches(columns=["partition", "offset", "timestamp"]):
            rows += len(batch)
            for part in compute.unique(batch.column("partition")).to_pylist():
                one = batch.filter(compute.equal(batch.column("partition"), part))
                offsets = one.column("offset")
                if offsets[0].as_py() <= last.get(part, -1) or not _rises(offsets):
                    return FileCounts({}, {}, (f"{file.path} has a record of partition {part} twice, or not in order",))
                last[part] = offsets[-1].as_py()
                _count(whole, file.topic, part, offsets, one.column("timestamp"))
                start = what.starts.get(TopicPartition(file.topic, part))
                if start is not None and file.generation == what.generations[file.topic]:
                    one = one.filter(compute.greater_equal(offsets, start))
                    _count(shared, file.topic, part, one.column("offset"), one.column("timestamp"))
    problems = () if rows == file.rows else (f"{file.path} has {rows} rows and not {file.rows}",)
    return FileCounts(whole, shared, problems)


def _opened(storage: Directory | ObjectStore, paths: Iterable[str]) -> Any:
    """Return the first of these files that exists, opened; None if none does."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            return storage.open_input(path)
    return None


def _rises(offsets: pyarrow.Array) -> bool:
    import pyarrow.compute as compute

    return compute.all(compute.greater(offsets[1:], offsets[:-1])).as_py() is not False


def _count(found: Counts, topic: str, partition: int, offsets: pyarrow.Array, stamps: pyarrow.Array) -> None:
    import pyarrow as arrow
    import pyarrow.compute as compute

    stamps = stamps.cast(arrow.int64())
    hours = compute.if_else(is_dated(stamps), compute.divide(stamps, HOUR_MS), arrow.scalar(UNDATED, arrow.int64()))
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
