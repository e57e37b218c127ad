"""Transactions through a broker with an unmodified client: what consumers of committed records see."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

SETTINGS: dict[str, object] = {
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "num.partitions": 2,
}
PARTITIONS = 2


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokerProcess]:
    with BrokerProcess(SETTINGS) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


def producer(broker: BrokerProcess, name: str, **settings: Any) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": name,
            "transaction.timeout.ms": 10_000,
            "linger.ms": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    made.init_transactions(20)
    return made


def write(made: Producer, topic: str, *values: str) -> None:
    made.begin_transaction()
    for value in values:
        for partition in range(PARTITIONS):
            made.produce(topic, value, partition=partition)
    made.flush(20)


def read(broker: BrokerProcess, topic: str, level: str = "read_committed") -> list[list[str]]:
    """Return the values of each partition up to the end that a consumer of that isolation level may see."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": f"reader-{uuid4().hex}",
            "isolation.level": level,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ended: set[int] = set()
        deadline = time.monotonic() + 30
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                ended.add(message.partition())
            else:
                found[message.partition()].append(message.value().decode())
    finally:
        consumer.close()
    return found


def state(broker: BrokerProcess, name: str) -> Any:
    with WireClient("127.0.0.1", broker.port) as client:
        asked = M.DescribeTransactionsRequest(transactional_ids=[name])
        (found,) = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        return found


def await_state(broker: BrokerProcess, name: str, wanted: str) -> None:
    deadline = time.monotonic() + 20
    while state(broker, name).transaction_state != wanted:
        assert time.monotonic() < deadline, state(broker, name)
        threading.Event().wait(0.02)


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_transactional_id_is_found(shared: BrokerProcess, version: int) -> None:
    message = M.FindCoordinatorRequest(key_type=1)
    if version < 4:
        message.key = "id"
    else:
        message.coordinator_keys = ["id", "other"]
    with WireClient("127.0.0.1", shared.port) as client:
        answer = client.call(ApiKey.FIND_COORDINATOR, version, message)
        for found in [answer] if version < 4 else answer.coordinators:
            assert (found.error_code, found.host, found.port) == (0, "127.0.0.1", shared.port)
        asked = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="__transaction_state")])
        (topic,) = client.call(ApiKey.METADATA, 8, asked).topics
        assert (len(topic.partitions), topic.is_internal) == (3, True)


def test_committed_transactions_are_seen_whole_and_aborted_ones_not_at_all(shared: BrokerProcess, topic: str) -> None:
    made = producer(shared, topic)
    write(made, topic, "a1", "a2")
    assert read(shared, topic) == [[], []], "it is open"
    made.commit_transaction(20)
    write(made, topic, "b1")
    made.abort_transaction(20)
    write(made, topic, "c1")
    made.commit_transaction(20)
    assert read(shared, topic) == [["a1", "a2", "c1"]] * 2
    assert read(shared, topic, "read_uncommitted") == [["a1", "a2", "b1", "c1"]] * 2
    assert state(shared, topic).transaction_state == "CompleteCommit"


def test_a_transaction_whose_every_step_waits_for_the_disk(topic: str) -> None:
    with BrokerProcess({**SETTINGS, "log.flush.interval.messages": 1}) as broker:
        made = producer(broker, topic)
        for number in range(5):
            write(made, topic, str(number))
            (made.abort_transaction if number % 2 else made.commit_transaction)(20)
        assert read(broker, topic) == [["0", "2", "4"]] * 2
        await_state(broker, topic, "CompleteCommit")
        write(made, topic, "last")
        made.commit_transaction(20)
        broker.stop()
        broker.start()
        await_state(broker, topic, "CompleteCommit")
        assert read(broker, topic) == [["0", "2", "4", "last"]] * 2


def test_a_second_producer_fences_the_first_and_aborts_what_it_has_open(shared: BrokerProcess, topic: str) -> None:
    first = producer(shared, topic)
    write(first, topic, "first")
    second = producer(shared, topic)
    write(second, topic, "second")
    second.commit_transaction(20)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(20)
    assert fenced.value.args[0].fatal()
    assert read(shared, topic) == [["second"]] * 2


def test_a_transaction_that_is_open_for_too_long_is_aborted(shared: BrokerProcess, topic: str) -> None:
    made = producer(shared, topic, transaction_timeout_ms=1000)
    write(made, topic, "late")
    await_state(shared, topic, "CompleteAbort")
    assert read(shared, topic) == [[], []]
    with pytest.raises(KafkaException):
        made.commit_transaction(20)


