"""A streaming query from one topic to another, in this process or as a program that can be killed:

python -m tests.kit.sink_query JSON
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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kbroker.client import AdminClient, Consumer, Producer

PARTITIONS = 3


def fill(servers: str, topic: str, start: int, stop: int) -> None:
    """With these numbers; the topic is made, with PARTITIONS."""
    with AdminClient(bootstrap_servers=servers) as admin:
        if topic not in admin.list_topics():
            admin.create_topic(topic, PARTITIONS, 1)
    numbers = [b"%d" % number for number in range(start, stop)]
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, numbers, partitions=[number % PARTITIONS for number in range(start, stop)])


def committed(servers: str, topic: str) -> list[int]:
    """The numbers that readers of committed records find."""
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


def start(spark: SparkSession, query: Mapping[str, Any]) -> StreamingQuery:
    """With `servers`, `source`, `sink`, `checkpoint`, `rows` of a batch, and more `options` of the sink."""
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", query.get("source_servers", query["servers"]))
        .option("subscribe", query["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", query["rows"])
        .load()
        .selectExpr("key", "value")
    )
    if "tasks" in query:
        rows = rows.repartition(query["tasks"])
    writer = rows.writeStream.format(query.get("form", "kbroker")).option("topic", query["sink"])
    writer = writer.option("kafka.bootstrap.servers", query["servers"])
    for name, value in query.get("options", {}).items():
        writer = writer.option(name, value)
    return writer.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start()


class QueryProcess:
    """The same in a driver of its own. A context manager."""

    def __init__(self, query: Mapping[str, Any], log: Path):
        self._log = log
        command = [sys.executable, "-m", "tests.kit.sink_query", json.dumps(query)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float = 240.0) -> None:
        """Until it is through with what there is."""
        assert self._process.wait(timeout_s) == 0, self._log.read_text()[-4000:]

    def kill_when(self, seen: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Driver and JVM; workers see that they are alone, a little later."""
        deadline = time.monotonic() + timeout_s
        while not seen():
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < deadline, self._log.read_text()[-4000:]
            threading.Event().wait(0.01)
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def main(query: dict[str, Any]) -> None:
    from tests.kit.spark import new_session

    spark = new_session(Path(query["folder"]), query.get("master", "local[2]"), "512m")
    spark.sparkContext.setLogLevel("WARN")
    start(spark, query).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
