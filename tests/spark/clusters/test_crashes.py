"""Executors, drivers and brokers of a cluster that are killed under loads and streams: records are there once then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import AdminClient
from kbroker.testing import Broker
from tests.kit.spark.cluster import SparkCluster
from tests.kit.spark.cluster_load import ClusterLoad, await_that
from tests.kit.spark.events import reasons_of_failures
from tests.kit.spark.load import fill, on_broker, visible
from tests.kit.spark.sink_query import QueryProcess, committed, exactly_once, open_transactions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 3000  # of a batch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), Path(sys.executable)) as started:
        yield started


@pytest.fixture(scope="module")
def started() -> Iterator[Broker]:
    with Broker(faults=True) as broker:
        yield broker


@pytest.fixture
def faulty(started: Broker) -> Broker:
    started.faults.clear()
    return started


# --- loads --------------------------------------------------------------------------------------------------


@pytest.fixture
def load(cluster: SparkCluster, faulty: Broker, topic: str, tmp_path: Path) -> ClusterLoad:
    """A load whose tasks take a while."""
    servers = faulty.bootstrap_servers
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, 4)
    fill(servers, topic, 4, 10_000, step_ms=100)
    faulty.faults.delay("Fetch", 0.1)
    arguments = [topic, "-b", servers, "--task-bytes", "100K", "-X", "max.partition.fetch.bytes=20000"]
    return ClusterLoad(cluster, tmp_path, tmp_path / "lake", arguments)


def ends_well(load: ClusterLoad, faulty: Broker, topic: str) -> None:
    faulty.faults.clear()
    assert load.wait() == 0, load.output + load.cluster.logs()
    assert visible(load.lake) == on_broker(faulty.bootstrap_servers, topic)
    assert list((load.lake / "_kbload/staging").iterdir()) == []


def test_an_executor_is_killed_under_a_load(load: ClusterLoad, faulty: Broker, topic: str) -> None:
    """What it has begun goes on for a while: Python processes notice later that they are alone."""
    with load:
        attempt = load.a_stopped_attempt()
        attempt.executor.kill()
        attempt.process.resume()
        ends_well(load, faulty, topic)
    assert "ExecutorLostFailure" in reasons_of_failures(load.events)


def test_a_broker_is_killed_under_a_load(load: ClusterLoad, faulty: Broker, topic: str) -> None:
    with load:
        attempt = load.a_stopped_attempt()
        faulty.kill()
        attempt.process.resume()
        faulty.start()
        ends_well(load, faulty, topic)
    assert reasons_of_failures(load.events) == []


def test_a_driver_is_killed_under_a_load(load: ClusterLoad, faulty: Broker, topic: str) -> None:
    """The load's tasks go on for a while; what they have staged is the next load's to clean up."""
    with load:
        attempt = load.a_stopped_attempt()
        load.kill()
        attempt.process.resume()
    assert visible(load.lake) == {}
    with load:
        ends_well(load, faulty, topic)


# --- streams ------------------------------------------------------------------------------------------------


@pytest.fixture
def query(cluster: SparkCluster, faulty: Broker, topic: str, tmp_path: Path) -> dict[str, Any]:
    return exactly_once(faulty.bootstrap_servers, topic, tmp_path, ROWS) | cluster.of_a_query(tmp_path / "events")


def check(query: dict[str, Any]) -> None:
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))
    assert open_transactions(query["servers"]) == []


def test_an_executor_is_killed_under_a_stream(
    cluster: SparkCluster, faulty: Broker, query: dict[str, Any], tmp_path: Path
) -> None:
    """The executor's tasks have written their rows, but not yet all that belongs to them."""
    fault = faulty.faults.error("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=None)
    with QueryProcess(query, tmp_path / "query.log") as process:
        await_that(lambda: fault.struck > 20, "tasks that write")
        cluster.executors()[0].kill()
        faulty.faults.clear()
        process.wait()
    assert "ExecutorLostFailure" in reasons_of_failures(tmp_path / "events")
    check(query)


@pytest.mark.parametrize("step", ["tasks write", "the batch is decided", "one of three is committed"])
def test_a_broker_is_killed_under_a_stream(faulty: Broker, query: dict[str, Any], tmp_path: Path, step: str) -> None:
    """EndTxn: one for the decision, then one for each task."""
    api, after = {
        "tasks write": ("TxnOffsetCommit", 0),
        "the batch is decided": ("EndTxn", 1),
        "one of three is committed": ("EndTxn", 2),
    }[step]
    fault = faulty.faults.error(api, "COORDINATOR_LOAD_IN_PROGRESS", times=None, after=after)
    with QueryProcess(query, tmp_path / "query.log") as process:
        await_that(lambda: fault.struck > 0, step)
        faulty.kill()
        faulty.faults.clear()
        faulty.start()
        process.wait()
    check(query)


def test_a_driver_is_killed_under_a_stream(faulty: Broker, query: dict[str, Any], tmp_path: Path) -> None:
    """When one of three tasks' transactions is committed; the next driver ends the others."""
    fault = faulty.faults.error("EndTxn", "COORDINATOR_LOAD_IN_PROGRESS", times=None, after=2)
    with QueryProcess(query, tmp_path / "query.log") as process:
        process.kill_when(lambda: fault.struck > 0)
    faulty.faults.clear()
    with QueryProcess(query, tmp_path / "query.log") as process:
        process.wait()
    check(query)