def test_offsets_of_a_transaction_are_committed_with_it(shared: BrokerProcess, topic: str) -> None:
    source = Producer({"bootstrap.servers": shared.address})
    for value in "abc":
        source.produce(topic, value, partition=0)
    source.flush(20)
    output = f"{topic}-out"
    group = f"group-{topic}"
    made = producer(shared, topic)
    expected = []
    for commit in (False, True):
        consumer = Consumer(
            {
                "bootstrap.servers": shared.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        read_here: list[str] = []
        deadline = time.monotonic() + 30
        while len(read_here) < 3:
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is not None and not message.error():
                read_here.append(message.value().decode())
        made.begin_transaction()
        for value in read_here:
            made.produce(output, value.upper(), partition=0)
        made.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
        )
        if commit:
            made.commit_transaction(20)
            expected = [value.upper() for value in read_here]
        else:
            made.abort_transaction(20)
        consumer.close()
    assert expected == ["A", "B", "C"], "what was aborted is read again"
    assert read(shared, output)[0] == expected
    asked = Consumer({"bootstrap.servers": shared.address, "group.id": group})
    (committed,) = asked.committed([TopicPartition(topic, 0)], 20)
    asked.close()
    assert committed.offset == 3


@pytest.mark.parametrize("commit", [True, False])
def test_a_broker_that_is_killed_goes_on_with_the_transaction(topic: str, commit: bool) -> None:
    with BrokerProcess(SETTINGS) as broker:
        made = producer(broker, topic, transaction_timeout_ms=60_000)
        write(made, topic, "before")
        broker.kill()
        broker.start()
        for partition in range(PARTITIONS):
            made.produce(topic, "after", partition=partition)
        assert made.flush(30) == 0
        assert state(broker, topic).transaction_state == "Ongoing"
        assert read(broker, topic) == [[], []]
        (made.commit_transaction if commit else made.abort_transaction)(30)
        broker.kill()
        broker.start()
        await_state(broker, topic, "CompleteCommit" if commit else "CompleteAbort")
        assert read(broker, topic) == ([["before", "after"]] * 2 if commit else [[], []])
        write(made, topic, "next")
        made.commit_transaction(30)
        assert [values[-1] for values in read(broker, topic)] == ["next", "next"]


def test_a_topic_that_is_deleted_does_not_keep_its_transaction_from_ending(shared: BrokerProcess, topic: str) -> None:
    made = producer(shared, topic)
    other = f"{topic}-other"
    made.begin_transaction()
    for name in (topic, other):
        made.produce(name, "x", partition=0)
    made.flush(20)
    with WireClient("127.0.0.1", shared.port) as client:
        deleted = client.call(ApiKey.DELETE_TOPICS, 1, M.DeleteTopicsRequest(topic_names=[other], timeout_ms=20_000))
        assert deleted.responses[0].error_code == ErrorCode.NONE
    made.commit_transaction(20)
    assert state(shared, topic).transaction_state == "CompleteCommit"
    assert read(shared, topic)[0] == ["x"]


def test_producers_of_a_partition_are_described(shared: BrokerProcess, topic: str) -> None:
    made = producer(shared, topic)
    write(made, topic, "x")
    mine = state(shared, topic)
    R = M.DescribeProducersRequest
    asked = R(
        topics=[
            R.TopicRequest(name=topic, partition_indexes=[0, 7]),
            R.TopicRequest(name="none", partition_indexes=[0]),
            R.TopicRequest(name="not a name", partition_indexes=[0]),
        ]
    )
    with WireClient("127.0.0.1", shared.port) as client:
        described, unknown, invalid = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, asked).topics
        (known,) = described.partitions[0].active_producers
        assert (known.producer_id, known.producer_epoch, known.last_sequence) == (
            mine.producer_id, mine.producer_epoch, 0
        )  # fmt: skip
        assert (known.coordinator_epoch, known.current_txn_start_offset) == (-1, 0)
        assert described.partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert invalid.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        made.commit_transaction(20)
        (known,) = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, asked).topics[0].partitions[0].active_producers
        assert (known.coordinator_epoch, known.current_txn_start_offset) == (0, -1)


def test_a_transaction_that_hangs_is_ended_by_a_marker(shared: BrokerProcess, topic: str) -> None:
    made = producer(shared, topic)
    write(made, topic, "x")
    mine = state(shared, topic)
    R = M.WriteTxnMarkersRequest
    marker = R.WritableTxnMarker(
        producer_id=mine.producer_id,
        producer_epoch=mine.producer_epoch,
        coordinator_epoch=0,
        transaction_result=False,
        topics=[R.WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 1]),
                R.WritableTxnMarkerTopic(name="none", partition_indexes=[0])],
    )  # fmt: skip
    with WireClient("127.0.0.1", shared.port) as client:
        (answer,) = client.call(ApiKey.WRITE_TXN_MARKERS, 1, R(markers=[marker])).markers
        codes = {
            (found.name, each.partition_index): each.error_code for found in answer.topics for each in found.partitions
        }
        assert codes == {(topic, 0): 0, (topic, 1): 0, ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        marker.producer_epoch -= 1
        (answer,) = client.call(ApiKey.WRITE_TXN_MARKERS, 1, R(markers=[marker])).markers
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert read(shared, topic) == [[], []]
