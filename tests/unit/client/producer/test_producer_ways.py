"""The ways of a producer beside the usual one: sync, handlers, encoders, old brokers, never closed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kbroker._core.wire.message_set import messages
from kbroker.client import Producer
from kbroker.client.errors import BrokerError, ClientError
from kbroker.client.handlers import ProducerHandler, QueuedRecord
from kbroker.client.producer.errors import QueueFull, RecordTooLarge
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec, inflate
from tests.kit.brokers.answers import Ranges
from tests.kit.brokers.produce import ProduceBroker
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory
from tests.kit.parts.processors import wait_until
from tests.unit.client.producer.test_producer import SECONDS, producer_of


def test_sync_returns_what_is_delivered_and_raises_what_is_not() -> None:
    with ProduceBroker(1) as broker, producer_of(broker, producer_type="sync") as producer:
        assert producer.send("t", b"a").offset == 0
        producer.send_nowait("t", b"b")
        assert producer.send_many("t", [b"c", b"d"]).done()
        assert broker.logs["t", 0] == [b"a", b"b", b"c", b"d"]
        broker.fatal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                send("t", b"e")
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.send_many("t", [b"f"])


ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"


class Noting(ProducerHandler):
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
        if record.value == b"drop":
            return None
        record.value = b"<" + record.value + b">"
        return record

    def after_enqueue(self, record: QueuedRecord, added: bool) -> None:
        self.heard.append(("enqueued", record.value, added))

    def after_dequeue(self, batches: Any) -> None:
        self.heard += [("dequeued", *batch[:3], batch.attempt) for batch in batches]

    def before_sending(self, batches: Any) -> None:
        self.heard += [("sending", *batch[:3], batch.attempt) for batch in batches]
        raise ZeroDivisionError  # which changes nothing


def test_handlers_hear_of_each_step_and_may_change_and_drop_records() -> None:
    noting = Noting()
    with ProduceBroker(1) as broker, producer_of(broker, handlers=[noting], linger_ms=10_000) as producer:
        assert producer.send("t", b"drop") is None
        producer.send("t", b"a")
        producer.send_nowait("t", b"b")
        producer.flush(SECONDS)
        assert broker.logs["t", 0] == [b"<a>", b"<b>"]
    assert noting.heard == [
        ("enqueued", b"<a>", True),
        ("enqueued", b"<b>", True),
        ("dequeued", "t", 0, 2, 1),
        ("sending", "t", 0, 2, 1),
    ]


MANY = [b"a", b"drop", b"c", b"d"]


@pytest.mark.parametrize(
    ("values", "keys", "partitions", "timestamps"),
    [
        (MANY, ["k", None, "k", "l"], None, 17),
        (tuple(MANY), None, 0, [1, 2, 3, 4]),
        (np.array(MANY), np.array(MANY), np.zeros(4, "int32"), np.arange(4)),
        (pa.array(MANY), pa.chunked_array([["k"], [None, "k", "l"]]), pa.array([0] * 4), pa.array([5] * 4)),
        (pa.chunked_array([MANY[:1], [], MANY[1:]]), None, None, pa.array([5] * 4).cast(pa.timestamp("ms"))),
    ],
    ids=["list", "tuple", "numpy", "arrow", "chunked"],
)
def test_handlers_hear_of_each_of_many_records(values: Any, keys: Any, partitions: Any, timestamps: Any) -> None:
    noting = Noting()
    with ProduceBroker(1) as broker, producer_of(broker, handlers=noting) as producer:
        called: list[Any] = []
        sent = producer.send_many(
            "t", values, keys, {"h": "1"}, partitions, timestamps, on_delivery=lambda *heard: called.append(heard)
        )
        assert sent.result(SECONDS) == len(sent) == 3
        producer.flush(SECONDS)
        assert broker.logs["t", 0] == [b"<a>", b"<c>", b"<d>"]
    assert called == [(None, sent)]
    assert noting.heard[0] == ("enqueued", b"<a>", True)
    assert [each[1] for each in noting.heard if each[0] == "enqueued"] == [b"<a>", b"<c>", b"<d>"]


def test_handlers_see_the_headers_and_the_partition_of_each_of_many() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": b"1"}], None, []], kind)
    seen: list[Any] = []

    class Seeing(ProducerHandler):
        def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
            seen.append((record.value, record.headers, record.partition))
            return record

    with ProduceBroker(2) as broker, producer_of(broker, handlers=[Seeing()]) as producer:
        producer.send_many("t", MANY[:3], headers=headers, partitions=pa.array([1, None, 0])).result(SECONDS)
    assert seen == [(b"a", [("h", b"1")], 1), (b"drop", None, None), (b"c", [], 0)]


class Sharding(ProducerHandler):
    """Gives each record a topic, a partition and headers."""

    def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
        record.topic, record.partition = ("u", 1) if record.value == b"b" else ("t", 0)
        record.headers.append(("seen", record.value))
        return record


def test_a_handler_may_send_each_of_many_somewhere_else() -> None:
    with ProduceBroker(2) as broker, producer_of(broker, handlers=[Sharding(), Noting()]) as producer:
        assert producer.send_many("t", [b"a", b"b", b"a"], headers=[("h", b"1")]).result(SECONDS) == 3
        assert (broker.logs["t", 0], broker.logs["u", 1]) == ([b"<a>", b"<a>"], [b"<b>"])
        assert len(producer.send_many("t", [])) == 0
        with pytest.raises(ValueError, match="keys has 1 items for 2 values"):
            producer.send_many("t", [b"a", b"b"], keys=["k"])
        with pytest.raises(TypeError, match="values must be a list"):
            producer.send_many("t", b"ab")


def test_who_sends_many_hears_how_many_came_before_the_one_that_is_refused() -> None:
    noting = Noting()
    with ProduceBroker(1) as broker, producer_of(broker, handlers=noting, max_request_size=1000) as producer:
        with pytest.raises(RecordTooLarge) as refused:
            producer.send_many("t", [b"a", b"drop", b"b", b"x" * 2000, b"c"])
        assert refused.value.__notes__ == ["2 records of this call were taken before"]
        producer.flush(SECONDS)
        assert broker.logs["t", 0] == [b"<a>", b"<b>"]
    assert [each[2] for each in noting.heard if each[0] == "enqueued"] == [True, True, False]


def test_a_handler_hears_that_there_was_no_room() -> None:
    noting = Noting()
    options = {"handlers": noting, "queue_buffering_max_messages": 1, "queue_enqueue_timeout_ms": 0}
    with ProduceBroker(1) as broker, producer_of(broker, linger_ms=10_000, **options) as producer:
        producer.send("t", b"a")
        broker.silent = True
        with pytest.raises(QueueFull):
            for _ in range(3):
                producer.send("t", b"b")
        assert ("enqueued", b"<b>", False) in noting.heard
        producer.close(0)


@pytest.mark.parametrize(
    ("name", "given", "sent", "wrong"),
    [
        ("bytes", b"\xff", b"\xff", "text"),
        ("string", "ä", "ä".encode(), b"x"),
        ("kafka.serializer.StringEncoder", "a", b"a", b"x"),
        ("json", {"a": [1, "ä"]}, '{"a":[1,"ä"]}'.encode(), {1, 2}),
        (lambda value: f"<{value}>", 5, b"<5>", None),
    ],
)
def test_encoders(name: Any, given: Any, sent: bytes, wrong: Any) -> None:
    with ProduceBroker(1) as broker, producer_of(broker, serializer_class=name, key_encoder="string") as producer:
        producer.send("t", given, key="k").result(SECONDS)
        if wrong is not None:
            with pytest.raises(TypeError):
                producer.send("t", wrong)
            producer.send("t", None).result(SECONDS)
            assert broker.logs["t", 0] == [sent, None]
        else:
            assert broker.logs["t", 0] == [sent]


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"request.required.acks": 1}, "acks", 1),
        ({"message.send.max.retries": 3}, "retries", 3),
        ({"queue.buffering.max.ms": 5}, "linger.ms", 5),
        ({"message.timeout.ms": 500}, "delivery.timeout.ms", 500),
        ({"message.max.bytes": 5000}, "max.request.size", 5000),
        ({"max.in.flight": 2}, "max.in.flight.requests.per.connection", 2),
        ({"compression.codec": "2"}, "compression.type", "snappy"),
        ({"compression.codec": 0}, "compression.type", "none"),
        (
            {"partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
            "partitioner",
            "round_robin",
        ),
        ({"metadata.broker.list": "127.0.0.1:1"}, "bootstrap.servers", (("127.0.0.1", 1),)),
    ],
)
def test_names_of_the_older_producers(options: dict[str, Any], name: str, value: Any) -> None:
    producer = Producer({"metadata.broker.list": "127.0.0.1:1"} | options)
    assert producer.options[name] == value
    producer.close(0)


@pytest.mark.parametrize(
    "options", [{"producer_type": "later"}, {"value_encoder": "xml"}, {"handlers": [1]}, {"compression_codec": "5"}]
)
def test_wrong_values_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Producer(bootstrap_servers="127.0.0.1:1", **options)


def test_batches_are_of_a_number_of_records() -> None:
    with ProduceBroker(1) as broker, producer_of(broker, batch_num_messages=10, linger_ms=60_000) as producer:
        producer.send_many("t", [b"x"] * 95)
        producer.flush(SECONDS)
        assert broker.batches == 10
        assert len(broker.logs["t", 0]) == 95


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_batch_that_is_too_large_is_split(codec: str) -> None:
    values = [bytes([i % 7]) * 20 + b"%06d" % (i * 7919 % 999_983) for i in range(2000)]
    with (
        ProduceBroker(1, largest_batch=3000) as broker,
        producer_of(broker, linger_ms=100, compression_type=codec) as producer,
    ):
        sent = producer.send_many("t", values)
        assert sent.result(SECONDS) == len(values)
        assert broker.logs["t", 0] == values
        assert broker.codecs == {Codec[codec.upper()]}
        assert producer.accumulator.bytes_used == producer.accumulator.record_count == 0


class OldBroker(ProduceBroker):
    """Speaks as Kafka 0.10: no producer ids, and message sets."""

    def served(self) -> Ranges:
        return {key: versions for key, versions in super().served().items() if key != ApiKey.INIT_PRODUCER_ID}

    def append(self, key: tuple[str, int], data: bytes) -> tuple[ErrorCode, int]:
        offset = len(self.logs[key])
        for message in messages(data):
            assert message.magic == (1 if self.versions[1] == 2 else 0)
            self.codecs.add(message.codec)
            value = data[message.value_position : message.value_position + message.value_size]
            if message.codec:
                inner = inflate(message.codec, value, 1 << 26, magic=message.magic)
                self.logs[key] += [
                    inner[each.value_position : each.value_position + each.value_size] for each in messages(inner)
                ]
            else:
                self.logs[key].append(value)
        return ErrorCode.NONE, offset


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_brokers_of_before_record_batches_get_message_sets(version: int, codec: str) -> None:
    values = [b"%d " % i * 5 for i in range(500)]
    with OldBroker(1, versions=(0, version)) as broker, producer_of(broker, compression_type=codec) as producer:
        assert producer.send("t", values[0], key=b"k", timestamp=5).result(SECONDS).offset == 0
        assert producer.send_many("t", values[1:]).result(SECONDS) == 499
        assert broker.logs["t", 0] == values
        assert Codec[codec.upper()] in broker.codecs


def test_brokers_of_before_record_batches_take_no_headers() -> None:
    with OldBroker(1, versions=(0, 2)) as broker, producer_of(broker) as producer:
        headed = producer.send("t", b"a", headers={"h": b"1"}).exception(SECONDS)
        assert isinstance(headed, ClientError)
        assert headed.code == ErrorCode.UNSUPPORTED_VERSION
        assert "headers of records need a broker of Kafka 0.11" in str(headed)
        assert producer.send("t", b"b").result(SECONDS).offset == 0


def test_idempotence_is_left_out_for_an_old_broker_unless_it_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with OldBroker(1, versions=(0, 2)) as broker:
        with producer_of(broker) as producer:
            producer.send("t", b"a").result(SECONDS)
        assert "without idempotence" in caplog.text
        with producer_of(broker, enable_idempotence=True) as producer, pytest.raises(ClientError) as raised:
            producer.send("t", b"b").result(SECONDS)
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert "leave enable.idempotence out" in str(raised.value)
        assert broker.logs["t", 0] == [b"a"]


def test_a_producer_that_nobody_has_any_more_ends_with_a_warning() -> None:
    with ProduceBroker(1) as broker:
        before = threading.active_count()
        producer = producer_of(broker)
        producer.send("t", b"a").result(SECONDS)  # it is connected: flushing takes one answer
        producer.send("t", b"b")
        gone = weakref.ref(producer)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del producer
            gc.collect()
        assert gone() is None
        assert broker.logs["t", 0] == [b"a", b"b"]
        # The broker's own, one for each connection, end when they see that theirs is closed.
        wait_until(lambda: threading.active_count() <= before, "its threads end")


def test_the_end_of_the_interpreter_flushes() -> None:
    script = """
