"""Loads whose tasks run in Spark: what readers see meanwhile, and what is left when workers and drivers are killed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kbroker.spark import load
from kbroker.spark.loader.errors import LoadFailed
from kbroker.testing import Broker
from tests.kit.spark import load_in_spark
from tests.kit.spark.load import create, fill, on_broker, visible


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    create(broker.bootstrap_servers, topic, 4)
    fill(broker.bootstrap_servers, topic, 4, 500)
    return topic


def test_readers_of_a_glob_never_see_a_row_twice(
    spark: SparkSession, broker: Broker, filled: str, tmp_path: Path
) -> None:
    lake, servers = tmp_path / "lake", broker.bootstrap_servers
    stop, counts, failures = threading.Event(), set(), []

    def look() -> None:
        while not stop.is_set():
            try:
                counts.add(len(visible(lake)))
            except FileNotFoundError:  # it has just been replaced
                continue
            except AssertionError as error:
                failures.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        load(filled, lake, bootstrap_servers=servers, spark=spark, task_bytes=20_000)
        fill(servers, filled, 4, 100, start=500)
        load(filled, lake, bootstrap_servers=servers, spark=spark, reload_since_ms=0, task_bytes=30_000)
    finally:
        stop.set()
        reader.join()
    assert failures == []
    assert len(counts) > 1
    assert visible(lake) == on_broker(servers, filled)
    rows = spark.read.parquet(str(lake))
    assert rows.count() == rows.select("topic", "partition", "offset").distinct().count() == 4 * 600


def test_why_a_task_failed_is_said_in_one_line(
    spark: SparkSession, broker: Broker, filled: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadFailed, match=r"^a task has failed: ArrowInvalid: Codec 'snappy' does") as failed:
        load(
            filled,
            tmp_path / "lake",
            bootstrap_servers=broker.bootstrap_servers,
            spark=spark,
            compression="snappy",
            compression_level=99,
        )
    assert "\n" not in str(failed.value)
    assert visible(tmp_path / "lake") == {}


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_workers_that_are_killed(broker: Broker, filled: str, tmp_path: Path) -> None:
    lake, servers = tmp_path / "lake", broker.bootstrap_servers
    child = load_in_spark.begin(tmp_path / "attempts", lake, servers, filled, "die")
    assert load_in_spark.ended(child) == 0
    assert {path.name for path in (tmp_path / "attempts").iterdir()} >= {"unit-0-1", "unit-1-1", "unit-2-1"}
    assert visible(lake) == on_broker(servers, filled)
    assert list((lake / "_kbload/staging").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_driver_that_is_killed(spark: SparkSession, broker: Broker, filled: str, tmp_path: Path) -> None:
    lake, servers = tmp_path / "lake", broker.bootstrap_servers
    child = load_in_spark.begin(tmp_path / "attempts", lake, servers, filled, "wait")
    try:
        load_in_spark.await_file(tmp_path / "attempts/unit-0-0")
        load_in_spark.await_file(tmp_path / "attempts/unit-1-0")
    finally:
        child.kill()
        child.wait()
    (tmp_path / "attempts/go").touch()
    assert visible(lake) == {}
    assert load(filled, lake, bootstrap_servers=servers, spark=spark).commits == [1]
    assert visible(lake) == on_broker(servers, filled)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_an_attempt_that_goes_on_after_it_was_given_up(
    spark: SparkSession, broker: Broker, filled: str, tmp_path: Path
) -> None:
    """What the attempt writes is in nobody's way, as with speculation."""
    lake, servers, attempts = tmp_path / "lake", broker.bootstrap_servers, tmp_path / "attempts"
    child = load_in_spark.begin(attempts, lake, servers, filled, "straggle")
    try:
        assert load_in_spark.ended(child) == 0
        assert (attempts / "unit-0-1").exists()
        assert visible(lake) == on_broker(servers, filled)
        (attempts / "straggled").unlink(missing_ok=True)
        load_in_spark.await_file(attempts / "straggled")
        fill(servers, filled, 4, 10, start=500)
        load(filled, lake, bootstrap_servers=servers, spark=spark)
        assert visible(lake) == on_broker(servers, filled)
    finally:
        (attempts / "stop").touch()
