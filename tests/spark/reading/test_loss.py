"""Records that go while they are read, and brokers that go: both ways of failOnDataLoss, beside Spark's connector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from kbroker.client import Producer
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line
from tests.kit.spark.topics import QUICK, delete_before, delete_topic, fill, places
from tests.spark.both_formats import FORMATS, Stream, load, offsets

# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_offsets_that_are_gone_before_a_task_reads_them(
    spark: SparkSession, broker: Broker, topic: str, form: str
) -> None:
    fill(broker.bootstrap_servers, topic, 2, 100)
    delete_before(broker.bootstrap_servers, (topic, 0, 30), (topic, 1, 50))
    given = {
        "subscribe": topic,
        "startingOffsets": places(topic, 10, 10),
        "endingOffsets": places(topic, 50, 40),
        **QUICK,
    }
    found = load(spark, broker.bootstrap_servers, form, failOnDataLoss=False, **given)
    assert offsets(found) == [(topic, 0, at) for at in range(30, 50)]
    with pytest.raises((PySparkException, Py4JJavaError)) as lost:
        load(spark, broker.bootstrap_servers, form, **given).collect()
    if form == "kbroker":
        assert "DataLoss: " in last_line(lost.value)
        assert "some are gone, it has" in last_line(lost.value)
        assert "set failOnDataLoss=false" in last_line(lost.value)


def test_damaged_records_are_named_by_topic_partition_and_offset(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with Broker(directory=tmp_path / "data") as broker:
        broker.create_topic(topic, 1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for i in range(5):
                producer.send(topic, b"value %d" % i, partition=0).result(10)
        broker.stop()
        (segment,) = (tmp_path / "data" / f"{topic}-0").glob("*.log")
        stored = segment.read_bytes()
        assert b"value 3" in stored
        segment.write_bytes(stored.replace(b"value 3", b"value X"))
        broker.start()
        with pytest.raises((PySparkException, Py4JJavaError)) as damaged:
            load(spark, broker.bootstrap_servers, subscribe=topic, **QUICK).collect()
        assert f"{topic}-0: the records at offset 3 cannot be read" in str(damaged.value)
        given = {"subscribe": topic, "endingOffsets": places(topic, 3)}
        assert len(offsets(load(spark, broker.bootstrap_servers, **given))) == 3


# --- streams ------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Callable[..., Stream]:
    def make(form: str, **given: Any) -> Stream:
        return Stream(spark, tmp_path / form, broker.bootstrap_servers, form, **QUICK, **given)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_retention_overtakes_a_stream(stream: Callable[..., Stream], broker: Broker, topic: str, form: str) -> None:
    fill(broker.bootstrap_servers, topic, 1, 20)
    query = stream(form, subscribe=topic, startingOffsets="earliest")
    query.run()
    fill(broker.bootstrap_servers, topic, 1, 40, make=False)
    delete_before(broker.bootstrap_servers, (topic, 0, 50))
    with pytest.raises(StreamingQueryException) as lost:
        query.run()
    if form == "kbroker":
        assert "of the offsets 20 to 60 some are gone, it has 50 to 60" in str(lost.value)
    query.given["failOnDataLoss"] = False
    query.run()
    assert query.offsets() == [(topic, 0, at) for at in [*range(20), *range(50, 60)]]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_topic_is_made_again_under_a_stream(
    stream: Callable[..., Stream], broker: Broker, topic: str, form: str
) -> None:
    fill(broker.bootstrap_servers, topic, 1, 20)
    query = stream(form, subscribe=topic, startingOffsets="earliest")
    query.run()
    delete_topic(broker.bootstrap_servers, topic)
    fill(broker.bootstrap_servers, topic, 1, 5)
    with pytest.raises(StreamingQueryException) as lost:
        query.run()
    if form == "kbroker":
        assert f"{topic}-0 ends at offset 5, but has been read up to 20; set failOnDataLoss=false" in str(lost.value)
    query.given["failOnDataLoss"] = False
    query.run()  # goes on at the end of the new one
    fill(broker.bootstrap_servers, topic, 1, 3, make=False)
    query.run()
    assert query.logged()[-1] == places(topic, 8)
    assert query.offsets() == [(topic, 0, at) for at in sorted([*range(20), 5, 6, 7])]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_one_of_a_streams_topics_is_deleted_and_comes_again(
    stream: Callable[..., Stream], broker: Broker, topic: str, form: str
) -> None:
    stays, goes = f"{topic}.stays", f"{topic}.goes"
    fill(broker.bootstrap_servers, stays, 1, 10)
    fill(broker.bootstrap_servers, goes, 1, 10)
    query = stream(form, subscribePattern=f"^{topic}[.]", startingOffsets="earliest")
    query.run()
    delete_topic(broker.bootstrap_servers, goes)
    fill(broker.bootstrap_servers, stays, 1, 5, make=False)
    with pytest.raises(StreamingQueryException) as lost:
        query.run()
    if form == "kbroker":
        assert f"{goes}-0 is gone" in str(lost.value)
    query.given["failOnDataLoss"] = False
    query.run()
    assert query.logged()[-1] == places(stays, 15)
    fill(broker.bootstrap_servers, goes, 1, 3)
    query.run()
    assert query.logged()[-1] == places(stays, 15) | places(goes, 3)
    wanted = [(goes, 0, at) for at in sorted([*range(10), *range(3)])] + [(stays, 0, at) for at in range(15)]
    assert query.offsets() == wanted
