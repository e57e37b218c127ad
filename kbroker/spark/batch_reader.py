"""Reading topics as a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kbroker.spark.errors import WrongOption
from kbroker.spark.offsets import EARLIEST, Everywhere
from kbroker.spark.options import SparkOptions
from kbroker.spark.planning import Planner
from kbroker.spark.range_reader import read_range
from kbroker.spark.ranges import OffsetRange, divided

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class RangePartition(InputPartition):
    """What one task reads; `None` of an empty topic, as Spark has it."""

    value: OffsetRange | None


class BatchReader(DataSourceReader):
    """Offsets are resolved once for each DataFrame: all that is done with it sees the same records."""

    def __init__(self, options: SparkOptions, schema: StructType):
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Planner(options) as planner:
            there = planner.partitions()
            starts = planner.start(options.starting or Everywhere(EARLIEST), there)
            ends = planner.end(options.ending, there)
        ranges = []
        for place in there:
            start, end = starts[place], ends[place]
            if start > end:
                raise WrongOption(f"{place}: it begins at offset {start}, behind its end {end}")
            ranges.append(OffsetRange(*place, start, end))
        tasks = divided(ranges, least_count=options["minPartitions"], most_records=options["maxRecordsPerPartition"])
        return [RangePartition(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:
            return iter(())
        return read_range(self._options, self._schema, partition.value)
