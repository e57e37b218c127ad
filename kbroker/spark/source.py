"""The data source behind `format("kbroker")`: Spark asks it for the schema, the readers and the writers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from kbroker.spark.installed import check_pyspark, check_this_interpreter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KbrokerSource(DataSource):
    """`spark.read.format("kbroker").option("kafka.bootstrap.servers", ...).option("subscribe", ...).load()`.

    This module imports little: Spark imports it in a separate process before it knows whether anybody uses the format.
    """

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        check_pyspark(pyspark.__version__)
        check_this_interpreter()

    @classmethod
    def name(cls) -> str:
        return "kbroker"

    def schema(self) -> StructType | str:
        from kbroker.spark.decoding.value_formats import decoded_schema, settled
        from kbroker.spark.options.format_options import Use
        from kbroker.spark.reading.read_options import read_options
        from kbroker.spark.schema import schema_of

        # The schema that a registry gives now holds for the whole read: readers get it with these options.
        self.options.update(settled(read_options(self.options, Use.READ)))
        options = read_options(self.options, Use.READ)
        return decoded_schema(options, schema_of(options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        from kbroker.spark.options.format_options import Use
        from kbroker.spark.reading.batch_reader import BatchReader
        from kbroker.spark.reading.read_options import read_options

        return BatchReader(read_options(self.options, Use.BATCH_READ, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kbroker.spark.reading.stream_reader import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kbroker.spark.options.format_options import SparkOptions, Use
        from kbroker.spark.writing.at_least_once_writers import BatchWriter

        return BatchWriter(SparkOptions(self.options, Use.BATCH_WRITE), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from kbroker.spark.options.format_options import SparkOptions, Use

        options = SparkOptions(self.options, Use.STREAM_WRITE)
        if options["exactlyOnce"]:
            from kbroker.spark.writing.exactly_once_writer import ExactlyOnceWriter

            return ExactlyOnceWriter(options, schema)
        from kbroker.spark.writing.at_least_once_writers import StreamWriter

        return StreamWriter(options, schema)
