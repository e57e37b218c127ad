"""Records that are produced, and read back unchanged."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker.client import AdminClient, PartialFailure, Producer, TopicPartitionReplica
from kbroker.client.admin.admin_client import EARLIEST, LATEST, NEWEST
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.features import DELETE_RECORDS, HEADERS, IDEMPOTENCE, NEWEST_OFFSET, ZSTD
from tests.client_suite.suite_broker import SECONDS, SuiteBroker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 1000


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += consumer.poll(1.0, count - len(found))
    return found


def read_topic(broker: SuiteBroker, topic: str, count: int) -> list[ConsumerRecord]:
    with broker.consumer() as consumer:
        consumer.assign_topics(topic)
        return read(consumer, count)


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_what_they_were(broker: SuiteBroker, codec: str) -> None:
    topic = broker.new_topic(2)
    if codec == "zstd" and not broker.has(ZSTD):
        with broker.producer(compression_type=codec) as producer:
            delivery = producer.send(topic, b"never")
            with pytest.raises(BrokerError) as raised:
                delivery.result(SECONDS)
            assert raised.value.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return
    sent = []
    with broker.producer(compression_type=codec) as producer:
        for number in range(COUNT):
            key = None if number % 3 == 0 else b"key-%d" % number
            value = None if number % 7 == 0 and key else b"value-%d" % number * (number % 5)
            producer.send_nowait(topic, value, key, partition=number % 2, timestamp=1_600_000_000_000 + number)
            sent.append((number % 2, key, value, 1_600_000_000_000 + number))
        producer.flush(SECONDS)
    found = read_topic(broker, topic, COUNT)
    for partition in (0, 1):
        assert [each.offset for each in found if each.partition == partition] == list(range(COUNT // 2))
        assert [
            (each.partition, each.key, each.value, each.timestamp) for each in found if each.partition == partition
        ] == [each for each in sent if each[0] == partition]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_whoever_acknowledges_it_is_there(broker: SuiteBroker, acks: int | str) -> None:
    topic = broker.new_topic()
    with broker.producer(acks=acks, enable_idempotence=None) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(10)]
        producer.flush(SECONDS)
        if acks:
            assert [each.result(SECONDS).offset for each in deliveries] == list(range(10))
    assert [each.value for each in read_topic(broker, topic, 10)] == [b"%d" % number for number in range(10)]


def test_keys_stay_together_and_no_keys_are_spread(broker: SuiteBroker) -> None:
    topic = broker.new_topic(4)
    with broker.producer(partitioner_sticky_bytes=1) as producer:
        for number in range(400):
            producer.send_nowait(topic, b"keyed", b"key-%d" % (number % 20))
            producer.send_nowait(topic, b"sticky")
        producer.flush(SECONDS)
    found = read_topic(broker, topic, 800)
    places: dict[bytes | None, Counter[int]] = {}
    for each in found:
        places.setdefault(each.key, Counter())[each.partition] += 1
    assert set(places.pop(None)) == {0, 1, 2, 3}
    assert len(places) == 20
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len({next(iter(partitions)) for partitions in places.values()}) > 1


def test_headers_are_carried(broker: SuiteBroker) -> None:
    topic = broker.new_topic()
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    with broker.producer() as producer:
        delivery = producer.send(topic, b"value", headers=headers)
        with broker.serving(HEADERS):
            delivery.result(SECONDS)
            (record,) = read_topic(broker, topic, 1)
            assert list(record.headers) == headers


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_the_brokers_time_stands_where_a_topic_wants_that(broker: SuiteBroker, codec: str) -> None:
    topic = broker.new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    with broker.producer(compression_type=codec) as producer:
        sent = [producer.send(topic, b"%d" % number, timestamp=1000 + number) for number in range(10)]
        producer.flush(SECONDS)
        told = [each.result(SECONDS).timestamp for each in sent]
    found = read_topic(broker, topic, 10)
    assert [each.timestamp for each in found] == told
    assert [each.timestamp_type for each in found] == [1] * 10
    assert before <= min(told) <= max(told) <= int(time.time() * 1000)


def test_idempotence_that_was_asked_for_is_served_or_refused(broker: SuiteBroker) -> None:
    topic = broker.new_topic()
    with broker.producer(enable_idempotence=True) as producer, broker.serving(IDEMPOTENCE):
        assert producer.send(topic, b"once").result(SECONDS).offset == 0


def test_reading_begins_where_it_is_told_to(broker: SuiteBroker) -> None:
    topic = broker.new_topic()
    start = 1_600_000_000_000
    with broker.producer() as producer:
        for number in range(100):
            producer.send_nowait(topic, b"%d" % number, timestamp=start + 10 * number)
        producer.flush(SECONDS)
    at = TopicPartition(topic, 0)
    with broker.consumer() as consumer:
        consumer.assign({at: 40})
        assert [each.offset for each in read(consumer, 2)] == [40, 41]
        consumer.seek(topic, 0, 7)
        assert read(consumer, 1)[0].value == b"7"
        assert consumer.position(topic, 0) == 8
        assert consumer.offsets_for_times({at: start + 495}) == {at: 50}
        assert consumer.offsets_for_times({at: start + 10_000}) == {at: None}
        consumer.seek_to_end(at)
        assert len(consumer.poll(0.2)) == 0
        consumer.seek_to_beginning(at)
        assert read(consumer, 1)[0].offset == 0
        assert consumer.beginning_offsets([at]) == {at: 0}
        assert consumer.end_offsets([at]) == {at: 100}


def test_an_offset_that_is_not_there_is_reset_or_said(broker: SuiteBroker) -> None:
    topic = broker.new_topic()
    with broker.producer() as producer:
        producer.send(topic, b"only").result(SECONDS)
    at = TopicPartition(topic, 0)
    with broker.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign({at: 1000})
        assert read(consumer, 1)[0].offset == 0
    with broker.consumer(auto_offset_reset="none") as consumer:
        consumer.assign({at: 1000})
        with pytest.raises(BrokerError) as raised:
            read(consumer, 1)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_columns_have_what_records_have(broker: SuiteBroker, codec: str) -> None:
    topic = broker.new_topic()
    with broker.producer(compression_type=codec) as producer:
        producer.send_many(topic, [b"v%d" % number for number in range(500)], [b"k"] * 500)
        producer.flush(SECONDS)
    keys, values, offsets = [], [], []
    with broker.consumer() as consumer:
        consumer.assign_topics(topic)
        deadline = time.monotonic() + SECONDS
        while len(values) < 500:
            assert time.monotonic() < deadline
            batch = consumer.poll_arrow(1.0)
            keys += batch.column("key").to_pylist()
            values += batch.column("value").to_pylist()
            offsets += batch.column("offset").to_pylist()
    assert (keys, values, offsets) == ([b"k"] * 500, [b"v%d" % number for number in range(500)], list(range(500)))


def test_what_is_too_large_for_the_broker_is_refused(broker: SuiteBroker) -> None:
    topic = broker.new_topic(1, {"max.message.bytes": "1000"})
    with broker.producer() as producer:
        large = producer.send(topic, b"x" * 5000)
        with pytest.raises(BrokerError) as raised:
            large.result(SECONDS)
        assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(topic, b"small").result(SECONDS).offset == 0


def test_a_topic_is_made_by_producing_unless_that_is_forbidden(broker: SuiteBroker) -> None:
    made, never = broker.unique("made"), broker.unique("never")
    with broker.producer() as producer:
        assert producer.send(made, b"first").result(SECONDS).offset == 0
    with broker.producer(allow_auto_create_topics=False, max_block_ms=1500) as producer:
        with pytest.raises(BrokerError) as raised:
            producer.send(never, b"first")
        assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with broker.admin() as admin:
        assert never not in admin.list_topics()


def test_offsets_and_the_deletion_of_records(broker: SuiteBroker, admin: AdminClient) -> None:
    topic = broker.new_topic(2)
    with broker.producer() as producer:
        for number in range(20):
            producer.send_nowait(topic, b"x", partition=0, timestamp=1_600_000_000_000 + (number * 7) % 20)
        producer.flush(SECONDS)
    both = [(topic, 0), (topic, 1)]
    assert [each.offset for each in admin.list_offsets(both, EARLIEST).values()] == [0, 0]
    assert {at.partition_id: each.offset for at, each in admin.list_offsets(both, LATEST).items()} == {0: 20, 1: 0}
    assert admin.list_offsets([(topic, 0)], 1_600_000_000_007)[TopicPartition(topic, 0)].offset == 1
    (node,) = admin.describe_cluster().brokers
    replicas = [TopicPartitionReplica(topic, each, node.node_id) for each in (0, 1, 7)]
    with pytest.raises(PartialFailure) as partly:
        admin.list_log_end_offsets(replicas)
    assert partly.value.results == {replicas[0]: 20, replicas[1]: 0}
    assert [*partly.value.errors] == replicas[2:]
    with pytest.raises(BrokerError, match=f"broker {node.node_id + 7} is not in the cluster"):
        admin.list_log_end_offsets([(topic, 0, node.node_id + 7)])
    with broker.serving(NEWEST_OFFSET):
        newest = admin.list_offsets([(topic, 0)], NEWEST)[TopicPartition(topic, 0)]
        assert (newest.offset, newest.timestamp) == (17, 1_600_000_000_019)
    with broker.serving(DELETE_RECORDS):
        assert admin.delete_records({(topic, 0): 5}) == {(topic, 0): 5}
        assert admin.list_offsets([(topic, 0)], EARLIEST)[TopicPartition(topic, 0)].offset == 5
        with pytest.raises(BrokerError) as raised:
            admin.delete_records({(topic, 0): 21})
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert admin.delete_records({(topic, 0): -1}) == {(topic, 0): 20}


def test_a_restart_in_the_middle_loses_and_doubles_nothing(broker: SuiteBroker) -> None:
    topic = broker.new_topic()
    numbers = itertools.count()

    def send(producer: Producer, count: int) -> None:
        for number in itertools.islice(numbers, count):
            producer.send_nowait(topic, b"%d" % number)

    quick = {"reconnect_backoff_ms": 10, "retry_backoff_ms": 10}
    with (
        broker.producer(max_in_flight_requests_per_connection=1, **quick) as producer,
        broker.consumer(**quick) as consumer,
    ):
        consumer.assign_topics(topic)
        send(producer, 500)
        producer.flush(SECONDS)
        first = read(consumer, 100)
        broker.process.stop()
        send(producer, 500)
        broker.process.start()
        producer.flush(SECONDS)
        found = first + read(consumer, 900)
        assert [each.value for each in found] == [b"%d" % number for number in range(1000)]
        assert [each.offset for each in found] == list(range(1000))
