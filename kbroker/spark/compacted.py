"""Compacted topics as tables: the newest value of each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.spark.frames import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORRUPT = "columnNameOfCorruptRecord"
MARK = "_kbroker_corrupt"


def latest(
    topic: str,
    bootstrap_servers: str,
    *,
    spark: SparkSession | None = None,
    kafka: Mapping[str, Any] | None = None,
    **options: Any,
) -> DataFrame:
    """Return a DataFrame with one row for each key of `topic`: its newest record, as compaction would leave it.

    A key whose newest value is null is deleted and has no row. Records without a key are left out. Columns, arguments
    and `options` are as in `read`, except that a record that cannot be decoded is an error unless `mode` is given.

    A key's newest record is the one with the highest offset in its partition. A key is in several partitions only if
    the topic once had fewer; then the newest of them is the record with the latest timestamp.
    """
    from pyspark.sql import functions as F

    given = {"mode": "FAILFAST", CORRUPT: MARK, **options}
    frame = read(topic, bootstrap_servers, spark=spark, kafka=kafka, **given)
    names = frame.columns
    row = F.struct(*(F.col(_quoted(name)) for name in names))
    in_partitions = (
        frame.where("key is not null")
        .groupBy("key", "partition")
        .agg(F.max_by(row, "offset").alias("row"), F.max_by("timestamp", "offset").alias("timestamp"))
    )
    newest = in_partitions.groupBy("key").agg(F.max_by("row", F.struct("timestamp", "partition")).alias("row"))
    found = newest.select(*(F.col(f"row.{_quoted(name)}") for name in names))
    # A value that could not be decoded may be null here too, but it is no deletion: its bytes are in that column.
    corrupt = given[CORRUPT]
    is_there = F.col("value").isNotNull()
    if corrupt in names:
        is_there |= F.col(_quoted(corrupt)).isNotNull()
    return found.where(is_there).drop(MARK)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
