"""The columns that Spark sees, with the names and types of Spark's own Kafka connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}


def schema_of(names: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def arrow_schema_of(schema: StructType) -> pyarrow.Schema:
    """Return the Arrow schema that batches of `schema` must have, exactly: Spark compares before it takes the first."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
