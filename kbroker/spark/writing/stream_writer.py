"""Writing a stream's rows to topics: at least once each, as Spark's own connector does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from kbroker.spark.options import SparkOptions
from kbroker.spark.writing.batch_writer import Written, topic_of
from kbroker.spark.writing.row_columns import RowColumns
from kbroker.spark.writing.task_producers import check_producer_options, task_producer

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class StreamWriter(DataSourceStreamArrowWriter):
    """Rows of a task, or of a batch, that is tried again are there again."""

    def __init__(self, options: SparkOptions, schema: StructType):
        self._rows = RowColumns(schema, topic_of(options))
        check_producer_options(options.client)
        self._client = options.client

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        with task_producer(self._client) as producer:
            return Written(self._rows.send(producer, iterator))
