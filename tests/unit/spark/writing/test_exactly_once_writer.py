"""Attempts and drivers of an exactly-once sink that know nothing of each other; Spark's part is played by the test."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from kbroker.client import AdminClient
from kbroker.spark.errors import SinkFailed, WrongOption
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.writing.exactly_once_writer import BATCH_ID, QUERY_ID, ExactlyOnceWriter, SinkMessage
from kbroker.spark.writing.sink_state import attempt_id
from kbroker.testing import Broker
from tests.kit.spark.sink_query import committed, open_transactions

SCHEMA = StructType([StructField("value", StringType())])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"transaction.max.timeout.ms": 60_000}) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


@pytest.fixture
def query() -> Iterator[str]:
    yield f"q-{uuid4().hex[:8]}"
    TaskContext._setTaskContext(None)  # type: ignore[arg-type]


def writer_of(broker: Broker, topic: str | None, **options: str) -> ExactlyOnceWriter:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "exactlyOnce": "true", **options}
    if topic is not None:
        given["topic"] = topic
    made: ExactlyOnceWriter = pickle.loads(
        pickle.dumps(ExactlyOnceWriter(SparkOptions(given, Use.STREAM_WRITE), SCHEMA))
    )
    return made


def write(writer: ExactlyOnceWriter, query: str, batch_id: int, task: int, attempt: int, *numbers: int) -> SinkMessage:
    """Write rows as that attempt of a task would."""
    context = TaskContext()
    context._partitionId, context._attemptNumber = task, attempt
    context._localProperties = {QUERY_ID: query, BATCH_ID: str(batch_id)}
    TaskContext._setTaskContext(context)
    rows = [pa.record_batch([pa.array([f"{number}"])], names=["value"]) for number in numbers]
    found: SinkMessage = pickle.loads(pickle.dumps(writer.write(iter(rows))))
    return found


def test_of_two_attempts_of_a_task_one_counts(broker: Broker, topic: str, query: str) -> None:
    """Speculation: both have written all rows, and Spark hands the driver what one of them has brought."""
    writer = writer_of(broker, topic)
    for batch_id, winner in enumerate([0, 1]):
        numbers = [batch_id * 10 + i for i in range(3)]
        attempts = [write(writer, query, batch_id, 0, attempt, *numbers) for attempt in range(2)]
        writer.commit([attempts[winner], write(writer, query, batch_id, 1, 0)], batch_id)
        assert open_transactions(broker.bootstrap_servers) == []
    assert committed(broker.bootstrap_servers, topic) == [0, 1, 2, 10, 11, 12]


def of_the_sink(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What it has said."""
    return [each.getMessage() for each in caplog.records if each.name == "kbroker.spark"]


