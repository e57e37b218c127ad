"""Streams as topics: at least once as Spark's own connector writes them, and exactly once whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kbroker.testing import Broker
from tests.kit.parts.processors import wait_until
from tests.kit.spark.sink_query import PARTITIONS, committed, fill, open_transactions, start

ROWS = 300  # of a batch
SLOW = pytest.mark.slow
SHORT = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "1000", "kafka.max.block.ms": "3000"}


@pytest.fixture(scope="module")
def faulty() -> Iterator[Broker]:
    settings = {"num.partitions": PARTITIONS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker(faults=True, settings=settings) as broker:
        yield broker


@pytest.fixture
def query(faulty: Broker, topic: str, tmp_path: Path) -> dict[str, Any]:
    """Two batches of three tasks."""
    faulty.faults.clear()
    faulty.faults._seen.clear()
    fill(faulty.bootstrap_servers, f"{topic}-in", 0, 2 * ROWS)
    return {
        "servers": faulty.bootstrap_servers,
        "source": f"{topic}-in",
        "sink": topic,
        "rows": ROWS,
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {"exactlyOnce": "true"},
    }


def run(spark: SparkSession, query: dict[str, Any]) -> None:
    assert start(spark, query).awaitTermination(60)


def fail(spark: SparkSession, query: dict[str, Any]) -> str:
    """What it fails with."""
    with pytest.raises(StreamingQueryException) as error:
        start(spark, query).awaitTermination(60)
    return str(error.value)


@pytest.mark.parametrize("form", ["kbroker", pytest.param("kafka", marks=SLOW)])
def test_a_stream_is_written_at_least_once(spark: SparkSession, query: dict[str, Any], form: str) -> None:
    query |= {"form": form, "options": {}}
    run(spark, query)
    fill(query["servers"], query["source"], 2 * ROWS, 2 * ROWS + 10)
    run(spark, query)
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS + 10))


def test_a_stream_is_written_exactly_once_while_nothing_fails(spark: SparkSession, query: dict[str, Any]) -> None:
    run(spark, query)
    fill(query["servers"], query["source"], 2 * ROWS, 2 * ROWS + 1)  # two tasks without rows
    run(spark, query)
    run(spark, query)
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS + 1))
    assert open_transactions(query["servers"]) == []


def test_options_of_streams_are_checked(spark: SparkSession, query: dict[str, Any]) -> None:
    del query["sink"]
    options = {"topic": " ", "exactlyOnce": "perhaps"}
    for name, value, says in (
        ("topic", " ", "option topic is empty"),
        ("exactlyOnce", "perhaps", "option exactlyOnce='perhaps'"),
        ("kafka.transactional.id", "mine", "exactlyOnce=true has ids of its own"),
    ):
        options = {"topic": "t", "exactlyOnce": "true", name: value}
        assert says in fail(spark, query | {"sink": options.pop("topic"), "options": options})


def test_exactly_once_needs_to_know_the_topic(spark: SparkSession, query: dict[str, Any]) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("'t' topic", "'v' value")
    writer = rows.writeStream.format("kbroker").option("kafka.bootstrap.servers", query["servers"])
    with pytest.raises(StreamingQueryException, match="option exactlyOnce=true needs option topic"):
        writer.option("exactlyOnce", True).option("checkpointLocation", query["checkpoint"]).start().awaitTermination(
            60
        )


# --- what goes wrong --------------------------------------------------------------------------------------
#
# EndTxn is asked for by the driver alone: first for its decision, then for the transactions of three tasks.


@pytest.mark.parametrize(
    "after", [pytest.param(0, marks=SLOW), 1, pytest.param(2, marks=SLOW), pytest.param(4, marks=SLOW)]
)
def test_what_the_driver_is_kept_from_is_done_when_the_query_starts_again(
    spark: SparkSession, query: dict[str, Any], faulty: Broker, after: int
) -> None:
    """With 4 the first batch is written and the second is not decided."""
    faulty.faults.error("EndTxn", "CONCURRENT_TRANSACTIONS", times=None, after=after)
    said = fail(spark, query | {"options": query["options"] | SHORT})
    assert ("commit_transaction took longer" if after in (0, 4) else "CONCURRENT_TRANSACTIONS") in said
    faulty.faults.clear()
    run(spark, query)
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))
    assert open_transactions(query["servers"]) == []


@SLOW
@pytest.mark.parametrize("tasks", [3, 2, 5])
@pytest.mark.parametrize("after", [1, 2])
def test_another_number_of_tasks_is_no_matter(
    spark: SparkSession, query: dict[str, Any], faulty: Broker, after: int, tasks: int
) -> None:
    """Here with a transaction of three that is committed, and without any."""
    query |= {"tasks": 3}
    faulty.faults.error("EndTxn", "CONCURRENT_TRANSACTIONS", times=None, after=after)
    fail(spark, query | {"options": query["options"] | SHORT})
    faulty.faults.clear()
    run(spark, query | {"tasks": tasks})
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))


def lose(spark: SparkSession, query: dict[str, Any], faulty: Broker, committed_tasks: int) -> None:
    """The first batch is decided, and so many of its transactions are committed when the time of all is over."""
    faulty.faults.error("EndTxn", "CONCURRENT_TRANSACTIONS", times=None, after=1 + committed_tasks)
    timeout = {"kafka.transaction.timeout.ms": "8000"}
    fail(spark, query | {"options": query["options"] | SHORT | timeout})
    faulty.faults.clear()
    wait_until(lambda: not open_transactions(query["servers"]), "transactions that time out", 60)


@SLOW
@pytest.mark.parametrize("tasks", [3, 2, 5])
def test_transactions_that_are_lost_are_written_anew(
    spark: SparkSession, query: dict[str, Any], faulty: Broker, tasks: int
) -> None:
    lose(spark, query | {"tasks": 3}, faulty, 0)
    assert committed(query["servers"], query["sink"]) == []
    run(spark, query | {"tasks": tasks})
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))


@SLOW
def test_a_batch_of_which_half_is_lost_is_not_guessed_at(
    spark: SparkSession, query: dict[str, Any], faulty: Broker
) -> None:
    lose(spark, query, faulty, 1)
    before = committed(query["servers"], query["sink"])
    assert len(before) == ROWS // 3
    for _ in range(2):
        assert "the transactions of 2 of 3 tasks were aborted when others were committed" in fail(spark, query)
        assert committed(query["servers"], query["sink"]) == before
    at_least = {"rows": ROWS, "options": {}}
    run(spark, query | at_least)
    assert set(committed(query["servers"], query["sink"])) == set(range(2 * ROWS))
    fill(query["servers"], query["source"], 2 * ROWS, 3 * ROWS)
    run(spark, query)
    found = [number for number in committed(query["servers"], query["sink"]) if number >= 2 * ROWS]
    assert found == list(range(2 * ROWS, 3 * ROWS))


@SLOW
def test_a_batch_that_takes_longer_than_its_transactions_is_not_decided(
    spark: SparkSession, query: dict[str, Any], faulty: Broker
) -> None:
    faulty.faults.delay("TxnOffsetCommit", 4, times=1)
    short = {"kafka.transaction.timeout.ms": "2000"}
    said = fail(spark, query | {"options": query["options"] | short})
    assert "A batch may not take longer than a transaction" in said or "INVALID_PRODUCER_EPOCH" in said
    assert committed(query["servers"], query["sink"]) == []
    run(spark, query)
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))


def test_an_attempt_that_fails_leaves_nothing_open(spark: SparkSession, query: dict[str, Any], faulty: Broker) -> None:
    faulty.faults.error("TxnOffsetCommit", "GROUP_AUTHORIZATION_FAILED", times=None)
    assert "GROUP_AUTHORIZATION_FAILED" in fail(spark, query)
    assert open_transactions(query["servers"]) == []
    faulty.faults.clear()
    run(spark, query)
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))


@SLOW
def test_a_query_that_was_set_back_writes_nothing_again(
    spark: SparkSession, query: dict[str, Any], tmp_path: Path
) -> None:
    run(spark, query)
    checkpoint = Path(query["checkpoint"])
    for number in (0, 1):
        for kind in ("offsets", "commits"):
            (checkpoint / kind / f"{number}").unlink()
            (checkpoint / kind / f".{number}.crc").unlink(missing_ok=True)
    assert "has gone further, or its checkpoint was set back" in fail(spark, query)
    assert committed(query["servers"], query["sink"]) == list(range(2 * ROWS))
