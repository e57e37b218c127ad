"""Ten thousand keys go where the real producers of Java and of librdkafka send them."""

from __future__ import annotations

import random

import confluent_kafka
import pytest

from tests.client_suite.java_peer import JavaPeer
from tests.client_suite.suite_broker import SECONDS, SuiteBroker

PARTITIONS, COUNT = 37, 10_000
LETTERS = [*map(chr, range(32, 127)), *"äßéñøЖшλ中文字あ한\u200d\ufffd", "🜁", "🙂"]


def random_bytes() -> list[bytes]:
    chosen = random.Random(7)
    return [b"", *(chosen.randbytes(chosen.randrange(70)) for _ in range(COUNT - 1))]


def random_text() -> list[str]:
    chosen = random.Random(8)
    return ["", *("".join(chosen.choices(LETTERS, k=chosen.randrange(40))) for _ in range(COUNT - 1))]


def ours(broker: SuiteBroker, topic: str, keys: list[bytes] | list[str], **options: str) -> list[int]:
    with broker.producer(**options) as producer:
        sent = [producer.send(topic, b"v", key) for key in keys]
        producer.flush(SECONDS)
        return [each.result(0).partition for each in sent]


@pytest.fixture(scope="module")
def topic(broker: SuiteBroker) -> str:
    return broker.new_topic(PARTITIONS)


@pytest.mark.parametrize("kind", ["bytes", "text"])
def test_keys_go_where_java_sends_them(broker: SuiteBroker, java: JavaPeer, topic: str, kind: str) -> None:
    keys = random_bytes() if kind == "bytes" else random_text()
    told = [each.hex() if isinstance(each, bytes) else each for each in keys]
    placed = java.ask(
        "produce", topic=topic, codec="none", text_keys=kind == "text",
        records=[[None, key, "", None, []] for key in told],
    )["placed"]  # fmt: skip
    theirs = [partition for partition, _ in placed]
    assert set(theirs) == set(range(PARTITIONS))
    assert ours(broker, topic, keys) == theirs


@pytest.mark.parametrize("kind", ["murmur2", "murmur2_random", "consistent", "consistent_random"])
def test_keys_go_where_librdkafka_sends_them(broker: SuiteBroker, topic: str, kind: str) -> None:
    keys = random_bytes()
    if kind == "consistent_random":
        keys = [key for key in keys if key]  # anywhere without one
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "partitioner": kind, "linger.ms": 20, "log_level": 0}
    )
    placed = [-1] * len(keys)

    def note(number: int) -> object:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            assert error is None
            placed[number] = message.partition() or 0

        return delivered

    for number, key in enumerate(keys):
        producer.produce(topic, b"v", key, on_delivery=note(number))
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert set(placed) == set(range(PARTITIONS))
    assert ours(broker, topic, keys, partitioner=kind) == placed
