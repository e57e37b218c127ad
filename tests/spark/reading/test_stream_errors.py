"""Mistakes in streams, and what their brokers do to them: what the query that fails says, and that nothing was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from kbroker.client import Producer
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line
from tests.kit.spark.topics import QUICK, fill, places
from tests.spark.both_formats import OURS, THEIRS, Stream

TOPIC = "mistaken-stream"
SLOW = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def filled(broker: Broker) -> None:
    """100 records in two partitions."""
    fill(broker.bootstrap_servers, TOPIC, 2, 100)


def refused(spark: SparkSession, folder: Path, servers: str, form: str, given: dict[str, Any]) -> tuple[str, str]:
    """Where a query fails, `load` or `query`, and what it says; that it has written nothing."""
    stream = Stream(spark, folder / form, servers, form, **(QUICK | given))
    where = "query"
    with pytest.raises((PySparkException, Py4JJavaError)) as error:
        stream.run()
    if not isinstance(error.value, StreamingQueryException):
        where = "load"
    assert not list(stream.output.glob("_spark_metadata/*"))
    return where, last_line(error.value)


SUBSCRIBED: dict[str, Any] = {"subscribe": TOPIC}
BOTH = [
    ({}, "load", "one of the options subscribe, subscribePattern, assign must say what is read"),
    (SUBSCRIBED | {"assign": {TOPIC: [0]}}, "load", "only one of the options subscribe, assign may say"),
    (
        SUBSCRIBED | {"startingOffsets": places(TOPIC, 1)},
        "query",
        "option startingOffsets says nothing of mistaken-stream-1: it must name all partitions",
    ),
    (
        SUBSCRIBED | {"startingOffsets": places(TOPIC, 1, 1, 1)},
        "query",
        "option startingOffsets names mistaken-stream-2, which is not read",
    ),
    (
        SUBSCRIBED | {"startingOffsets": places(TOPIC, 1000, 1)},
        "query",
        "DataLoss: mistaken-stream-0 would begin at offset 1000, behind its end 50; set failOnDataLoss=false",
    ),
]


@pytest.mark.parametrize(
    ("given", "where", "says"),
    [pytest.param(*each, id=each[2][:50], marks=[] if each is BOTH[-1] else SLOW) for each in BOTH],
)
def test_what_the_jvm_connector_refuses_is_refused_by_name(
    spark: SparkSession, broker: Broker, tmp_path: Path, given: dict[str, Any], where: str, says: str
) -> None:
    found, said = refused(spark, tmp_path, broker.bootstrap_servers, OURS, given)
    assert (found, says in said) == (where, True), said
    assert refused(spark, tmp_path, broker.bootstrap_servers, THEIRS, given)[0] == where


@SLOW
def test_a_broker_that_is_away_is_named(spark: SparkSession, tmp_path: Path) -> None:
    where, said = refused(spark, tmp_path, "127.0.0.1:1", OURS, SUBSCRIBED)
    assert where == "query"
    assert "127.0.0.1:1: connection refused (is a broker there, and bootstrap.servers right?)" in said


@SLOW
def test_a_broker_that_dies_under_a_query_is_named(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    with Broker() as broker:
        fill(broker.bootstrap_servers, topic, 1, 10)
        given = QUICK | {"subscribe": topic, "startingOffsets": "earliest"}
        stream = Stream(spark, tmp_path, broker.bootstrap_servers, **given)
        query = stream.start()
        query.processAllAvailable()
        broker.kill()
        with pytest.raises(StreamingQueryException) as error:
            query.awaitTermination(60)
        assert f"{broker.bootstrap_servers}: connection refused" in last_line(error.value)
        broker.start()
        fill(broker.bootstrap_servers, topic, 1, 5, make=False)
        stream.run()
        assert stream.offsets() == [(topic, 0, at) for at in range(15)]


@SLOW
@pytest.mark.parametrize("fails", [True, False])
def test_damaged_records_end_a_query(spark: SparkSession, topic: str, tmp_path: Path, fails: bool) -> None:
    with Broker(directory=tmp_path / "data") as broker:
        broker.create_topic(topic, 1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(3):
                producer.send(topic, b"value %d" % number, partition=0).result(30)
        broker.stop()
        (segment,) = (tmp_path / "data" / f"{topic}-0").glob("*.log")
        segment.write_bytes(segment.read_bytes().replace(b"value 1", b"valuE 1"))
        broker.start()
        given = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": fails}
        where, said = refused(spark, tmp_path, broker.bootstrap_servers, OURS, given)
        assert where == "query"
        assert f"{topic}-0: the records at offset 1 cannot be read" in said
