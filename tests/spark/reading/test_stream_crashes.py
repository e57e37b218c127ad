"""Drivers that are killed while they read a stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kbroker.testing import Broker
from tests.kit.spark.topics import fill
from tests.spark.both_formats import Stream

DRIVER = """
import sys
from pathlib import Path
from tests.kit.spark.session import new_session
from tests.spark.both_formats import Stream

folder, servers, topic, start = sys.argv[1:]
spark = new_session(Path(folder) / "driver", memory="512m")
given = {"subscribe": topic, "startingOffsets": start, "maxOffsetsPerTrigger": 400, "minPartitions": 3}
Stream(spark, Path(folder), servers, **given).start(processingTime="0 seconds").awaitTermination()
"""


def kill_driver_after(batches: int, query: Stream, start: str) -> None:
    """A driver in a process of its own, its JVM too, when so many batches more are done."""
    commits = query.checkpoint / "commits"

    def done() -> int:
        return sum(each.name.isdigit() for each in commits.iterdir()) if commits.is_dir() else 0

    wanted = done() + batches
    arguments = [str(query.output.parent), query.servers, query.given["subscribe"], start]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], start_new_session=True)
    try:
        until = time.monotonic() + 120
        while done() < wanted:
            assert driver.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_every_record_is_read_once_whenever_drivers_are_killed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, start: str
) -> None:
    fill(broker.bootstrap_servers, topic, 2, 2000)
    query = Stream(spark, tmp_path, broker.bootstrap_servers, subscribe=topic, startingOffsets=start)
    kill_driver_after(1, query, start)
    fill(broker.bootstrap_servers, topic, 2, 2000, make=False)
    kill_driver_after(3, query, start)
    query.run()
    first = 0 if start == "earliest" else 1000
    assert query.offsets() == [(topic, number, at) for number in (0, 1) for at in range(first, 2000)]
