"""A streaming query from one topic to another, in this process or as a program that tests can kill:

python -m tests.kit.spark.sink_query JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType

from kbroker.client import AdminClient, Consumer, Producer
from tests.kit.child_process import ChildProcess
from tests.kit.spark.load_in_spark import await_file

PARTITIONS = 3
SLOW_NUMBER = 1500  #: of partition 0


def fill(servers: str, topic: str, start: int, stop: int) -> None:
    """Send these numbers to a topic, which is made with PARTITIONS partitions if it is not there."""
    with AdminClient(bootstrap_servers=servers) as admin:
        if topic not in admin.list_topics():
            admin.create_topic(topic, PARTITIONS, 1)
    numbers = [b"%d" % number for number in range(start, stop)]
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, numbers, partitions=[number % PARTITIONS for number in range(start, stop)])


def committed(servers: str, topic: str) -> list[int]:
    """Return the numbers that a read_committed consumer finds."""
    with AdminClient(bootstrap_servers=servers) as admin:
        places = [(topic, each.partition) for each in admin.describe_topics([topic])[topic].partitions]
        ends = admin.list_offsets(places, read_committed=True)
    found: list[int] = []
    options: Any = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    with Consumer({"bootstrap.servers": servers, **options}) as consumer:
        for (_, number), end in ends.items():
            for records in consumer.read_range(topic, number, 0, end.offset):
                found += [int(record.value) for record in records if record.value is not None]
    return sorted(found)


def open_transactions(servers: str) -> list[str]:
    with AdminClient(bootstrap_servers=servers) as admin:
        return [each.transactional_id for each in admin.list_transactions(["Ongoing"])]


def is_decided(servers: str, topic: str) -> bool:
    """Whether no transaction is open, so that read_committed consumers reach the end of the topic."""
    with AdminClient(bootstrap_servers=servers) as admin:
        places = [(topic, each.partition) for each in admin.describe_topics([topic])[topic].partitions]
        stable = admin.list_offsets(places, read_committed=True)
        return all(each.offset == stable[place].offset for place, each in admin.list_offsets(places).items())


def exactly_once(servers: str, topic: str, folder: Path, rows: int) -> dict[str, Any]:
    """Fill a source, and return a query from it to `topic`: two batches of `rows` rows, with three tasks each."""
    fill(servers, f"{topic}-in", 0, 2 * rows)
    return {
        "servers": servers,
        "source": f"{topic}-in",
        "sink": topic,
        "rows": rows,
        "folder": str(folder),
        "checkpoint": str(folder / "checkpoint"),
        "options": {"exactlyOnce": "true"},
    }


def start(spark: SparkSession, query: Mapping[str, Any]) -> StreamingQuery:
    """Start a query with `servers`, `source`, `sink`, `checkpoint`, `rows` of a batch, and more `options` of the sink.

    `slow` is a folder: the first attempt that comes to SLOW_NUMBER waits until another one has come there.
    """
    rows = (
        spark.readStream.format(query.get("source_form", "kafka"))
        .option("kafka.bootstrap.servers", query.get("source_servers", query["servers"]))
        .option("subscribe", query["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", query["rows"])
        .load()
        .selectExpr("key", "value")
    )
    if "tasks" in query:
        rows = rows.repartition(query["tasks"])
    if "slow" in query:
        slow = udf(partial(slowly, Path(query["slow"])), BinaryType())
        rows = rows.select("key", slow("value").alias("value"))
    writer = rows.writeStream.format(query.get("form", "kbroker")).option("topic", query["sink"])
    writer = writer.option("kafka.bootstrap.servers", query["servers"])
    for name, value in query.get("options", {}).items():
        writer = writer.option(name, value)
    return writer.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start()


def slowly(folder: Path, value: bytes) -> bytes:
    """Return `value`, in a task. Each attempt that comes to SLOW_NUMBER leaves a file in `folder`."""
    if value == b"%d" % SLOW_NUMBER:
        context = TaskContext.get()
        assert context is not None
        (folder / str(context.attemptNumber())).touch()
        if context.attemptNumber() == 0:
            await_file(folder / "1")
    return value


class QueryProcess(ChildProcess):
    """A query in its own driver process, as a context manager."""

    def __init__(self, query: Mapping[str, Any], log: Path):
        self._log = log
        command = [sys.executable, "-m", "tests.kit.spark.sink_query", json.dumps(query)]
        environment = {**os.environ, **query.get("environment", {})}
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout_s: float = 240.0) -> None:
        """Wait until the query has processed everything that is there."""
        assert self.process.wait(timeout_s) == 0, self._log.read_text()[-4000:]

    def kill_when(self, seen: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Kill driver and JVM once `seen()` is true. The workers notice that a little later."""
        deadline = time.monotonic() + timeout_s
        while not seen():
            assert self.process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < deadline, self._log.read_text()[-4000:]
            threading.Event().wait(0.01)
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main(query: dict[str, Any]) -> None:
    from tests.kit.spark.session import new_session

    spark = new_session(Path(query["folder"]), query.get("master", "local[2]"), "512m", **query.get("conf", {}))
    spark.sparkContext.setLogLevel("WARN")
    start(spark, query).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
