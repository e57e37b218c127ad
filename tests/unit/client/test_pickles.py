"""What of the client can be pickled and copied, and what says that it cannot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from kbroker._core.client.consumer.record import restored_record
from kbroker.client import (
    AdminClient,
    BrokerError,
    ClientError,
    CommitFailed,
    Consumer,
    ErrorCode,
    LogTruncated,
    OffsetAndMetadata,
    PartialFailure,
    Producer,
    QueueFull,
    RecordTooLarge,
    TimedOut,
    TopicPartition,
    UnreadableRecords,
)
from tests.kit.brokers.produce import ProduceBroker
from tests.kit.brokers.whole import WholeBroker
from tests.unit.client.producer.test_producer import SECONDS, producer_of

WAYS: list[Callable[[Any], Any]] = [lambda each: pickle.loads(pickle.dumps(each)), copy.copy, copy.deepcopy]
ERRORS = [
    ClientError("m"),
    BrokerError("m", code=ErrorCode.NOT_COORDINATOR),
    CommitFailed("m", code=ErrorCode.UNKNOWN_MEMBER_ID),
    LogTruncated(TopicPartition("a", 1), 5, None),
    PartialFailure({"a": BrokerError("x", code=ErrorCode.NOT_COORDINATOR)}, {"b": 1}),
    TimedOut("m", hint="wait longer"),
    QueueFull("m"),
    RecordTooLarge("m"),
    UnreadableRecords("t", 0, 5, "damaged"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", WAYS)
def test_an_error_is_the_same_elsewhere(error: ClientError, way: Callable[[Any], Any]) -> None:
    made = way(error)
    assert (type(made), str(made), made.code, made.retriable, made.hint) == (
        type(error), str(error), error.code, error.retriable, error.hint
    )  # fmt: skip
    assert {name: repr(value) for name, value in vars(made).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_record_is_the_same_elsewhere_and_without_what_came_with_it(broker: WholeBroker, compression: str) -> None:
    server, topic = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}, f"pickled-{compression}"
    broker.create_topic(topic, 1)
    with Producer(server, compression_type=compression, linger_ms=50) as producer:
        producer.send(topic, b"one", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=1000)
        producer.send(topic, None, timestamp=5)
        producer.send(topic, b"x" * 100_000)
    with Consumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics(topic)
        records = [record for _ in range(3) for record in consumer.poll(SECONDS, 1)]
    for way in WAYS:
        for record, made in zip(records, way(records), strict=True):
            assert repr(made) == repr(record)
            assert (made.timestamp_type, made.leader_epoch) == (record.timestamp_type, record.leader_epoch)
    assert len(pickle.dumps(records[0])) < 400
    assert bytes(pickle.loads(pickle.dumps(records[0])).value_view) == b"one"


def test_bytes_that_are_not_a_record_are_refused(broker: WholeBroker) -> None:
    broker.create_topic("forged", 1)
    server = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
    with Producer(server) as producer:
        producer.send("forged", b"one", key=b"k", headers=[("h", b"1")])
    with Consumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("forged")
        (record,) = consumer.poll(SECONDS)
    topic, partition, data = record.__reduce__()[1]
    assert repr(restored_record(topic, partition, data)) == repr(record)
    for end in range(len(data)):
        with pytest.raises(ValueError, match="not a record"):
            restored_record(topic, partition, data[:end])


def test_what_belongs_to_a_client_says_so(broker: WholeBroker) -> None:
    with ProduceBroker(1) as stored, producer_of(stored) as producer:
        delivery, many = producer.send("t", b"a"), producer.send_many("t", [b"b", b"c"])
        for each in (delivery, many):
            assert copy.copy(each) is copy.deepcopy(each) is each
        with pytest.raises(TypeError, match="a Delivery belongs to its producer and cannot be pickled"):
            pickle.dumps(delivery)
        with pytest.raises(TypeError, match="Deliveries belong to their producer and cannot be pickled"):
            pickle.dumps(many)
        for way in WAYS:
            with pytest.raises(TypeError, match="Producer has a thread and connections: make one where it is needed"):
                way(producer)
    server = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
    with Consumer(server) as consumer, AdminClient(server) as admin:
        for client in (consumer, admin):
            with pytest.raises(TypeError, match="has a thread and connections"):
                pickle.dumps(client)
    broker.create_topic("seen", 1)
    with Consumer(server) as consumer:
        consumer.assign_topics("seen")
        records = consumer.poll(0.0)
        assert copy.copy(records) is records
        with pytest.raises(TypeError, match=r"list\(records\) can"):
            pickle.dumps(records)


@pytest.mark.parametrize("value", [TopicPartition("a", 1), OffsetAndMetadata(5, "x", 2), ErrorCode.NONE])
def test_values_can_be_pickled(value: object) -> None:
    assert [way(value) for way in WAYS] == [value] * 3
