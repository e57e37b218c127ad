"""DataFrames as topics: what Spark's own connector writes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.client import AdminClient, Consumer
from kbroker.testing import Broker

FORMATS = ("kbroker", "kafka")
HEADERS = "array<struct<key:string,value:binary>>"
Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def save(frame: DataFrame, broker: Broker, form: str, **options: Any) -> None:
    writer = frame.write.format(form).mode("append").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def stored(broker: Broker, topic: str) -> list[list[Row]]:
    """What is in each partition, in its order."""
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)
        ends = {n: each.offset for (_, n), each in admin.list_offsets([(topic, n) for n in range(count)]).items()}
    found: list[list[Row]] = []
    with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        for number in range(count):
            rows: list[Row] = []
            for records in consumer.read_range(topic, number, 0, ends[number]):
                rows += [(record.key, record.value, tuple(record.headers)) for record in records]
            found.append(rows)
    return found


@pytest.fixture
def topics(broker: Broker, topic: str) -> Callable[[str], str]:
    """A topic of its own for each format, with three partitions."""
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        for form in FORMATS:
            admin.create_topic(f"{topic}-{form}", 3)
    return lambda form: f"{topic}-{form}"


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Keys, headers and partitions, some of which are null, in 2 tasks; none without a key goes anywhere by itself."""
    return spark.range(0, 400, numPartitions=2).select(
        F.when(F.col("id") % 7 != 0, F.concat(F.lit("value "), F.col("id"))).alias("value"),
        F.when(F.col("id") % 5 != 0, F.concat(F.lit("key "), F.col("id") % 20).cast("binary")).alias("key"),
        F.when(F.col("id") % 4 != 0, F.expr(
            "transform(sequence(1, id % 4), i -> named_struct('key', concat('h', i), 'value',"
            " if(i = 2, null, cast(concat('v', id) as binary))))"
        ).cast(HEADERS)).alias("headers"),
        F.when((F.col("id") % 5 == 0) | (F.col("id") % 3 == 0), (F.col("id") % 3).cast("int")).alias("partition"),
        F.col("id").alias("offset"),
    )  # fmt: skip


def test_rows_are_written_as_the_jvm_connector_writes_them(
    broker: Broker, topics: Callable[[str], str], rows: DataFrame
) -> None:
    one_task = rows.coalesce(1)  # so that there is one order in each partition
    for form in FORMATS:
        save(one_task, broker, form, topic=topics(form))
    ours, theirs = (stored(broker, topics(form)) for form in FORMATS)
    assert ours == theirs
    assert sum(map(len, ours)) == 400
    assert {len(row[2]) for part in ours for row in part} == {0, 1, 2, 3}


def test_each_row_may_name_its_topic(broker: Broker, topic: str, rows: DataFrame) -> None:
    rows = rows.withColumn("partition", (F.col("partition") % 2).cast("int"))  # topics that are made have two
    for form in FORMATS:
        save(rows.withColumn("topic", F.concat(F.lit(f"{topic}-{form}-"), F.col("offset") % 4)), broker, form)
    for number in range(4):
        ours, theirs = (stored(broker, f"{topic}-{form}-{number}") for form in FORMATS)
        assert [sorted(part, key=str) for part in ours] == [sorted(part, key=str) for part in theirs]
        assert sum(map(len, ours)) == 100


def test_the_option_topic_wins_over_the_column(broker: Broker, topics: Callable[[str], str], rows: DataFrame) -> None:
    for form in FORMATS:
        save(rows.withColumn("topic", F.lit(None).cast("string")), broker, form, topic=f" {topics(form)} ")
        assert sum(map(len, stored(broker, topics(form)))) == 400


def test_more_rows_than_a_batch_and_several_tasks(spark: SparkSession, broker: Broker, topic: str) -> None:
    frame = spark.range(0, 60_000, numPartitions=5).selectExpr("cast(id as string) value", "cast(id as string) key")
    save(frame, broker, "kbroker", topic=topic, kafka__compression__type="zstd", kafka__linger__ms="0")
    found = stored(broker, topic)
    assert sorted(int(row[1]) for part in found for row in part) == list(range(60_000))
    save(frame.limit(0), broker, "kbroker", topic=topic)
    assert stored(broker, topic) == found


# --- what is refused --------------------------------------------------------------------------------------


def last_line(error: BaseException) -> str:
    """Return the last line of what Python says, without the stack of the JVM."""
    text = str(error)
    lines = [line.strip() for line in text.split("\n\n\tat ")[0].splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "kbroker.spark." in line), lines[-1])


