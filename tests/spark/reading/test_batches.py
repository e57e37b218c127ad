"""Topics as DataFrames: every option, beside Spark's own connector."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest
from pyspark.sql import SparkSession

from kbroker.client import AdminClient, Consumer, Producer, TopicPartition
from kbroker.spark import read, stream
from kbroker.spark.options.format_options import COLUMNS, Use
from kbroker.spark.reading.batch_reader import BatchReader
from kbroker.spark.reading.read_options import read_options
from kbroker.spark.schema import schema_of
from kbroker.testing import Broker
from tests.kit.spark.topics import T0_MS, delete_before, fill, options, places
from tests.spark.both_formats import FORMATS, OURS, THEIRS, load, rows

Given = Callable[[str], dict[str, Any]]
QUICK = ("assign", "headers", "offsets", "time", "times", "small_and_many")  # the others are slow


@pytest.fixture(scope="module")
def filled(broker: Broker) -> str:
    """300 records in three partitions."""
    fill(broker.bootstrap_servers, "filled", 3, 300)
    return "filled"


OPTIONS: dict[str, Given] = {
    "subscribe": lambda t: {"subscribe": t},
    "subscribe_with_spaces": lambda t: {"subscribe": f" {t} ,, "},
    "pattern": lambda t: {"subscribePattern": f"^{t}$"},
    "assign": lambda t: {"assign": {t: [0, 2]}},
    "headers": lambda t: {"subscribe": t, "includeHeaders": True},
    "earliest": lambda t: {"subscribe": t, "startingOffsets": " Earliest "},
    "offsets": lambda t: {
        "subscribe": t,
        "startingOffsets": places(t, 10, -2, 99),
        "endingOffsets": places(t, 20, 5, -1),
    },
    "nothing": lambda t: {
        "subscribe": t,
        "startingOffsets": places(t, 10, 10, 100),
        "endingOffsets": places(t, 10, 10, 100),
    },
    "time": lambda t: {"subscribe": t, "startingTimestamp": T0_MS + 30, "endingTimestamp": str(T0_MS + 100)},
    "times": lambda t: {
        "subscribe": t,
        "startingOffsetsByTimestamp": places(t, T0_MS + 7, T0_MS, 5),
        "endingOffsetsByTimestamp": places(t, T0_MS + 50, T0_MS + 51, T0_MS + 100_000),
    },
    "time_before_offsets": lambda t: {
        "subscribe": t,
        "startingTimestamp": T0_MS + 290,
        "startingOffsetsByTimestamp": places(t, 1, 1, 1),
        "startingOffsets": "latest",
    },
    "time_that_is_too_late": lambda t: {
        "subscribe": t,
        "startingTimestamp": T0_MS + 300,
        "startingOffsetsByTimestampStrategy": "LATEST",
    },
    "time_to_offset": lambda t: {"subscribe": t, "startingTimestamp": T0_MS, "endingOffsets": places(t, 3, 4, 5)},
    "many_tasks": lambda t: {"subscribe": t, "minPartitions": 7},
    "few_tasks": lambda t: {"subscribe": t, "minPartitions": 1},
    "small_tasks": lambda t: {"subscribe": t, "maxRecordsPerPartition": 40},
    "small_and_many": lambda t: {"subscribe": t, "maxRecordsPerPartition": 90, "minPartitions": 8},
    "stream_options": lambda t: {"subscribe": t, "maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 2},
    "group": lambda t: {"subscribe": t, "kafka.group.id": "any", "groupIdPrefix": "some"},
    "lenient": lambda t: {"subscribe": t, "failOnDataLoss": False, "fetchOffset.numRetries": 1},
}


@pytest.mark.parametrize(
    "given",
    [pytest.param(given, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, given in OPTIONS.items()],
)
def test_rows_and_schema_are_those_of_the_jvm_connector(
    spark: SparkSession, broker: Broker, filled: str, given: Given
) -> None:
    ours = load(spark, broker.bootstrap_servers, OURS, **given(filled))
    theirs = load(spark, broker.bootstrap_servers, THEIRS, **given(filled))
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)


@pytest.mark.parametrize(
    ("given", "tasks"),
    [
        ({}, 3),
        ({"minPartitions": 2}, 3),
        ({"minPartitions": 7}, 6),
        ({"maxRecordsPerPartition": 40}, 9),
        ({"maxRecordsPerPartition": 40, "minPartitions": 5}, 9),
    ],
)
def test_there_are_as_many_tasks_as_are_wanted(
    spark: SparkSession, broker: Broker, filled: str, given: dict[str, Any], tasks: int
) -> None:
    frame = load(spark, broker.bootstrap_servers, subscribe=filled, **given)
    assert frame.rdd.getNumPartitions() == tasks


def test_only_chosen_columns_are_read(spark: SparkSession, broker: Broker, filled: str) -> None:
    frame = load(spark, broker.bootstrap_servers, subscribe=filled, columns="value,headers,offset")
    assert frame.columns == ["value", "headers", "offset"]
    wanted = load(spark, broker.bootstrap_servers, THEIRS, subscribe=filled, includeHeaders=True)
    assert sorted(frame.collect(), key=str) == sorted(wanted.select("value", "headers", "offset").collect(), key=str)


@pytest.mark.parametrize("size", [100, 1000])
def test_records_come_as_arrow_batches_of_about_a_mebibyte(broker: Broker, topic: str, size: int) -> None:
    count = 5_000_000 // size
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(topic, [b"%0*d" % (size, number) for number in range(count)], partitions=0).result(30)
    wanted = options(broker.bootstrap_servers, {"assign": {topic: [0]}})
    schema = schema_of(COLUMNS[:-1])
    reader = BatchReader(read_options(wanted, Use.BATCH_READ, schema), schema)
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    assert all(isinstance(each, pyarrow.RecordBatch) for each in batches)
    assert sum(map(len, batches)) == count
    assert max(each.nbytes for each in batches) < 1.5 * (1 << 20)
    assert sorted(each.nbytes for each in batches)[len(batches) // 2] > 0.5 * (1 << 20)


@pytest.mark.parametrize("names", ["topic", "partition,topic", "timestampType"])
def test_rows_are_counted_whichever_columns_there_are(
    spark: SparkSession, broker: Broker, filled: str, names: str
) -> None:
    assert load(spark, broker.bootstrap_servers, subscribe=filled, columns=names).count() == 300


def test_helpers_take_what_python_has(spark: SparkSession, broker: Broker, filled: str) -> None:
    given = {"startingOffsets": places(filled, 5, 6, 7), "includeHeaders": True}
    frame = read([filled], broker.bootstrap_servers, kafka={"isolation.level": "read_committed"}, **given)
    assert rows(frame) == rows(load(spark, broker.bootstrap_servers, subscribe=filled, **given))
    live = stream(filled, broker.bootstrap_servers, spark=spark, columns="key,value")
    assert (live.isStreaming, live.columns) == (True, ["key", "value"])


@pytest.mark.slow
def test_a_dataframe_keeps_the_records_that_its_first_action_saw(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    fill(broker.bootstrap_servers, topic, 1, 10)
    frame = load(spark, broker.bootstrap_servers, subscribe=topic)
    assert frame.count() == 10
    fill(broker.bootstrap_servers, topic, 1, 5, make=False)
    assert frame.count() == 10
    assert load(spark, broker.bootstrap_servers, subscribe=topic).count() == 15


@pytest.mark.slow
def test_an_empty_topic_has_no_rows(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 2)
    assert load(spark, broker.bootstrap_servers, subscribe=topic).collect() == []


def test_a_pattern_that_nothing_matches_has_no_rows(spark: SparkSession, broker: Broker) -> None:
    for form in FORMATS:
        assert load(spark, broker.bootstrap_servers, form, subscribePattern="^no such topic$").collect() == []


def test_a_pattern_matches_a_part_of_a_name(spark: SparkSession, broker: Broker) -> None:
    fill(broker.bootstrap_servers, "parts.of.names.1", 1, 3)
    fill(broker.bootstrap_servers, "more.parts.of.names", 1, 4)
    found = [load(spark, broker.bootstrap_servers, form, subscribePattern="parts.of.n.mes").count() for form in FORMATS]
    assert found == [7, 7]


@pytest.mark.slow
def test_a_topic_that_begins_late_is_read_from_there(spark: SparkSession, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 2, 100)
    delete_before(broker.bootstrap_servers, (topic, 0, 20), (topic, 1, 50))
    ours, theirs = (rows(load(spark, broker.bootstrap_servers, form, subscribe=topic)) for form in FORMATS)
    assert ours == theirs
    assert len(ours) == 30


def test_aborted_and_open_transactions_are_not_read_by_read_committed(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    broker.create_topic(topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for i in range(6):
            producer.begin_transaction()
            producer.send_many(topic, [b"%d" % i] * 20, partitions=0)
            producer.flush()
            if i == 5:
                break  # stays open
            (producer.abort_transaction if i % 2 else producer.commit_transaction)()
        for level, count in (("read_committed", 60), ("read_uncommitted", 120)):
            # No time to wait until the broker aborts what is open.
            given = {"subscribe": topic, "kafka.isolation.level": level, "kafkaConsumer.pollTimeoutMs": 15_000}
            ours, theirs = (rows(load(spark, broker.bootstrap_servers, form, **given)) for form in FORMATS)
            assert ours == theirs
            assert len(ours) == count
        producer.abort_transaction()


@pytest.mark.slow
def test_offsets_that_compaction_has_left_out_are_no_loss(spark: SparkSession, topic: str) -> None:
    settings = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
    with Broker(settings=settings) as broker:
        broker.create_topic(topic, 1, **{"cleanup.policy": "compact", "segment.bytes": 8192})
        with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=1000) as producer:
            producer.send_many(
                topic, [b"%d" % i for i in range(5000)], keys=[b"%d" % (i % 10) for i in range(5000)]
            ).result(30)
        until = time.monotonic() + 30
        while len(ours := rows(load(spark, broker.bootstrap_servers, subscribe=topic))) > 3000:
            assert time.monotonic() < until
        assert ours[-1].offset == 4999
        given = {"subscribe": topic, "endingOffsets": places(topic, 5000), "minPartitions": 4}
        for form in FORMATS:
            found = rows(load(spark, broker.bootstrap_servers, form, **given))
            assert {row.key: row.value for row in found} == {b"%d" % k: b"%d" % (4990 + k) for k in range(10)}


def test_readers_are_in_no_group_that_brokers_see(spark: SparkSession, broker: Broker, filled: str) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": filled, "groupIdPrefix": "mine"}
    for form in FORMATS:
        assert spark.read.format(form).options(**given).load().count() == 300
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="mine-too") as consumer:
        consumer.commit({TopicPartition(filled, 0): 1})
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert [each.group_id for each in admin.list_groups() if each.group_id.startswith("mine")] == ["mine-too"]
