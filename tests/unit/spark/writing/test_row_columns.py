"""Rows of a DataFrame as records: which columns count, and in which order they are stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kbroker.client import Producer
from kbroker.spark.errors import CannotWrite, NotDelivered, WrongOption
from kbroker.spark.workers import task_producers
from kbroker.spark.workers.kept_clients import MOST_IDLE
from kbroker.spark.workers.task_producers import check_producer_options, task_producer
from kbroker.spark.writing.row_columns import RowColumns
from tests.kit.brokers.produce import ProduceBroker

TEXT, BYTES, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def pairs(**fields: DataType) -> ArrayType:
    return ArrayType(schema(**fields))


rows = st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 2)), max_size=60)


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, max_size=4), st.booleans())
def test_rows_keep_their_order_in_each_partition_whatever_topics_are_mixed(given: list[Any], same_topic: bool) -> None:
    columns = RowColumns(schema(ignored=INT, partition=INT, topic=TEXT, value=TEXT), "t" if same_topic else None)
    with ProduceBroker(3) as broker, Producer(bootstrap_servers=f"127.0.0.1:{broker.port}") as producer:
        expected: dict[tuple[str, int], list[bytes]] = {}
        batches = []
        number = 0
        for batch in given:
            values = []
            for topic, partition in batch:
                # Rows without a partition go where their value says, as each is alone in its batch of the client.
                values.append(f"{number}")
                if partition is not None:
                    name = "t" if same_topic else f"t{topic}"
                    expected.setdefault((name, partition), []).append(values[-1].encode())
                number += 1
            batches.append(
                pa.record_batch(
                    [
                        pa.nulls(len(batch), pa.int32()),
                        pa.array([partition for _, partition in batch], pa.int32()),
                        pa.array([f"t{topic}" for topic, _ in batch], pa.string()),
                        pa.array(values, pa.string()),
                    ],
                    names=["ignored", "partition", "topic", "value"],
                )
            )
        assert columns.send(producer, iter(batches)) == number
        given_partition = {value for each in expected.values() for value in each}
        found = {
            place: [value for value in log if value in given_partition]
            for place, log in broker.logs.items()
            if given_partition.intersection(log)
        }
        assert found == expected
        assert sorted(int(value or b"") for log in broker.logs.values() for value in log) == list(range(number))


@pytest.mark.parametrize(
    "given",
    [
        schema(value=TEXT),
        schema(value=BYTES, key=TEXT, partition=INT, headers=pairs(key=TEXT, value=BYTES)),
        schema(VALUE=INT, value=TEXT, headers=pairs(Key=TEXT, Value=BYTES)),
        StructType([StructField("value", TEXT, nullable=False), StructField("topic", INT)]),
    ],
)
def test_columns_of_the_right_types_are_taken(given: StructType) -> None:
    RowColumns(given, "t")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (schema(Value=TEXT), "there is no column value"),
        (schema(value=INT), "column value is int: it must be string or binary"),
        (schema(value=TEXT, headers=pairs(key=TEXT, value=TEXT)), "column headers is array"),
        (schema(value=TEXT, headers=pairs(key=TEXT)), "column headers is array"),
        (schema(value=TEXT, headers=MapType(TEXT, BYTES)), "column headers is map"),
        (schema(value=TEXT, partition=LONG), "column partition is bigint: it must be int"),
    ],
)
def test_columns_of_other_types_are_refused(given: StructType, says: str) -> None:
    with pytest.raises(CannotWrite, match=says):
        RowColumns(given, "t")


def test_a_topic_must_be_known() -> None:
    with pytest.raises(CannotWrite, match="option topic is not set"):
        RowColumns(schema(value=TEXT), None)
    with pytest.raises(CannotWrite, match="column topic is binary"):
        RowColumns(schema(value=TEXT, topic=BYTES), None)
    columns = RowColumns(schema(value=TEXT, topic=TEXT), None)
    batch = pa.record_batch([pa.array(["a", "b"]), pa.array(["t", None])], names=["value", "topic"])
    with ProduceBroker(1) as broker, Producer(bootstrap_servers=f"127.0.0.1:{broker.port}") as producer:
        with pytest.raises(CannotWrite, match="null in column topic"):
            columns.send(producer, iter([batch]))
        assert not broker.logs


@pytest.fixture
def no_idle() -> Any:
    yield
    idle = task_producers._kept._idle
    while idle:
        idle.popitem()[1].close(timeout=0)


def test_producers_are_kept_until_a_task_fails(no_idle: None) -> None:
    with ProduceBroker(1) as broker:
        given = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        with task_producer(given) as first, task_producer(given) as other:
            assert other is not first
        with task_producer(given) as again:
            assert again is first
        with pytest.raises(NotDelivered), task_producer(given):
            raise NotDelivered("t")
        with task_producer(given) as new:
            assert new is not first
        for number in range(MOST_IDLE + 2):
            with task_producer(given | {"client.id": f"{number}"}):
                pass
        assert len(task_producers._kept._idle) == MOST_IDLE


def test_options_of_the_producer_are_checked_without_reading_files() -> None:
    given = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.truststore.location": "/only/where/tasks/run"}
    check_producer_options(given | {"linger.ms": "7", "compression.type": "lz4"})
    for name, value in (("linger.ms", "soon"), ("transactional.id", "x"), ("value.serializer", "x")):
        with pytest.raises(WrongOption, match=f"kafka.{name}"):
            check_producer_options(given | {name: value})
    with pytest.raises(WrongOption, match="bootstrap"):
        check_producer_options({})