PLANNED = [
    ("'k' key", {"topic": "t"}, "there is no column value", "'value' not found"),
    ("'v' value", {}, "option topic is not set", "topic option required"),
    ("id value", {"topic": "t"}, "column value is bigint: it must be string or binary", "value attribute unsupported"),
    ("'v' value; 1L partition", {"topic": "t"}, "column partition is bigint", "partition attribute unsupported"),
    ("'v' value", {"topic": "t", "kafka.value.serializer": "x"}, "kafka.value.serializer", "serializer"),
]
PLANNED_SLOW = [
    ("'v' value; 1 key", {"topic": "t"}, "column key is int: it must be string or binary", "key attribute unsupported"),
    ("'v' value; 1 topic", {}, "column topic is int: it must be string", "topic attribute unsupported"),
    ("'v' value; 'h' headers", {"topic": "t"}, "column headers is string", "headers attribute unsupported"),
]


@pytest.mark.parametrize(
    ("select", "options", "ours", "theirs"),
    [*PLANNED, *(pytest.param(*each, marks=pytest.mark.slow) for each in PLANNED_SLOW)],
)
def test_what_is_known_before_is_refused_before(
    spark: SparkSession, broker: Broker, select: str, options: dict[str, str], ours: str, theirs: str
) -> None:
    frame = spark.range(1).selectExpr(*select.split("; "))
    with pytest.raises(PySparkException) as error:
        save(frame, broker, "kbroker", **options)
    assert ours in last_line(error.value)
    assert isinstance(error.value, AnalysisException)
    with pytest.raises(PySparkException, match=theirs):
        save(frame, broker, "kafka", **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.bootstrap.servers": " ", "topic": "t"}, "kafka.bootstrap.servers is missing"),
        ({"kafka.transactional.id": "x", "topic": "t"}, "exactlyOnce=true has ids of its own"),
        ({"kafka.linger.ms": "soon", "topic": "t"}, "option kafka.linger.ms='soon'"),
        ({"topic": "  "}, "option topic is empty"),
        ({"topic": "t", "exactlyOnce": "true"}, "option exactlyOnce is for streams"),
    ],
)
def test_wrong_options_are_refused_before_too(
    spark: SparkSession, broker: Broker, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException) as error:
        save(spark.range(1).selectExpr("'v' value"), broker, "kbroker", **options)
    assert says in last_line(error.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: Broker, topic: str) -> None:
    frame = spark.range(1).selectExpr("'v' value")
    for mode in ("overwrite", "ignore"):
        for form in FORMATS:
            writer = frame.write.format(form).mode(mode).option("topic", topic)
            with pytest.raises(AnalysisException):
                writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).save()
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert topic not in admin.list_topics()


UNDELIVERABLE = [
    ("'v' value; cast(null as string) topic", {}, "null in column topic", "null topic"),
    ("repeat('x', 2000) value", {"topic": "t", "kafka.max.request.size": "1000"}, "max.request.size", "larger"),
]
UNDELIVERABLE_SLOW = [
    ("'v' value; -1 partition", {"topic": "t"}, "-1 at 0 is negative", "Invalid partition: -1"),
    ("'v' value; 99 partition", {"topic": "t"}, "t has partitions 0 to 1, not 99", "Partition 99 of topic t"),
    ("'v' value", {"topic": "not a name"}, "INVALID_TOPIC_EXCEPTION", "[Ii]nvalid"),
]


@pytest.mark.parametrize(
    ("select", "options", "ours", "theirs"),
    [*UNDELIVERABLE, *(pytest.param(*each, marks=pytest.mark.slow) for each in UNDELIVERABLE_SLOW)],
)
def test_a_row_that_cannot_be_delivered_fails_its_task(
    spark: SparkSession, broker: Broker, select: str, options: dict[str, str], ours: str, theirs: str
) -> None:
    frame = spark.range(1).selectExpr(*select.split("; "))
    short = {"kafka.max.block.ms": "1500"}
    with pytest.raises((PySparkException, Py4JJavaError)) as error:
        save(frame, broker, "kbroker", **options, **short)
    assert ours in str(error.value)
    assert "Python" in str(error.value)
    with pytest.raises((PySparkException, Py4JJavaError), match=theirs):
        save(frame, broker, "kafka", **options, **short)


@pytest.fixture
def small(topic: str) -> Iterator[tuple[Broker, str]]:
    """A broker that takes no record of more than 1000 bytes."""
    with Broker(settings={"num.partitions": 2, "message.max.bytes": 1000}) as broker:
        yield broker, topic


def test_what_the_broker_refuses_is_said_with_topic_and_reason(spark: SparkSession, small: tuple[Broker, str]) -> None:
    broker, topic = small
    frame = spark.range(0, 2000, numPartitions=1).selectExpr("if(id = 1500, repeat('x', 3000), 'small') value")
    for _ in range(2):  # the producer of the first is not used again
        with pytest.raises(PySparkException) as error:
            save(frame, broker, "kbroker", topic=topic)
        assert f"topic {topic}: " in last_line(error.value)
        assert "MESSAGE_TOO_LARGE" in last_line(error.value)
    save(frame.where("length(value) = 5"), broker, "kbroker", topic=topic)
