"""Two attempts of a task at the same time, on two hosts: what is read or written is there once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kbroker.client import AdminClient
from kbroker.testing import Broker
from tests.kit.spark.cluster import SparkCluster
from tests.kit.spark.cluster_load import ClusterLoad, await_that
from tests.kit.spark.events import speculative_attempts
from tests.kit.spark.load import fill, on_broker, visible
from tests.kit.spark.sink_query import QueryProcess, committed, exactly_once, open_transactions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 3000  # of a batch
SPECULATION: dict[str, object] = {
    "spark_speculation": True,
    "spark_speculation_multiplier": 1.5,
    "spark_speculation_quantile": 0.25,
    "spark_speculation_interval": "100ms",
    "spark_speculation_minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with SparkCluster(folder, Path(sys.executable), ("127.0.0.2", "127.0.0.3")) as started:
        yield started


@pytest.fixture(scope="module")
def faulty() -> Iterator[Broker]:
    with Broker(faults=True) as broker:
        yield broker


@pytest.mark.parametrize("goes_on", [False, True], ids=["it stands still", "it goes on"])
def test_a_load_of_which_a_task_is_slow(
    cluster: SparkCluster, faulty: Broker, topic: str, tmp_path: Path, goes_on: bool
) -> None:
    servers, lake = faulty.bootstrap_servers, tmp_path / "lake"
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, 4)
    fill(servers, topic, 4, 10_000, step_ms=100)
    faulty.faults.delay("Fetch", 0.1)  # a task is at it for a while
    arguments = [topic, "-b", servers, "--task-bytes", "100K", "-X", "max.partition.fetch.bytes=20000"]
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(ClusterLoad(cluster, tmp_path, lake, arguments, **SPECULATION))
        stopped = load.a_stopped_attempt()
        stack.callback(kill, stopped.process)
        assert load.folders_of(stopped.unit) == 1
        await_that(lambda: load.folders_of(stopped.unit) == 2, "a copy of the task that stands still")
        faulty.faults.clear()
        if goes_on:
            stopped.process.resume()
        assert load.wait() == 0, load.output + cluster.logs()
    assert speculative_attempts(load.events) != []
    assert visible(lake) == on_broker(servers, topic)
    assert list((lake / "_kbload/staging").iterdir()) == []


@pytest.fixture
def query(cluster: SparkCluster, faulty: Broker, topic: str, tmp_path: Path) -> dict[str, Any]:
    """Two batches of three tasks."""
    faulty.faults.clear()
    made = exactly_once(faulty.bootstrap_servers, topic, tmp_path, ROWS)
    return made | cluster.of_a_query(tmp_path / "events", **SPECULATION)


def run(query: dict[str, Any], tmp_path: Path) -> None:
    """Rows are there once for readers of committed records, and nobody waits behind what attempts have left."""
    with QueryProcess(query, tmp_path / "query.log") as process:
        process.wait()
    assert speculative_attempts(tmp_path / "events") != []
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))
    assert open_transactions(query["servers"]) == []


def test_a_stream_of_which_a_task_is_slow_with_its_rows(query: dict[str, Any], tmp_path: Path) -> None:
    """Both attempts write then, and it depends which of them is first."""
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    query["conf"]["spark_sql_execution_arrow_maxRecordsPerBatch"] = 100  # some rows are written by then
    run(query | {"slow": str(attempts)}, tmp_path)
    assert {each.name for each in attempts.iterdir()} == {"0", "1"}


def test_a_stream_of_which_a_task_is_slow_when_its_rows_are_written(
    query: dict[str, Any], faulty: Broker, tmp_path: Path
) -> None:
    """What it has open is aborted."""
    fault = faulty.faults.delay("TxnOffsetCommit", 25, times=1)
    run(query, tmp_path)
    assert fault.struck == 1


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
