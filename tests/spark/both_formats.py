"""Reading with either format, to compare them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.kit.spark.reading import last_line
from tests.kit.spark.topics import options

FORMATS = ("kbroker", "kafka")
OURS, THEIRS = FORMATS
QUERY_TIMEOUT_S = 60


def load(spark: SparkSession, servers: str, form: str = OURS, **given: Any) -> DataFrame:
    return spark.read.format(form).options(**options(servers, given)).load()


def rows(frame: DataFrame) -> list[Row]:
    """In the order of the log."""
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def offsets(frame: DataFrame) -> list[tuple[str, int, int]]:
    return [(row.topic, row.partition, row.offset) for row in rows(frame.select("topic", "partition", "offset"))]


def place_of_error(spark: SparkSession, servers: str, form: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """Where a batch fails, `load` or `action`, and what it says; `no error` when it does not."""
    try:
        frame = load(spark, servers, form, **given)
    except (PySparkException, Py4JJavaError) as error:
        return "load", last_line(error)
    try:
        frame.collect()
    except (PySparkException, Py4JJavaError) as error:
        return "action", last_line(error)
    return "no error", ""


class Stream:
    """A query that keeps what it reads in Parquet files, and its checkpoint beside them; it can be run again."""

    def __init__(self, spark: SparkSession, folder: Path, servers: str, form: str = OURS, **given: Any):
        self.spark = spark
        self.servers = servers
        self.form = form
        self.given = given
        self.output = folder / "output"
        self.checkpoint = folder / "checkpoint"

    def start(self, **trigger: Any) -> StreamingQuery:
        reader = self.spark.readStream.format(self.form).options(**options(self.servers, self.given))
        writer = reader.load().writeStream.format("parquet").option("path", str(self.output))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self) -> StreamingQuery:
        """All there is now."""
        query = self.start(availableNow=True)
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            query.stop()
            raise AssertionError(f"the query has not ended: {query.status}")
        return query

    def rows(self) -> list[Row]:
        return rows(self.spark.read.parquet(str(self.output)))

    def offsets(self) -> list[tuple[str, int, int]]:
        return [(row.topic, row.partition, row.offset) for row in self.rows()]

    def logged(self) -> list[dict[str, dict[str, int]]]:
        """Where its batches end, by its checkpoint."""
        folder = self.checkpoint / "offsets"
        files = sorted((each for each in folder.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
        return [json.loads(each.read_text().splitlines()[-1]) for each in files]

    def forget(self, batch: int) -> None:
        """Forget a batch, as if the driver had died when the batch was planned, before anything of it was done."""
        for folder in (self.checkpoint / "commits", self.output / "_spark_metadata"):
            (folder / str(batch)).unlink()
            (folder / f".{batch}.crc").unlink()
