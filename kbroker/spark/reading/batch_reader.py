"""Reading topics as a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kbroker.spark.errors import DataLoss, WrongOption, without_traceback
from kbroker.spark.options.format_options import SparkOptions
from kbroker.spark.options.offsets import EARLIEST, LATEST, Everywhere, Offsets, PerPartition, named
from kbroker.spark.reading.planning import Planner
from kbroker.spark.reading.range_reader import read_range
from kbroker.spark.reading.ranges import OffsetRange, divided

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

log = logging.getLogger("kbroker.spark")


class RangePartition(InputPartition):
    """What one task reads. Spark passes a partition whose value is None when there is nothing to read."""

    value: OffsetRange | None


class BatchReader(DataSourceReader):
    """Reads topics as a batch. Offsets are resolved once for each DataFrame: all its actions see the same records."""

    def __init__(self, options: SparkOptions, schema: StructType):
        self._options = options
        self._schema = schema

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Planner(options) as planner:
            there = planner.partitions()
            starts = planner.start(options.starting or Everywhere(EARLIEST), there)
            ends = planner.end(options.ending, there)
            if isinstance(options.ending, PerPartition):
                ends = self._up_to(planner.end(Everywhere(LATEST), there), starts, ends)
        ranges = []
        for place in there:
            start, end = starts[place], ends[place]
            if start > end:
                raise WrongOption(f"{place} would begin at offset {start}, behind its end {end}")
            ranges.append(OffsetRange(*place, start, end))
        tasks = divided(ranges, least_count=options["minPartitions"], most_records=options["maxRecordsPerPartition"])
        return [RangePartition(each) for each in tasks]

    def _up_to(self, latest: Offsets, starts: Offsets, ends: Offsets) -> Offsets:
        """Return `ends`, but none beyond `latest`, where a task would wait for records.

        Raises DataLoss when one is beyond it, unless failOnDataLoss=false.
        """
        beyond = [place for place, end in ends.items() if end > latest[place]]
        if beyond:
            what = f"option endingOffsets: {named(beyond)} ends before that, at {latest[beyond[0]]}"
            if self._options["failOnDataLoss"]:
                raise DataLoss(what)
            log.warning("%s", what)
        return ends | {place: max(latest[place], starts[place]) for place in beyond}

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:
            return iter(())
        return read_range(self._options, self._schema, partition.value)
