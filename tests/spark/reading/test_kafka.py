"""The same with Apache Kafka 4.3.1: rows, offsets and checkpoints, beside Spark's own connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kbroker.client import AdminClient, Producer
from tests.kit.kafka.process import Kafka4InMemory
from tests.kit.spark.topics import delete_before, fill, places
from tests.spark.both_formats import FORMATS, OURS, THEIRS, Stream, load, place_of_error, rows
from tests.spark.reading.test_batches import OPTIONS as BATCH_OPTIONS
from tests.spark.reading.test_streams import OPTIONS as STREAM_OPTIONS

pytestmark = pytest.mark.slow
FILLED = "filled-in-kafka"  # of no other broker: Spark's connector knows its consumers by group and topic alone


class SmallKafka(Kafka4InMemory):
    heap = "256m"


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """Where it is reached."""
    with SmallKafka() as found:
        fill(found.address, FILLED, 3, 300)
        yield found.address


Given = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize("given", BATCH_OPTIONS.values(), ids=BATCH_OPTIONS.keys())
def test_batches_are_those_of_the_jvm_connector(spark: SparkSession, kafka: str, given: Given) -> None:
    ours = load(spark, kafka, OURS, **given(FILLED))
    theirs = load(spark, kafka, THEIRS, **given(FILLED))
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)


@pytest.mark.parametrize("given", STREAM_OPTIONS.values(), ids=STREAM_OPTIONS.keys())
def test_streams_are_those_of_the_jvm_connector(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path, given: Given
) -> None:
    fill(kafka, topic, 3, 100)
    ours, theirs = (Stream(spark, tmp_path / form, kafka, form, **given(topic)) for form in FORMATS)
    ours.run()
    theirs.run()
    assert ours.rows() == theirs.rows()
    assert ours.logged() == theirs.logged()


@pytest.mark.parametrize("first", FORMATS)
def test_a_stream_goes_on_after_partitions_were_added_in_the_other_format(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path, first: str
) -> None:
    fill(kafka, topic, 2, 50)
    query = Stream(spark, tmp_path, kafka, first, subscribe=topic, startingOffsets="earliest")
    query.run()
    with AdminClient(bootstrap_servers=kafka) as admin:
        admin.create_partitions(topic, 3)
    fill(kafka, topic, 3, 30, make=False)
    query.form = OURS if first == THEIRS else THEIRS
    query.run()
    assert query.logged()[-1] == places(topic, 35, 35, 10)
    assert query.offsets() == [(topic, n, at) for n, count in enumerate((35, 35, 10)) for at in range(count)]


def test_transactions_are_read_as_they_end(spark: SparkSession, kafka: str, topic: str) -> None:
    with AdminClient(bootstrap_servers=kafka) as admin:
        admin.create_topic(topic, 1)
    with Producer(bootstrap_servers=kafka, transactional_id=topic) as producer:
        producer.init_transactions()
        for i in range(4):
            producer.begin_transaction()
            producer.send_many(topic, [b"%d" % i] * 20, partitions=0)
            producer.flush()
            if i < 3:
                (producer.abort_transaction if i % 2 else producer.commit_transaction)()
        for level, count in (("read_committed", 40), ("read_uncommitted", 80)):
            given: dict[str, Any] = {"subscribe": topic, "kafka.isolation.level": level, "minPartitions": 3}
            given["kafkaConsumer.pollTimeoutMs"] = 15_000  # less than the transaction may be open
            ours, theirs = (rows(load(spark, kafka, form, **given)) for form in FORMATS)
            assert ours == theirs
            assert len(ours) == count
        producer.abort_transaction()


def test_offsets_that_are_gone(spark: SparkSession, kafka: str, topic: str, tmp_path: Path) -> None:
    fill(kafka, topic, 1, 50)
    both = [
        Stream(spark, tmp_path / form, kafka, form, subscribe=topic, startingOffsets="earliest") for form in FORMATS
    ]
    for query in both:
        query.run()
    fill(kafka, topic, 1, 50, make=False)
    delete_before(kafka, (topic, 0, 80))
    given = {"subscribe": topic, "startingOffsets": places(topic, 20)}
    for query in both:
        assert place_of_error(spark, kafka, query.form, given)[0] == "action"
        lenient = rows(load(spark, kafka, query.form, failOnDataLoss=False, **given))
        assert [row.offset for row in lenient] == list(range(80, 100))
        with pytest.raises(StreamingQueryException):
            query.run()
        query.given["failOnDataLoss"] = False
        query.run()
        assert query.offsets() == [(topic, 0, at) for at in [*range(50), *range(80, 100)]]


def test_rows_are_written_as_the_jvm_connector_writes_them(spark: SparkSession, kafka: str, topic: str) -> None:
    """Records of every kind are read in the order of each partition; those with a null in `partition` stay there."""
    columns = "key", "value", "headers", "partition"
    written = {}
    for form in FORMATS:
        with AdminClient(bootstrap_servers=kafka) as admin:
            admin.create_topic(f"{topic}-{form}", 3)
        given = load(spark, kafka, THEIRS, subscribe=FILLED, includeHeaders=True).coalesce(1)
        chosen = given.withColumn("partition", F.when(F.col("key").isNull() | (F.col("offset") % 2 == 0), 1))
        writer = chosen.select(*columns).write.format(form).mode("append").option("topic", f"{topic}-{form}")
        writer.option("kafka.bootstrap.servers", kafka).save()
        found = rows(load(spark, kafka, THEIRS, subscribe=f"{topic}-{form}", includeHeaders=True))
        written[form] = [(row.partition, row.offset, row.key, row.value, row.headers) for row in found]
    assert written[OURS] == written[THEIRS]
    assert len(written[OURS]) == 300
    assert {partition for partition, *_ in written[OURS]} == {0, 1, 2}
