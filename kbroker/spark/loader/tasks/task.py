"""What one Spark task does: reads ranges of offsets and writes files that nobody sees yet. Runs on executors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.spark.errors import without_traceback
from kbroker.spark.loader.commits.commit import LakeFile, LoadedRange
from kbroker.spark.loader.errors import LoadFailed, RecordsLost, storage_errors
from kbroker.spark.loader.hours import HOUR_MS, by_hour
from kbroker.spark.loader.lake.storage import storage_of
from kbroker.spark.loader.plans.work_units import WorkUnit
from kbroker.spark.loader.settings import ARRIVAL, CONTINUE, Settings
from kbroker.spark.loader.tasks.hour_files import HourFiles
from kbroker.spark.loader.tasks.values import decoded, value_decoder
from kbroker.spark.reading.ranges import OffsetRange
from kbroker.spark.reading.timestamps import sparks_timestamps
from kbroker.spark.workers.memory import keep_freed_memory
from kbroker.spark.workers.task_consumers import task_consumer

if TYPE_CHECKING:
    import pyarrow

    from kbroker._core.client.consumer.records import Records
    from kbroker.spark.decoding.decoders import Decoder

log = logging.getLogger("kbroker.spark")


@dataclass(frozen=True)
class Job:
    """The values that all tasks of a run have in common. `folder`: the folder of its staged files."""

    settings: Settings
    folder: str
    loaded_at_ms: int
    generations: dict[str, int]
    value_type: pyarrow.DataType | None = None


class Manifest(NamedTuple):
    """What a task has written and read."""

    unit: int
    files: tuple[LakeFile, ...]
    ranges: tuple[LoadedRange, ...]
    newest_ms: tuple[int, ...]
    """For each range, the latest timestamp that is not in the future, -1 where there is none."""
    size: int
    """The planned size of what it has read, in bytes."""

    def weight(self) -> tuple[int, int]:
        return sum(each.rows for each in self.ranges), self.size


@without_traceback
def run_unit(job: Job, unit: WorkUnit) -> Manifest:
    """Read a unit's ranges and stage files with their rows.

    Attempts of one unit do not disturb each other: each has its files in a folder of its own. Raises LoadFailed when
    not all records were read or written, and RecordsLost as `records_of` does.
    """
    keep_freed_memory()
    storage = storage_of(job.settings)
    folder = f"{job.folder}/{unit.number:06}-{uuid.uuid4().hex[:12]}"
    files = HourFiles(storage, folder, job.settings, job.generations)
    quarantine = HourFiles(storage, folder, job.settings, job.generations, is_quarantine=True)
    try:
        with storage_errors(storage.name):
            decoder = value_decoder(job.settings, job.value_type)
            read = [_load_range(job, each, decoder, files, quarantine) for each in unit.ranges]
            made = files.close() + quarantine.close()
    except BaseException:
        files.abandon()
        quarantine.abandon()
        storage.remove_folder(folder)
        raise
    ranges = tuple(each for each, _ in read)
    if (wrote := sum(file.rows for file in made)) != (had := sum(each.rows for each in ranges)):
        raise LoadFailed(f"{had} records were read, and {wrote} written")
    return Manifest(unit.number, tuple(made), ranges, tuple(newest for _, newest in read), unit.size)


def _load_range(
    job: Job, wanted: OffsetRange, decoder: Decoder | None, files: HourFiles, quarantine: HourFiles
) -> tuple[LoadedRange, int]:
    rows, undecodable, newest_ms, behind = 0, 0, -1, wanted.start
    for batch in _batches(job.settings, wanted):
        behind = _checked(wanted, batch.column("offset"), behind)
        rows += len(batch)
        newest_ms = max(newest_ms, _newest_ms(batch.column("timestamp").cast("int64"), job.loaded_at_ms))
        good, bad = decoded(decoder, batch)
        _add(job, wanted, good, files)
        if bad is not None:
            _add(job, wanted, bad, quarantine)
            undecodable += len(bad)
    return LoadedRange(*wanted, rows, undecodable), newest_ms


def _newest_ms(stamps: pyarrow.Array, now_ms: int) -> int:
    """Return the latest timestamp up to `now_ms`, or -1 if all are later.

    A clock that is ahead says nothing about what is still to come.
    """
    import pyarrow.compute as compute

    newest: int = compute.max(stamps).as_py()
    if newest > now_ms:
        newest = compute.max(stamps.filter(compute.less_equal(stamps, now_ms))).as_py()
    return -1 if newest is None else newest


def _add(job: Job, wanted: OffsetRange, batch: pyarrow.RecordBatch, files: HourFiles) -> None:
    if not len(batch):
        return
    if job.settings.time == ARRIVAL:
        files.add(wanted.topic, wanted.partition, job.loaded_at_ms // HOUR_MS, batch)
        return
    for hour, part in by_hour(batch, job.loaded_at_ms):
        files.add(wanted.topic, wanted.partition, hour, part)


def _checked(wanted: OffsetRange, offsets: pyarrow.Array, behind: int) -> int:
    """Return the offset behind the last of `offsets`.

    Raises LoadFailed unless they are among those that were asked for, each once and in order.
    """
    import pyarrow.compute as compute

    first, last = offsets[0].as_py(), offsets[-1].as_py()
    rises = (
        last - first + 1 >= len(offsets)
        and compute.all(compute.greater(offsets[1:], offsets[:-1])).as_py() is not False
    )
    if not rises or first < behind or last >= wanted.until:
        raise LoadFailed(
            f"{wanted.place}: a broker has given offsets {first} to {last} where {behind} to {wanted.until - 1} were "
            "asked for, or not in order"
        )
    return int(last) + 1


def _batches(settings: Settings, wanted: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as arrow

    names = ["key", "value", "offset", "timestamp", "timestamp_type"] + ["headers"] * settings.headers
    fields = arrow.schema(
        [
            arrow.field("key", arrow.binary()),
            arrow.field("value", arrow.binary()),
            arrow.field("partition", arrow.int32(), False),
            arrow.field("offset", arrow.int64(), False),
            arrow.field("timestamp", arrow.timestamp("ms", "UTC"), False),
            arrow.field("timestampType", arrow.int32(), False),
        ]
    )
    partitions = arrow.array([], arrow.int32())
    for records in records_of(settings, wanted):
        found = records.arrow(names)
        count = len(found)
        if len(partitions) < count:
            partitions = arrow.repeat(arrow.scalar(wanted.partition, arrow.int32()), count)
        columns = [
            found.column("key"),
            found.column("value"),
            partitions.slice(0, count),
            found.column("offset"),
            sparks_timestamps(found.column("timestamp")),
            found.column("timestamp_type").cast(arrow.int32()),
        ]
        schema = fields
        if settings.headers:
            columns.append(found.column("headers"))
            schema = fields.append(arrow.field("headers", found.column("headers").type, False))
        yield arrow.RecordBatch.from_arrays(columns, schema=schema)


def records_of(settings: Settings, wanted: OffsetRange) -> Iterator[Records]:
    """Yield the records that the brokers have of a range.

    Raises RecordsLost when some were deleted before they were read; if `data_loss` is CONTINUE, they are left out.
    Raises LoadFailed as `first_behind` does.
    """
    start = wanted.start
    while True:
        try:
            with task_consumer(settings.client) as consumer:
                for records in consumer.read_range(
                    wanted.topic, wanted.partition, start, wanted.until, settings.poll_timeout_s
                ):
                    start = records.next_offsets()[wanted.place]
                    yield records
                return
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            if settings.data_loss != CONTINUE:
                raise RecordsLost(f"{wanted.place}: offset {start} was deleted before it was read") from None
        first = first_behind(settings, wanted.place, start)
        log.warning("%s: offsets %d to %d were deleted before they were read", wanted.place, start, first - 1)
        if first >= wanted.until:
            return
        start = first


def first_behind(settings: Settings, place: TopicPartition, start: int) -> int:
    """Return the first offset of a partition that no longer has `start`. Raises LoadFailed when it ends before that."""
    with task_consumer(settings.client) as consumer:
        first = consumer.beginning_offsets([place])[place]
    if first <= start:
        raise LoadFailed(
            f"{place} ends before offset {start}: it was cut off, or made again, while it was read; the next load sees "
            "that"
        )
    return first
