"""In a task: the records of one range of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.spark.options import SparkOptions
from kbroker.spark.ranges import OffsetRange
from kbroker.spark.record_batches import RecordBatches
from kbroker.spark.task_clients import task_consumer

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


def read_range(options: SparkOptions, schema: StructType, wanted: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
    """As batches of about 1 MiB."""
    batches = RecordBatches(schema, wanted.topic, wanted.partition, options)
    timeout_s = options["kafkaConsumer.pollTimeoutMs"] / 1000
    with task_consumer(options.client) as consumer:
        for records in consumer.read_range(*wanted, timeout=timeout_s):
            yield from batches.of(records)
