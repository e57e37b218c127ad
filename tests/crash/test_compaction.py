"""A real broker that compacts while real clients write and read, and is killed and started again in the middle."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers.process import BrokerProcess

KEYS = 500
SETTINGS: dict[str, object] = {
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.dedupe.buffer.size": 1 << 20,
    "log.cleaner.min.cleanable.ratio": 0.2,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 4096,
    "group.initial.rebalance.delay.ms": 0,
}
TOPIC = {"cleanup.policy": "compact", "segment.bytes": "65536", "file.delete.delay.ms": "100"}
CLEANED = re.compile(
    r"compacted-0: cleaned offsets \[\d+, (\d+)\) in ([\d.]+) s, ([\d.]+) MiB/s: read ([\d.]+) MiB with"
)


def make_topic(broker: BrokerProcess, name: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(20)


def wait_for(what: Callable[[], bool], why: str, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.05)


def write(broker: BrokerProcess, topic: str, newest: dict[bytes, bytes], rounds: range) -> None:
    """Write every key once in each round, and wait for the acknowledgements."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "enable.idempotence": True})
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for number in rounds:
        for key in range(KEYS):
            name, value = b"key %d" % key, b"%d " % number + b"x" * 80
            producer.produce(topic, value, name, on_delivery=told)
            newest[name] = value
            producer.poll(0)
        producer.flush(30)
    assert not failed


def read(broker: BrokerProcess, topic: str) -> dict[bytes, bytes]:
    """Read the log from its start to its end, and return each key's last value. Offsets must rise."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "auto.offset.reset": "earliest"})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[bytes, bytes] = {}
    before = -1
    while before < end - 1:
        message = consumer.poll(20)
        assert message is not None, f"nothing behind offset {before} of {end}"
        if message.error():
            raise KafkaException(message.error())
        offset, key, value = message.offset(), message.key(), message.value()
        assert offset is not None and offset > before
        assert isinstance(key, bytes) and isinstance(value, bytes)
        before, found[key] = offset, value
    consumer.close()
    return found


@pytest.mark.timeout(240)
def test_a_compacted_topic_keeps_the_newest_of_each_key_for_readers_at_any_time() -> None:
    with BrokerProcess(SETTINGS) as broker:
        make_topic(broker, "compacted", TOPIC)
        newest: dict[bytes, bytes] = {}
        write(broker, "compacted", newest, range(3))
        wait_for(lambda: bool(CLEANED.search(broker.output)), "the first cleaning")
        writer = threading.Thread(target=write, args=(broker, "compacted", newest, range(3, 15)))
        writer.start()
        while writer.is_alive():
            assert read(broker, "compacted").keys() == newest.keys()
        writer.join()
        broker.kill()
        broker.start()
        assert read(broker, "compacted") == newest
        write(broker, "compacted", newest, range(15, 20))

        def is_clean() -> bool:
            ends = [int(found[1]) for found in CLEANED.finditer(broker.output)]
            return ends[-1] > 18 * KEYS

        wait_for(is_clean, "all but the last segments cleaned")
        assert read(broker, "compacted") == newest
        broker.restart()
        assert read(broker, "compacted") == newest
        # What is left: a record for each key, and the active segment.
        sizes = [path.stat().st_size for path in (broker.data / "compacted-0").glob("*.log")]
        assert sum(sizes) < 20 * KEYS * 100 / 4
        assert "cannot be compacted" not in broker.output
        assert (broker.data / "cleaner-offset-checkpoint").read_text().count("compacted 0 ") == 1


@pytest.mark.timeout(240)
def test_group_offsets_are_compacted_and_found_again() -> None:
    with BrokerProcess(SETTINGS) as broker:
        make_topic(broker, "orders", {})
        groups = [f"group {number}" for number in range(5)]
        with contextlib.closing(Committers(broker.address, groups)) as committers:
            for number in range(1, 200):
                for group in groups if number == 199 else groups[:1]:
                    committers.commit(group, number)
            wait_for(lambda: "__consumer_offsets-0: cleaned offsets" in broker.output, "the offsets topic cleaned")
            for stop in (broker.kill, broker.stop):
                stop()
                broker.start()
                assert committers.committed() == [199] * len(groups)
        first = min((broker.data / "__consumer_offsets-0").glob("*.log"))
        assert first.stat().st_size < 4096


class Committers:
    """A consumer for each group, which only commits."""

    def __init__(self, address: str, groups: list[str]):
        self.consumers = {
            group: Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False})
            for group in groups
        }

    def commit(self, group: str, offset: int) -> None:
        self.consumers[group].commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)

    def committed(self) -> list[int]:
        asked = [TopicPartition("orders", 0)]
        return [consumer.committed(asked, timeout=30)[0].offset for consumer in self.consumers.values()]

    def close(self) -> None:
        for consumer in self.consumers.values():
            consumer.close()


@pytest.mark.timeout(60)
def test_a_record_without_a_key_is_refused_by_a_compacted_topic() -> None:
    with BrokerProcess() as broker:
        make_topic(broker, "compacted", TOPIC)
        producer = Producer({"bootstrap.servers": broker.address})
        told: list[KafkaError | None] = []
        producer.produce("compacted", b"value", on_delivery=lambda error, _: told.append(error))
        producer.flush(20)
        (error,) = told
        assert error is not None
        assert error.code() == KafkaError.INVALID_RECORD