def test_a_later_batch_that_knows_of_none_before_it_is_warned_of_once(
    broker: Broker, topic: str, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_of(broker, topic)
    for batch_id in (7, 8):
        message = write(writer, query, batch_id, 0, 0, batch_id)
        for _ in range(2):
            writer.commit([message], batch_id)
    warned = of_the_sink(caplog)
    assert len(warned) == 1
    assert warned[0].startswith(f"batch 7 is the first of query {query} in topic {topic} that is known: ")
    assert committed(broker.bootstrap_servers, topic) == [7, 8]


def test_a_first_batch_is_warned_of_by_nobody(
    broker: Broker, topic: str, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_of(broker, topic)
    writer.commit([write(writer, query, 0, 0, 0)], 0)
    writer.commit([write(writer, query, 0, 0, 0, 1)], 0)
    writer.commit([write(writer, query, 1, 0, 0, 2)], 1)
    assert not of_the_sink(caplog)


def test_of_two_drivers_of_a_batch_one_decides(broker: Broker, topic: str, query: str) -> None:
    """One was taken for dead, and its query started again."""
    writer = writer_of(broker, topic)
    older = [write(writer, query, 0, task, 0, task) for task in range(2)]
    newer = [write(writer, query, 0, task, 1, task) for task in range(2)]
    writer.commit(older, 0)
    writer.commit(newer, 0)
    assert committed(broker.bootstrap_servers, topic) == [0, 1]
    writer.commit([write(writer, query, 1, task, 0, 10 + task) for task in range(2)], 1)
    for late in (older, newer):
        with pytest.raises(SinkFailed, match="has gone further"):
            writer.commit(late, 0)
        writer.abort([*late, None], 0)
    with pytest.raises(SinkFailed, match="has gone further"):
        write(writer, query, 0, 0, 2, 0)
    assert committed(broker.bootstrap_servers, topic) == [0, 1, 10, 11]
    assert open_transactions(broker.bootstrap_servers) == []


def test_an_attempt_of_the_same_number_takes_the_place_of_an_older_one(broker: Broker, topic: str, query: str) -> None:
    writer = writer_of(broker, topic)
    older = write(writer, query, 0, 0, 0, 1, 2)
    newer = write(writer, query, 0, 0, 0, 1, 2)
    with pytest.raises(SinkFailed, match="aborted before all were written"):
        writer.commit([older], 0)
    writer.abort([older], 0)
    writer.commit([newer], 0)
    assert committed(broker.bootstrap_servers, topic) == [1, 2]


def test_a_decision_is_finished_and_not_aborted_by_who_could_not_finish_it(
    broker: Broker, topic: str, query: str
) -> None:
    writer = writer_of(broker, topic)
    messages = [write(writer, query, 0, task, 0, task) for task in range(3)]
    writer.commit(messages, 0)
    writer.abort(messages, 0)
    again = [write(writer, query, 0, task, 0, 7 * task) for task in range(5)]  # in other tasks
    assert [each.brought.skipped for each in again] == [True] * 5
    writer.commit(again, 0)
    assert committed(broker.bootstrap_servers, topic) == [0, 1, 2]


def test_what_is_given_up_is_not_seen(broker: Broker, topic: str, query: str) -> None:
    writer = writer_of(broker, topic)
    writer.abort([write(writer, query, 0, 0, 0, 1), None, write(writer, query, 0, 1, 0)], 0)
    assert open_transactions(broker.bootstrap_servers) == []
    assert committed(broker.bootstrap_servers, topic) == []


def test_a_batch_without_rows_asks_nobody(broker: Broker, topic: str, query: str) -> None:
    writer = writer_of(broker, topic)
    broker.kill()
    try:
        writer.commit([write(writer, query, 0, task, 0) for task in range(3)], 0)
    finally:
        broker.start()


def test_more_tasks_than_one_group_keeps(broker: Broker, topic: str, query: str) -> None:
    writer = writer_of(broker, topic)
    messages = [write(writer, query, 0, task, 0, *([task] if task % 20 == 0 else [])) for task in range(300)]
    for _ in range(2):
        writer.commit(messages, 0)
    assert committed(broker.bootstrap_servers, topic) == list(range(0, 300, 20))


def test_a_timeout_that_brokers_do_not_allow_is_an_error_only_if_somebody_asks_for_it(
    broker: Broker, topic: str, query: str
) -> None:
    """The brokers allow a minute here; our own timeout is 15 minutes."""
    writer = writer_of(broker, topic)
    writer.commit([write(writer, query, 0, 0, 0, 5)], 0)
    assert committed(broker.bootstrap_servers, topic) == [5]
    strict = writer_of(broker, topic, **{"kafka.transaction.timeout.ms": "61000"})
    with pytest.raises(Exception, match="INVALID_TRANSACTION_TIMEOUT"):
        write(strict, query, 1, 0, 0, 6)


def test_a_transaction_may_take_longer_than_brokers_allow_by_default(topic: str, query: str) -> None:
    """Half an hour was asked for, and cut to the 15 minutes that are ours."""
    with Broker(settings={"transaction.max.timeout.ms": 1_800_000}) as patient:
        writer = writer_of(patient, topic, **{"kafka.transaction.timeout.ms": "1800000"})
        message = write(writer, query, 0, 0, 0, 5)
        name = attempt_id(query, 0, 0)
        with AdminClient(bootstrap_servers=patient.bootstrap_servers) as admin:
            assert admin.describe_transactions([name])[name].timeout_ms == 1_800_000
        writer.commit([message], 0)
        assert committed(patient.bootstrap_servers, topic) == [5]


def test_what_cannot_be_done_is_said(broker: Broker, topic: str, query: str) -> None:
    with pytest.raises(WrongOption, match="exactlyOnce=true needs option topic"):
        writer_of(broker, None)
    with pytest.raises(SinkFailed, match="for tasks of a streaming query"):
        writer_of(broker, topic).write(iter([]))
