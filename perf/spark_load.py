"""Runs one side of a row about Spark: `python -m perf.spark_load WHO ADDRESS TOPIC COUNT RUNS LOAD...`.

WHO is kbroker or jvm. A session of 2 cores does each load once to warm up, and then RUNS times. Prints JSON: the
seconds of each run by load, and the most memory in MB that the JVM and the largest Python worker have had.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kbroker.client import Producer
from kbroker.spark import load
from kbroker.spark.session import loading_session
from tests.kit.spark.session import new_session

LATENCY_S = 10.0
FORMATS = {"kbroker": "kbroker", "jvm": "kafka"}


def peak_mb(pid: int) -> float:
    """Return the most resident memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found


def memory() -> dict[str, float]:
    """Return the peak memory (MB) of the JVM that this process has started, and of the largest Python worker."""
    found = {"jvm": 0.0, "worker": 0.0}
    for pid in descendants(os.getpid()):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        kind = "jvm" if name == "java" else "worker"
        found[kind] = max(found[kind], peak_mb(pid))
    return found


class Loads:
    def __init__(self, spark: SparkSession, who: str, address: str, topic: str, count: int):
        self.spark = spark
        self.who = who
        self.address = address
        self.topic = topic
        self.count = count
        self.folder = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
        self.by_name: Mapping[str, Callable[[], None]] = {
            "count": lambda: self.counted({}),
            "count-8": lambda: self.counted({"minPartitions": "8"}),
            "noop": self.noop,
            "parquet": self.parquet,
            "lake-snappy": lambda: self.lake("snappy"),
            "lake-zstd": lambda: self.lake("zstd"),
            "write": lambda: self.write({}),
            "write-tuned": lambda: self.write({"kafka.linger.ms": "5", "kafka.batch.size": str(128 << 10)}),
            "discard": self.discard,
        }

    def frame(self, options: Mapping[str, Any]) -> DataFrame:
        """Return a new DataFrame each time: a DataFrame of ours keeps its offsets."""
        reader = self.spark.read.format(FORMATS[self.who]).option("kafka.bootstrap.servers", self.address)
        return reader.options(subscribe=self.topic, **options).load()

    def counted(self, options: Mapping[str, Any]) -> None:
        found = self.frame(options).count()
        assert found == self.count, (found, self.count)

    def noop(self) -> None:
        self.frame({}).write.format("noop").mode("overwrite").save()

    def parquet(self) -> None:
        frame = self.frame({}).select("value", "topic", "partition", "offset", "timestamp")
        frame.write.mode("overwrite").parquet(str(self.folder / "lake"))

    def lake(self, codec: str) -> None:
        """Write all columns to Parquet files: with the loader, or with the JVM connector and Spark's own writer."""
        folder = self.folder / "new-lake"
        if self.who == "kbroker":
            done = load(self.topic, folder, bootstrap_servers=self.address, spark=self.spark, compression=codec)
            assert done.rows == self.count, done
        else:
            self.frame({}).write.parquet(str(folder), compression=codec)

    def rows(self) -> DataFrame:
        """Return rows of 100 B that Spark makes itself."""
        return self.spark.range(0, self.count, 1, 2).selectExpr("lpad(cast(id as string), 100, 'x') value")

    def write(self, options: Mapping[str, str]) -> None:
        writer = self.rows().write.format(FORMATS[self.who]).mode("append")
        writer.option("kafka.bootstrap.servers", self.address).options(topic=self.topic, **options).save()

    def discard(self) -> None:
        """Write to a sink that does nothing: the most that Spark can give to a sink in Python."""
        self.rows().write.format("discard").mode("append").save()

    def run(self, name: str) -> float:
        shutil.rmtree(self.folder / "new-lake", ignore_errors=True)
        began = time.monotonic()
        self.by_name[name]()
        return time.monotonic() - began

    def batch_latencies(self, seconds: float) -> list[float]:
        """Return the seconds, from its trigger on, of each micro-batch, which has a few rows and nothing to do."""
        frame = self.spark.readStream.format(FORMATS[self.who]).option("kafka.bootstrap.servers", self.address)
        stream = frame.option("subscribe", self.topic).load().writeStream.format("noop")
        query = stream.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        until = time.monotonic() + seconds
        with Producer(bootstrap_servers=self.address) as producer:
            while time.monotonic() < until:
                producer.send(self.topic, b"x").result(10)
                time.sleep(0.02)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        query.stop()
        return [each["durationMs"]["triggerExecution"] / 1000 for each in progress[len(progress) // 4 :]]


class DiscardingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Discard(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DiscardingWriter()


def main(who: str, address: str, topic: str, count: int, runs: int, names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="kbroker-spark-") as folder:
        if who == "kbroker" and all(name.startswith("lake") for name in names):
            spark = loading_session("local[2]")  # as kbroker load makes it
        else:
            spark = new_session(Path(folder), "local[2]", memory="2g")
        spark.sparkContext.setLogLevel("ERROR")
        loads = Loads(spark, who, address, topic, count)
        seconds: dict[str, list[float]] = {}
        spark.dataSource.register(Discard)
        for name in names:
            if name == "latency":
                seconds[name] = loads.batch_latencies(runs * LATENCY_S)
                continue
            loads.run(name)
            seconds[name] = [loads.run(name) for _ in range(runs)]
        found = {"seconds": seconds, "memory": memory()}
        shutil.rmtree(loads.folder)
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    who, address, topic, count, runs, *names = sys.argv[1:]
    main(who, address, topic, int(count), int(runs), names)
