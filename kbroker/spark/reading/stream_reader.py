"""Reads topics as a stream.

The driver keeps one reader for a query, from its start to its end, and asks it where each micro-batch ends. Spark keeps
the answers in its checkpoint, in the JSON of its own Kafka connector. Tasks have readers of their own, for `read` only.

A new query that begins at `latest` begins with an empty batch. That batch's start is LATEST (-1 in the JSON) instead of
an offset, and its end is the offsets of that moment. So Spark's log says where the query began, and a batch that runs
again after a crash finds it there. `initialOffset`, for which Spark then asks again, would have moved on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kbroker.client.errors import ClientError
from kbroker.model import TopicPartition
from kbroker.spark.errors import DataLoss, without_traceback
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.options.offsets import (
    LATEST,
    AtTimestamp,
    AtTimestamps,
    Everywhere,
    Offsets,
    checkpointed,
    named,
    offsets_of,
)
from kbroker.spark.reading.batch_reader import RangePartition
from kbroker.spark.reading.limits import Delay, limited, waiting
from kbroker.spark.reading.planning import Planner
from kbroker.spark.reading.range_reader import read_range
from kbroker.spark.reading.ranges import OffsetRange, divided
from kbroker.spark.reading.read_options import read_options

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

log = logging.getLogger("kbroker.spark")

Json = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query on its driver, or of one task."""

    def __init__(self, given: Mapping[str, str], schema: StructType):
        self._given = given
        self._schema = schema
        self._planner: Planner | None = None
        self._initial: Offsets | None = None
        self._latest: Offsets | None = None  # end offsets at the last look
        self._committed: Offsets | None = None  # offsets that were last committed for the group
        self._is_available_now = False
        self._target: Offsets | None = None  # where AvailableNow stops

    @cached_property
    def _options(self) -> SparkOptions:
        """The options, checked when first needed: Spark hides what `__init__` raises behind an error of its own."""
        return read_options(self._given, Use.STREAM_READ, self._schema)

    @cached_property
    def _delay(self) -> Delay | None:
        least = self._options["minOffsetsPerTrigger"]
        return None if least is None else Delay(least, self._options["maxTriggerDelay"] / 1000)

    @property
    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    # --- where a batch begins and ends ------------------------------------------------------------------------

    @without_traceback
    def initialOffset(self) -> Json:
        if self._initial is None:
            plan = self._plan
            self._initial = plan.initial(self._options.starting or Everywhere(LATEST), plan.partitions())
            log.info("the query begins at %s", self._initial)
        return checkpointed(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        if (most := self._options["maxOffsetsPerTrigger"]) is not None:
            return ReadMaxRows(most)
        if (least := self._options["minOffsetsPerTrigger"]) is not None:
            return ReadMinRows(least)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    @without_traceback
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return where the next batch ends; `start` itself while the batch waits for more records."""
        begin = offsets_of(start)
        self._commit_progress(begin)  # `commit` comes with the next batch, which may be long after
        latest = self._latest = self._look(begin)
        if isinstance(limit, ReadAllAvailable):
            return checkpointed(latest)
        starts = self._plan.earliest(latest.keys() - begin.keys()) | {
            place: latest.get(place, 0) if offset == LATEST else offset for place, offset in begin.items()
        }
        count = sum(waiting(starts, latest).values())
        if not self._is_available_now and self._delay is not None and self._delay.holds(count, time.monotonic()):
            return start
        if isinstance(limit, ReadMaxRows):
            return checkpointed(limited(starts, latest, limit.max_rows))
        return checkpointed(latest)

    def _look(self, begin: Offsets) -> Offsets:
        """Return the offsets at which the partitions end.

        With AvailableNow they are the offsets at which the partitions ended when the query began.
        """
        if self._target is not None:
            return self._target
        latest = self._plan.latest(begin)
        if self._is_available_now:
            self._target = latest
        return latest

    def reportLatestOffset(self) -> Json | None:
        return checkpointed(self._latest) if self._latest else None

    # --- what a batch is made of ------------------------------------------------------------------------------

    @without_traceback
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        options = self._options
        begin, until = offsets_of(start), offsets_of(end)
        if self._target is not None:
            self._check_target(until)
        begins = begin | self._earliest(until.keys() - begin.keys())
        # For a first batch that runs again after a restart, Spark asks for `initialOffset` again, but keeps the end
        # that was planned. So `begin` may have partitions that were created since the plan, and `until` has not. They
        # are no loss: the next batch reads them from their beginning.
        is_first = begin == self._initial
        if (gone := begin.keys() - until.keys()) and not is_first:
            self._lose(f"{named(gone)} is gone, with what was not read of it")
        ranges = []
        for place in sorted(until.keys() & begins.keys()):
            first, last = begins[place], until[place]
            if first == LATEST:
                continue
            if first <= last:
                ranges.append(OffsetRange(*place, first, last))
            elif is_first and isinstance(options.starting, AtTimestamp | AtTimestamps):
                log.info("%s: no record was late enough when the query began, now offset %d is", place, first)
            elif is_first:
                self._lose(f"{place} would begin at offset {first}, behind its end {last}")
            else:
                self._lose(f"{place} ends at offset {last}, but has been read up to {first}")
        tasks = divided(ranges, least_count=options["minPartitions"], most_records=options["maxRecordsPerPartition"])
        return [RangePartition(each) for each in tasks]

    def _earliest(self, new: set[TopicPartition]) -> Offsets:
        """Return the first offsets of partitions that are new since the last batch.

        Raises DataLoss when one is gone, or has lost records already, unless failOnDataLoss=false.
        """
        if not new:
            return {}
        found = self._plan.earliest(new)
        if missing := new - found.keys():
            self._lose(f"{named(missing)} is gone before anything was read of it")
        if late := [place for place, offset in found.items() if offset]:
            self._lose(f"{named(late)} is new, but does not begin at offset 0 any more")
        if found:
            log.info("new partitions: %s", found)
        return found

    def _check_target(self, until: Offsets) -> None:
        """Raise DataLoss when a partition now ends before `until`, or is gone, whatever failOnDataLoss says.

        AvailableNow has promised to read all records up to its target.
        """
        there = self._plan.latest(until)
        if gone := until.keys() - there.keys():
            raise DataLoss(f"{named(gone)} is gone while AvailableNow reads it", "start the query again")
        if shorter := [place for place, offset in until.items() if there[place] < offset]:
            raise DataLoss(f"{named(shorter)} has become shorter while AvailableNow reads it", "start the query again")

    def _lose(self, what: str) -> None:
        if self._options["failOnDataLoss"]:
            raise DataLoss(what)
        log.warning("%s; records may be missing", what)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, RangePartition) and partition.value is not None
        return read_range(self._options, self._schema, partition.value)

    # --- afterwards -------------------------------------------------------------------------------------------

    def commit(self, end: Json) -> None:
        self._commit_progress(offsets_of(end))

    def _commit_progress(self, done: Offsets) -> None:
        """Commit offsets for tools that watch the group's lag.

        The query itself goes by its checkpoint, so a failure is only logged.
        """
        if not self._options["commitOffsets"] or done in (self._initial, self._committed):
            return
        try:
            self._plan.commit(self._options.client["group.id"], done)
            self._committed = done
        except ClientError as error:
            log.warning("progress is not committed: %s", error)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