import sys
from kbroker.client import Producer
producer = Producer(bootstrap_servers="127.0.0.1:" + sys.argv[1], linger_ms=60000)
producer.send_many("t", [b"x"] * 100)
"""
    with ProduceBroker(1) as broker:
        done = subprocess.run([sys.executable, "-c", script, str(broker.port)], timeout=60, check=False)
        assert done.returncode == 0
        assert len(broker.logs["t", 0]) == 100


def test_a_fork_leaves_the_parents_producer_alone_and_the_childs_is_refused() -> None:
    script = """
import os, sys
from kbroker.client import Producer
from kbroker.client.errors import ForkedClient
options = {"bootstrap_servers": "127.0.0.1:" + sys.argv[1]}
producer = Producer(**options)
producer.send("t", b"before").result(30)
child = os.fork()
if child == 0:
    try:
        producer.flush(5)
    except ForkedClient:
        with Producer(**options) as own:
            own.send("t", b"child").result(30)
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
producer.send("t", b"after").result(30)
producer.close()
"""
    with ProduceBroker(1) as broker:
        done = subprocess.run([sys.executable, "-c", script, str(broker.port)], timeout=60, check=False)
        assert done.returncode == 0
        assert broker.logs["t", 0] == [b"before", b"child", b"after"]


@pytest.mark.slow
@pytest.mark.parametrize("kafka", [KafkaInMemory, Kafka4InMemory], ids=["3.9", "4.3"])
def test_apache_kafka_takes_all_codecs(kafka: type[KafkaInMemory]) -> None:
    from confluent_kafka import Consumer, TopicPartition

    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    values = [b"%d " % i * 10 for i in range(2000)]
    with kafka({}) as broker:
        for codec in codecs:
            with Producer(bootstrap_servers=broker.address, compression_type=codec, batch_size=5000) as producer:
                assert producer.send_many("t", values, partitions=0).result(60) == len(values)
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "check.crcs": True})
        consumer.assign([TopicPartition("t", 0, 0)])
        found: list[bytes | None] = []
        while len(found) < len(values) * len(codecs):
            got = consumer.consume(10_000, 10)
            assert got, len(found)
            found += [message.value() for message in got if not message.error()]
        consumer.close()
    assert found == values * len(codecs)
