"""Writes the rows of a DataFrame or a stream to topics, each at least once, as Spark's own connector does.

A task, or a stream's batch, that is tried again writes its rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kbroker.spark.errors import CannotWrite, WrongOption
from kbroker.spark.options.format_options import SparkOptions
from kbroker.spark.workers.task_producers import check_producer_options, task_producer
from kbroker.spark.writing.row_columns import RowColumns

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """What a task reports to the driver: how many rows it has written."""

    rows: int


class TopicWriter:
    """Writes rows to topics.

    Making one checks what can be known before the first row: it raises WrongOption or CannotWrite.
    """

    def __init__(self, options: SparkOptions, schema: StructType):
        self._rows = RowColumns(schema, topic_of(options))
        check_producer_options(options.client)
        self._client = options.client

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        with task_producer(self._client) as producer:
            return Written(self._rows.send(producer, iterator))


class BatchWriter(TopicWriter, DataSourceArrowWriter):
    def __init__(self, options: SparkOptions, schema: StructType, overwrite: bool):
        if overwrite:
            raise CannotWrite("a topic cannot be overwritten, only appended to: .mode('append')")
        if options["exactlyOnce"]:
            raise WrongOption("option exactlyOnce is for streams: a batch is written at least once")
        super().__init__(options, schema)


class StreamWriter(TopicWriter, DataSourceStreamArrowWriter):
    pass


def topic_of(options: SparkOptions) -> str | None:
    """Return the topic of all rows, or None if option topic is not given. Raises WrongOption when it is empty."""
    given: str | None = options["topic"]
    if given is not None and not given.strip():
        raise WrongOption("option topic is empty")
    return None if given is None else given.strip()
