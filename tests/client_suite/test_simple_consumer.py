"""SimpleConsumer: each call names the topic, partition and offset that it is about."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer as OtherProducer

from kbroker.client import EARLIEST, LATEST, SimpleConsumer
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.suite_broker import SuiteBroker

COUNT = 100


@pytest.fixture(scope="module")
def topic(broker: SuiteBroker) -> str:
    """A topic of two partitions, of which the first has COUNT records."""
    name = broker.new_topic(2)
    producer = OtherProducer({"bootstrap.servers": broker.address})
    for number in range(COUNT):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    return name


def test_records_from_an_offset_on(broker: SuiteBroker, topic: str) -> None:
    with SimpleConsumer(bootstrap_servers=broker.address) as consumer:
        found = consumer.fetch(topic, 0, 90)
        assert [(each.offset, each.value) for each in found] == [(n, b"%d" % n) for n in range(90, COUNT)]
        first, none, again = consumer.multifetch([(topic, 0, 95), (topic, 1, 0), (topic, 0, 99)])
        assert ([each.offset for each in first], len(none)) == (list(range(95, COUNT)), 0)
        assert [each.offset for each in again] == [99]


def test_offsets_and_what_is_beyond_them(broker: SuiteBroker, topic: str) -> None:
    with SimpleConsumer(bootstrap_servers=broker.address) as consumer:
        assert consumer.get_offsets_before(topic, 0, EARLIEST) == [0]
        assert consumer.get_offsets_before(topic, 0, LATEST) == [COUNT]
        assert consumer.get_offsets_before(topic, 0, LATEST, 10) == [COUNT, 0]
        assert consumer.get_offsets_before(topic, 1, LATEST, 10) == [0]
        with pytest.raises(BrokerError) as caught:
            consumer.fetch(topic, 0, COUNT + 1)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_offsets_before_a_time(broker: SuiteBroker) -> None:
    """The answer is the base offsets of files, if the broker tells them; else the first offset from that time on."""
    start, later = 1_600_000_000_000, int(time.time() * 1000) + 3_600_000
    topic = broker.new_topic(1, {"segment.bytes": "2000"} if broker.lists_files else {})
    with broker.producer() as producer:
        for number in range(50):
            producer.send(topic, b"x" * 200, timestamp=start + 10 * number).result(60)
    with SimpleConsumer(bootstrap_servers=broker.address) as consumer:
        if broker.lists_files:
            files = sorted(int(each.stem) for each in (broker.process.data / f"{topic}-0").glob("*.log"))
            assert len(files) > 4
            expected = [50, *reversed(files)]
            assert consumer.get_offsets_before(topic, 0, later, 100) == expected
            assert consumer.get_offsets_before(topic, 0, later, 3) == expected[:3]
            assert consumer.get_offsets_before(topic, 0, start, 100) == []  # before any of them was written
        else:
            assert consumer.get_offsets_before(topic, 0, later, 100) == [50, 0]
            assert consumer.get_offsets_before(topic, 0, start + 95, 100) == [10, 0]
            assert consumer.get_offsets_before(topic, 0, start + 95) == [10]
            assert consumer.get_offsets_before(topic, 0, start, 100) == [0]


def test_offsets_of_a_group_without_members(broker: SuiteBroker, topic: str) -> None:
    with SimpleConsumer(bootstrap_servers=broker.address) as consumer:
        group = f"simple-{topic}"
        consumer.commit_offsets(group, {(topic, 0): 7})
        assert consumer.fetch_offsets(group, [(topic, 0), (topic, 1)]) == {TopicPartition(topic, 0): 7}
