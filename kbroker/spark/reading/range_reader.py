"""Reads, in a task, the records of one range of offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.client.errors import ClientError, TimedOut
from kbroker.errors import ErrorCode
from kbroker.spark.errors import DataLoss
from kbroker.spark.options.format_options import SparkOptions
from kbroker.spark.reading.ranges import OffsetRange
from kbroker.spark.reading.record_batches import RecordBatches
from kbroker.spark.workers.task_consumers import task_consumer

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

log = logging.getLogger("kbroker.spark")

WAITED = "kafkaConsumer.pollTimeoutMs says how long a task waits"


def read_range(options: SparkOptions, schema: StructType, wanted: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a range in batches of about 1 MiB.

    Raises DataLoss when some of them are gone; with failOnDataLoss=false it goes on behind those.
    """
    batches = RecordBatches(schema, wanted.topic, wanted.partition, options)
    timeout_s = options["kafkaConsumer.pollTimeoutMs"] / 1000
    left, failed = wanted, None
    while left.size > 0:
        try:
            with task_consumer(options.client) as consumer:
                for records in consumer.read_range(*left, timeout=timeout_s):
                    left = left._replace(start=min(records.next_offsets()[wanted.place], wanted.until))
                    yield from batches.convert(records)
            return
        except ClientError as error:
            if (error.code != ErrorCode.OFFSET_OUT_OF_RANGE and not isinstance(error, TimedOut)) or left == failed:
                raise
            left = failed = _what_is_there(options, left, error)


def _what_is_there(options: SparkOptions, left: OffsetRange, why: ClientError) -> OffsetRange:
    """Return the part of `left` that can still be read, after the error `why`, which may mean that some of it is gone.

    Raises TimedOut if `why` is a timeout and nothing is known to be gone; DataLoss if some of it is gone, unless
    failOnDataLoss=false.
    """
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
    """Return the partition's first and end offset, as its leader has them; (0, 0) if the partition does not exist.

    Raises TimedOut when they cannot be had.
    """
    place = left.place
    try:
        with task_consumer(options.client) as consumer:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
    except ClientError as error:
        # Time may run out while the client asks again; the last error that a broker gave is then the cause.
        said = error.__cause__ if isinstance(error, TimedOut) else error
        if isinstance(said, ClientError) and said.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return 0, 0
        raise TimedOut(f"{why.message}; {error.message}", hint=WAITED) from error
