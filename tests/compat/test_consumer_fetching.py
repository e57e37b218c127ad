"""Our consumer reads what Apache Kafka's producers of every age have written, from the brokers of their time."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer as OtherProducer

from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol.records import Record
from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory, KafkaProcess
from tests.kit.kafka.zookeeper import Kafka010, Kafka25

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KAFKAS: list[type[KafkaProcess]] = [Kafka010, Kafka25, KafkaInMemory, Kafka4InMemory]
SECONDS = 60.0
COUNT = 500
numbers = itertools.count()


@pytest.fixture(scope="module", params=KAFKAS, ids=lambda kind: kind.version)
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaProcess]:
    settings: dict[str, object] = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "log.message.timestamp.difference.max.ms": 1 << 60,
        "log.retention.ms": -1,  # some records are of 1970
    }
    with request.param(settings) as started:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                new_topic(started)
                break
            except BrokerError as error:  # it serves before it knows of itself
                assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR
                assert time.monotonic() < deadline
        yield started


def new_topic(kafka: KafkaProcess, partitions: int = 1, **configs: str) -> str:
    name = f"fetched-{next(numbers)}"
    with AdminClient(bootstrap_servers=kafka.address) as admin:
        admin.create_topic(name, partitions, 1, {key.replace("_", "."): value for key, value in configs.items()})
    return name


def age(kafka: KafkaProcess) -> tuple[int, ...]:
    return tuple(map(int, kafka.version.split(".")))


def codecs(kafka: KafkaProcess) -> list[str]:
    return ["none", "gzip", "snappy", "lz4", *(["zstd"] if age(kafka) >= (2, 1) else [])]


def write_with_its_own_tool(kafka: KafkaProcess, topic: str, codec: str, lines: list[str]) -> None:
    """Write with the kafka-console-producer of the same release; a line is key:value."""
    package = "org.apache.kafka.tools" if age(kafka) >= (4,) else "kafka.tools"
    servers = "--bootstrap-server" if age(kafka) >= (2, 5) else "--broker-list"
    command = [
        *java(kafka.classpath(), "-Xmx128m"), f"{package}.ConsoleProducer",
        servers, kafka.address, "--topic", topic, "--compression-codec", codec,
        "--request-timeout-ms", "60000", "--property", "parse.key=true", "--property", "key.separator=:",
    ]  # fmt: skip
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def write(kafka: KafkaProcess, topic: str, records: list[Record], **settings: Any) -> None:
    producer = OtherProducer({"bootstrap.servers": kafka.address, "linger.ms": 5, **settings})
    for record in records:
        producer.produce(
            topic, record.value, record.key, 0, timestamp=record.timestamp, headers=list(record.headers) or None
        )
    assert producer.flush(SECONDS) == 0


def consumer_of(kafka: KafkaProcess, **options: Any) -> Consumer:
    quick = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
    return Consumer(bootstrap_servers=kafka.address, **(quick | options))


def read(
    kafka: KafkaProcess, topic: str, count: int, offsets: Mapping[int, int] | None = None, **options: Any
) -> list[Record]:
    found: list[Record] = []
    with consumer_of(kafka, **options) as consumer:
        consumer.assign({TopicPartition(topic, number): at for number, at in (offsets or {0: 0}).items()})
        deadline = time.monotonic() + SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            found += [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in consumer.poll(1.0)]
        found += [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in consumer.poll(0.2)]
    return found


def test_what_its_own_producer_writes_is_read(kafka: KafkaProcess) -> None:
    topic = new_topic(kafka)
    before = time.time() * 1000 - 60_000
    expected: list[tuple[bytes, bytes]] = []
    for codec in ("none", "gzip"):
        pairs = [(f"{codec}-{number}", "x" * (number % 300)) for number in range(COUNT)]
        write_with_its_own_tool(kafka, topic, codec, [f"{key}:{value}" for key, value in pairs])
        expected += [(key.encode(), value.encode()) for key, value in pairs]
    found = read(kafka, topic, len(expected))
    assert [(record.key, record.value) for record in found] == expected
    assert [record.offset for record in found] == list(range(len(expected)))
    assert all(record.timestamp >= before for record in found)
    middle = len(expected) // 2 + 7
    assert read(kafka, topic, len(expected) - middle, {0: middle}, max_poll_records=13) == found[middle:]


def test_every_codec_is_read(kafka: KafkaProcess) -> None:
    topic = new_topic(kafka)
    sent: list[Record] = []
    for codec in codecs(kafka):
        some = [Record(0, 5000 + number, b"k%d" % number, bytes(number % 90)) for number in range(COUNT)]
        write(kafka, topic, some, **{"compression.type": codec})
        sent += some
    found = read(kafka, topic, len(sent))
    assert found == [Record(at, each.timestamp, each.key, each.value) for at, each in enumerate(sent)]


def test_positions_by_time_and_at_the_ends(kafka: KafkaProcess) -> None:
    topic = new_topic(kafka, 2)
    write(kafka, topic, [Record(0, 1000 + number, None, b"%d" % number) for number in range(100)])
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(kafka) as consumer:
        consumer.assign([first, second])
        assert consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
        assert consumer.end_offsets([first, second]) == {first: 100, second: 0}
        assert consumer.offsets_for_times({first: 1042, second: 5}) == {first: 42, second: None}
        assert consumer.offsets_for_times({first: 5000}) == {first: None}
        consumer.seek(topic, 0, 42)
        assert [record.timestamp for record in consumer.poll(SECONDS, 3)] == [1042, 1043, 1044]


FORMATS = [
    pytest.param(Kafka010, "0.9.0", 0, id="0.10-magic-0"),
    pytest.param(Kafka25, "0.9.0", 0, id="2.5-magic-0"),
    pytest.param(Kafka25, "0.10.0", 1, id="2.5-magic-1"),
]


@pytest.mark.parametrize("stamped", [False, True], ids=["create-time", "append-time"])
@pytest.mark.parametrize(("kind", "version", "magic"), FORMATS)
def test_topics_of_older_formats_and_those_that_were_upgraded(
    kafka: KafkaProcess, kind: type[KafkaProcess], version: str, magic: int, stamped: bool
) -> None:
    if kafka.version != kind.version:
        pytest.skip("of another release")
    configs = {"message_format_version": version}
    if stamped:
        configs["message_timestamp_type"] = "LogAppendTime"
    topic = new_topic(kafka, **configs)
    chosen = [codec for codec in codecs(kafka) if codec != "zstd"]
    sent: list[Record] = []
    for codec in chosen:
        some = [Record(0, 5000 + number, b"k%d" % number, bytes(number % 90)) for number in range(COUNT)]
        write(kafka, topic, some, **{"compression.type": codec})
        sent += some
    found = read(kafka, topic, len(sent))
    assert [(record.key, record.value) for record in found] == [(record.key, record.value) for record in sent]
    assert [record.offset for record in found] == list(range(len(sent)))
    times = [record.timestamp for record in found]
    if magic == 0:
        assert set(times) == {-1}
    elif stamped:
        assert all(time_ms > 1_500_000_000_000 for time_ms in times)
    else:
        assert times == [record.timestamp for record in sent]
    for position in (1, COUNT - 1, COUNT + 3, 3 * COUNT + 250):
        assert read(kafka, topic, len(sent) - position, {0: position}) == found[position:]


def test_headers_and_nulls(kafka: KafkaProcess) -> None:
    if age(kafka) < (0, 11):
        pytest.skip("there were no headers")
    topic = new_topic(kafka)
    sent = [
        Record(at, 1000 + at, None if at % 2 else b"k", b"" if at % 3 else None, (("h", b"%d" % at), ("n", None)))
        for at in range(50)
    ]
    write(kafka, topic, sent)
    assert read(kafka, topic, 50) == sent


def test_only_what_was_committed_is_read_with_read_committed(kafka: KafkaProcess) -> None:
    if age(kafka) < (0, 11):
        pytest.skip("there were no transactions")
    topic = new_topic(kafka)
    producer = OtherProducer({"bootstrap.servers": kafka.address, "transactional.id": topic, "linger.ms": 1})
    producer.init_transactions(SECONDS)
    committed: list[bytes] = []
    everything: list[bytes] = []
    for round_number in range(8):
        producer.begin_transaction()
        values = [b"%d-%d" % (round_number, number) for number in range(20)]
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(SECONDS)
        everything += values
        if round_number % 3 == 1:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
            committed += values
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(SECONDS)
    found = read(kafka, topic, len(committed), isolation_level="read_committed")
    assert [record.value for record in found] == committed
    found = read(kafka, topic, len(everything) + 1)
    assert [record.value for record in found] == [*everything, b"open"]
    partition = TopicPartition(topic, 0)
    with consumer_of(kafka, isolation_level="read_committed") as consumer:
        assert consumer.end_offsets([partition]) == {partition: 8 * 21}
    with consumer_of(kafka) as consumer:
        assert consumer.end_offsets([partition]) == {partition: 8 * 21 + 1}
    producer.abort_transaction(SECONDS)
