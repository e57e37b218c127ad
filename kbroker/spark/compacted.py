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
    """One row for each key that a topic has, with its newest record: what compaction leaves in the end, at once.

    A key whose newest value is null is gone, and records without a key are left out. Columns are those of the format,
    and `options` too: see `read`. A record that cannot be decoded is an error unless `mode` says otherwise.

    Newest is what has the highest offset. A key is in one partition, unless there have been fewer of them once: of
    several the record with the later timestamp counts.
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
    # What could not be decoded may be null too, but was not: its bytes are in that column.
    corrupt = given[CORRUPT]
    is_there = F.col("value").isNotNull()
    if corrupt in names:
        is_there |= F.col(_quoted(corrupt)).isNotNull()
    return found.where(is_there).drop(MARK)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
