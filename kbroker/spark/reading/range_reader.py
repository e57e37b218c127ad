"""In a task: the records of one range of offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.client.errors import ClientError, TimedOut
from kbroker.errors import ErrorCode
from kbroker.spark.errors import DataLoss
from kbroker.spark.options import SparkOptions
from kbroker.spark.reading.ranges import OffsetRange
from kbroker.spark.reading.record_batches import RecordBatches
from kbroker.spark.reading.task_consumers import task_consumer

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

log = logging.getLogger("kbroker.spark")

WAITED = "kafkaConsumer.pollTimeoutMs says how long a task waits"


def read_range(options: SparkOptions, schema: StructType, wanted: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
    """As batches of about 1 MiB. What is gone of it is a DataLoss; failOnDataLoss=false: it goes on behind that."""
    batches = RecordBatches(schema, wanted.topic, wanted.partition, options)
    timeout_s = options["kafkaConsumer.pollTimeoutMs"] / 1000
    left, failed = wanted, None
    while left.size > 0:
        try:
            with task_consumer(options.client) as consumer:
                for records in consumer.read_range(*left, timeout=timeout_s):
                    left = left._replace(start=min(records.next_offsets()[wanted.place], wanted.until))
                    yield from batches.of(records)
            return
        except ClientError as error:
            if (error.code != ErrorCode.OFFSET_OUT_OF_RANGE and not isinstance(error, TimedOut)) or left == failed:
                raise
            left = failed = _what_is_there(options, left, error)


def _what_is_there(options: SparkOptions, left: OffsetRange, why: ClientError) -> OffsetRange:
    """After an error that may mean that some of it is gone; raises `why` if it is all there."""
    first, end = _ends(options, left, why)
    if isinstance(why, TimedOut) and first <= left.start < end:
        raise TimedOut(why.message, hint=WAITED) from why
    what = f"{left.place}: of the offsets {left.start} to {left.until} some are gone, it has {first} to {end}"
    if options["failOnDataLoss"]:
        raise DataLoss(what) from why
    log.warning("%s", what)
    start = max(left.start, first) if left.start < end else left.until
    return left._replace(start=min(start, left.until))


def _ends(options: SparkOptions, left: OffsetRange, why: ClientError) -> tuple[int, int]:
    """Of the partition, as its leader has it; none of a partition that is not there."""
    place = left.place
    try:
        with task_consumer(options.client) as consumer:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
    except ClientError as error:
        # Time may run out while the last of many equal answers is on its way.
        said = error.__cause__ if isinstance(error, TimedOut) else error
        if isinstance(said, ClientError) and said.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return 0, 0
        raise TimedOut(f"{why.message}; {error.message}", hint=WAITED) from error
