"""Writing to brokers that are away, that go, or that have no such topic: what each way of writing says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kbroker.client import AdminClient
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line
from tests.kit.spark.sink_query import committed, fill, open_transactions

pytestmark = pytest.mark.slow

WAYS = ("batch", "at least once", "exactly once")
QUICK = {
    "kafka.max.block.ms": "1500",
    "kafka.delivery.timeout.ms": "2500",
    "kafka.request.timeout.ms": "1000",
    "kafka.default.api.timeout.ms": "1500",
}


def write(rows: DataFrame, way: str, servers: str, topic: str, checkpoint: Path) -> None:
    options = {"kafka.bootstrap.servers": servers, "topic": topic, **QUICK}
    if way == "batch":
        rows.write.format("kbroker").mode("append").options(**options).save()
        return
    stream = rows.writeStream.format("kbroker").options(**options, exactlyOnce=str(way == "exactly once"))
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def rows_of(spark: SparkSession, broker: Broker, topic: str, way: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    reader = spark.read if way == "batch" else spark.readStream
    return reader.format("kafka").options(**options).load().select("value")


def check(found: list[int], way: str) -> None:
    """Tasks that were cancelled may still write, when their broker is there again."""
    assert set(found) == set(range(300))
    assert len(found) == 300 or way != "exactly once"


@pytest.fixture
def source(broker: Broker, topic: str) -> str:
    fill(broker.bootstrap_servers, f"{topic}-in", 0, 300)
    return f"{topic}-in"


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_is_away_is_named(
    spark: SparkSession, broker: Broker, source: str, tmp_path: Path, way: str
) -> None:
    with pytest.raises(PySparkException) as error:
        write(rows_of(spark, broker, source, way), way, "127.0.0.1:1", "t", tmp_path)
    assert "cannot connect to 127.0.0.1:1: connection refused" in last_line(error.value)
    assert "bootstrap.servers" in last_line(error.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_that_nobody_makes_is_named(
    spark: SparkSession, broker: Broker, source: str, topic: str, tmp_path: Path, way: str
) -> None:
    with Broker(settings={"auto.create.topics.enable": "false"}) as other:
        rows = rows_of(spark, broker, source, way)
        with pytest.raises(PySparkException) as error:
            write(rows, way, other.bootstrap_servers, topic, tmp_path)
        says = f"topic '{topic}': UNKNOWN_TOPIC_OR_PARTITION (create the topic, or look for a slip in its name)"
        assert says in last_line(error.value)
        assert open_transactions(other.bootstrap_servers) == []
        with AdminClient(bootstrap_servers=other.bootstrap_servers) as admin:
            assert topic not in admin.list_topics()
        other.create_topic(topic, 3)
        write(rows, way, other.bootstrap_servers, topic, tmp_path)
        check(committed(other.bootstrap_servers, topic), way)


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_goes_under_a_task_is_named(
    spark: SparkSession, broker: Broker, source: str, topic: str, tmp_path: Path, way: str
) -> None:
    with Broker(faults=True, settings={"num.partitions": 3}) as other:
        servers = other.bootstrap_servers
        fill(servers, topic, 0, 0)
        rows = rows_of(spark, broker, source, way)
        other.faults.drop("Produce", times=None)
        with pytest.raises(PySparkException) as error:
            write(rows, way, servers, topic, tmp_path)
        assert f"NotDelivered: topic {topic}: " in last_line(error.value)
        assert "delivery.timeout.ms" in last_line(error.value)
        other.faults.clear()
        write(rows, way, servers, topic, tmp_path)
        check(committed(servers, topic), way)
        assert open_transactions(servers) == []
