"""A broker's directory goes from Apache Kafka 3.9 with its ZooKeeper to kbroker and back, by `kbroker cluster`.

Kafka writes topics with settings; kbroker takes them over, serves them completely and appends; Kafka goes on where
kbroker has stopped, and kbroker where Kafka has. docs/MIGRATION.md describes the same steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka import maven
from tests.kit.kafka.dump_tool import printed_without_complaint
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper
from tests.oracle.history import SOON, History
from tests.oracle.scenarios.configs import BROKER, SET, change
from tests.oracle.scenarios.requests import records
from tests.oracle.test_files import Contents, delete_records, served
from tests.oracle.test_znodes import accepted, old_commit

SETTINGS: dict[str, object] = {
    "broker.id": 0,
    "offsets.topic.num.partitions": 3,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
}
KAFKA_SETTINGS: dict[str, object] = {
    **SETTINGS,
    "log.initial.task.delay.ms": 100,
    "zookeeper.session.timeout.ms": 12_000,
}
TOPIC_SETTINGS = {
    "orders": {"retention.ms": "-1", "segment.bytes": "20000"},
    "table": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.3"},
    "old": {"retention.ms": "-1", "max.message.bytes": "4000"},
    "plain": {},
}
NOW = int(time.time() * 1000)
YEARS_AGO = 1_000_000_000_000


def kbroker(*arguments: object, fails: bool = False) -> str:
    """Run a command and return its output; its stderr if it is to fail."""
    command = [sys.executable, "-m", "kbroker.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stderr if fails else done.stdout


class Moving:
    """One log directory, a Kafka and a kbroker that take turns over it."""

    def __init__(self, kafka: KafkaOnZooKeeper):
        self.kafka = kafka
        self.kbroker = BrokerProcess(SETTINGS, folder=kafka.folder)
        self.address = f"{kafka.zookeeper.address}/kafka/here"
        kafka.overrides["zookeeper.connect"] = self.address

    def carry(self, action: str, *more: object, fails: bool = False) -> str:
        return kbroker("cluster", action, "--zookeeper", self.address, "--data", self.kafka.data, *more, fails=fails)

    def carried(self, action: str, *more: object) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.carry(action, "--json", *more))
        return result


def fill(port: int) -> None:
    with History(port) as h:
        for name, configs in TOPIC_SETTINGS.items():
            # A Kafka that has just started does not see itself yet.
            h.create(name, 2, configs=configs, not_yet=(*SOON, ErrorCode.INVALID_REPLICATION_FACTOR))
        for at in range(60):
            h.produce("orders", at % 2, records(5, 100, at=NOW + at, codec=at % 5))
            h.produce("table", at % 2, records(5, 100, at=NOW + at))
        fields = {"producer_id": 7, "producer_epoch": 0}
        for at in range(3):
            h.produce("plain", 0, records(2, at=NOW, base_sequence=2 * at, **fields))
        # By age these would go at once, were it not for the topic's settings.
        h.produce("old", 0, records(3, at=YEARS_AGO))
        delete_records(h, "orders", 7)
        h.create("gone", 1)
        h.delete("gone")
        h.do(change((BROKER, "0", [("log.retention.ms", SET, "3600000")])), accepted)
        h.ask_for_a_producer_id()
        h.commit_offset("g", "orders")
        h.ask(old_commit("zk", {"orders": {0: 11, 1: 12}}), version=0)


def settings_of(h: History, topic: str) -> dict[str, str]:
    request = M.DescribeConfigsRequest
    asked = request.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
    answer = h.do(request(resources=[asked]), lambda answer: [each.error_code for each in answer.results], version=4)
    return {each.name: each.value for each in answer.results[0].configs if each.config_source == 1}


def old_offset(h: History, group: str, topic: str, partition_id: int) -> int:
    R = M.OffsetFetchRequest
    topics = [R.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition_id])]
    offset: int = h.ask(R(group_id=group, topics=topics), version=0).topics[0].partitions[0].committed_offset
    return offset


def committed(h: History, group: str, topic: str) -> int:
    R = M.OffsetFetchRequest
    topics = [R.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    answer = h.do(R(group_id=group, topics=topics), lambda answer: [answer.error_code], version=5)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def topic_ids(h: History) -> dict[str, bytes]:
    answer = h.ask(M.MetadataRequest(topics=None), version=12)
    return {topic.name: topic.topic_id for topic in answer.topics}


NAMES = [f"{name}-{at}" for name in TOPIC_SETTINGS for at in range(2)]


def everything(port: int) -> tuple[Contents, dict[str, dict[str, str]], dict[str, bytes], int, int]:
    """Return everything that a client can see and that has to be the same wherever the directory is."""
    with History(port) as h:
        contents = served(h, NAMES)
        return (
            contents,
            {name: settings_of(h, name) for name in TOPIC_SETTINGS},
            topic_ids(h),
            old_offset(h, "zk", "orders", 1),
            committed(h, "g", "orders"),
        )


def append(port: int, sequence: int) -> None:
    with History(port) as h:
        for name in TOPIC_SETTINGS:
            h.produce(name, 1, records(4, at=NOW + 1000 + sequence))
        # The producer goes on where it was.
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        h.produce("plain", 0, records(2, at=NOW + sequence, **fields))
        h.ask_for_a_producer_id()


@pytest.fixture
def moving() -> Iterator[Moving]:
    try:
        KafkaOnZooKeeper.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    kafka = KafkaOnZooKeeper(KAFKA_SETTINGS)
    moving = Moving(kafka)
    with kafka:
        yield moving


def test_a_broker_moves_with_its_topics_and_settings_and_back(moving: Moving) -> None:
    kafka, ours = moving.kafka, moving.kbroker
    fill(kafka.port)
    with zookeeper(moving) as client:
        client.create("/config/clients/app", b'{"version":1,"config":{"producer_byte_rate":"1000"}}')
    before = everything(kafka.port)
    assert before[1] == TOPIC_SETTINGS
    assert "is in use" in moving.carry("import", fails=True)
    kafka.stop()
    with zookeeper(moving) as client:
        client.create("/brokers/ids/0", ephemeral=True)
        assert "broker 0 is running" in moving.carry("import", fails=True)
        client.delete("/brokers/ids/0")

    planned = moving.carried("import", "--dry-run")
    assert planned["topics"] == 5
    assert {each["what"] for each in planned["changes"]} == {"create"}
    assert not (kafka.data / "coordination.sqlite").exists()
    assert moving.carried("import")["written"] > 30
    assert moving.carried("import")["written"] == 0, "again changes nothing"
    ours.start()
    assert everything(ours.port) == before
    append(ours.port, 6)
    with History(ours.port) as h:
        h.create("new", 1, configs={"retention.ms": "77"})
        h.produce("new", 0, records(3, at=NOW))
        h.ask(old_commit("zk", {"orders": {0: 11, 1: 99}}), version=0)
    after = everything(ours.port)
    assert after[3] == 99
    assert "in use by process" in moving.carry("export", fails=True)
    ours.stop()
    assert "settings are not known" not in ours.output

    assert_kafkas_tool_is_content(kafka)
    assert_kafkas_tool_is_content(kafka)
    with zookeeper(moving) as client:
        client.create("/brokers/ids/5", ephemeral=True)
        assert "broker 5 is registered in that ZooKeeper: stop it first" in moving.carry("export", fails=True)
        client.delete("/brokers/ids/5")
    assert moving.carried("export")["written"] > 0
    assert "is that of a member of a cluster" in moving.carry("export", fails=True)
    kafka.start()
    assert everything(kafka.port) == after
    with History(kafka.port) as h:
        assert settings_of(h, "new") == {"retention.ms": "77"}
        h.delete("new")
        h.ask(old_commit("zk", {"orders": {0: 11, 1: 500}}), version=0)
    append(kafka.port, 8)
    there_and_back = everything(kafka.port)
    assert there_and_back[3] == 500
    kafka.stop()
    with zookeeper(moving) as client:
        assert client.exists("/config/clients/app")

    moving.carry("import")
    ours.start()
    assert everything(ours.port) == there_and_back
    append(ours.port, 10)
    ours.stop()


def test_a_start_with_the_zookeeper_of_a_kafka_goes_on_with_its_topics_and_back(moving: Moving) -> None:
    kafka, ours = moving.kafka, moving.kbroker
    fill(kafka.port)
    before = everything(kafka.port)
    kafka.stop()
    ours.overrides["zookeeper.connect"] = moving.address
    ours.start()
    assert everything(ours.port) == before
    append(ours.port, 6)
    after = everything(ours.port)
    ours.stop()
    assert not (kafka.data / "coordination.sqlite").exists()
    kafka.start()
    assert everything(kafka.port) == after
    kafka.stop()


def assert_kafkas_tool_is_content(kafka: KafkaOnZooKeeper) -> None:
    """kafka-dump-log reads every file of every partition without a complaint."""
    files = sorted(
        path for kind in ("log", "index", "timeindex", "snapshot") for path in kafka.data.glob(f"*/*.{kind}")
    )
    assert len(files) > 40
    assert printed_without_complaint(files, "--deep-iteration").count("| offset: ") > 600


class zookeeper:
    """Return a client inside the chroot."""

    def __init__(self, moving: Moving):
        self._client = KazooClient(moving.address)

    def __enter__(self) -> KazooClient:
        self._client.start(30)
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()


@pytest.mark.slow
def test_a_directory_without_its_zookeeper_keeps_everything_until_settings_come(moving: Moving) -> None:
    """Also after a kill: no defaults delete records that were to be kept for ever, while their settings are unknown."""
    kafka, ours = moving.kafka, moving.kbroker
    fill(kafka.port)
    before = everything(kafka.port)
    kafka.kill()
    ours.overrides["log.retention.ms"] = 1000
    for _ in range(2):
        ours.start()
        contents, settings, ids, offset, group_offset = everything(ours.port)
        assert contents == before[0]
        assert ids == before[2]
        assert group_offset == before[4]
        assert not any(settings.values())
        assert offset == -1
        await_retention_checks(ours)
        ours.stop()
    assert (
        "nothing is deleted from or compacted in 4 topics whose settings are not known: old, orders, plain, table; "
        "give them with `kbroker configs alter topic NAME`, or all of them with `kbroker cluster import`"
    ) in ours.output
    kafka.await_end_of_session()
    assert "of an earlier topic" not in moving.carry("import")
    ours.start()
    contents, settings, ids, offset, _ = everything(ours.port)
    assert {name: kept for name, kept in contents.items() if "plain" not in name} == {
        name: kept for name, kept in before[0].items() if "plain" not in name
    }
    assert settings == TOPIC_SETTINGS
    assert (ids, offset) == (before[2], 12)
    ours.stop()


def await_retention_checks(broker: BrokerProcess) -> None:
    """Wait until a topic whose settings are known has lost its old records: other topics had as much time."""
    with History(broker.port) as h:
        name = f"probe-{time.monotonic_ns()}"
        h.create(name, 1, configs={"segment.bytes": "200"})
        for _ in range(3):
            h.produce(name, 0, records(1, 80, at=YEARS_AGO))
        deadline = time.monotonic() + 30
        while len(served(h, [f"{name}-0"])[f"{name}-0"]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        h.delete(name)


def test_a_directory_goes_into_an_empty_zookeeper(moving: Moving) -> None:
    """A broker that was kbroker's from the first day becomes a Kafka broker."""
    kafka, ours = moving.kafka, moving.kbroker
    kafka.stop()
    with zookeeper(moving) as client:
        for name in ("brokers", "cluster", "config", "controller_epoch", "admin"):
            client.delete(f"/{name}", recursive=True)
    for path in kafka.data.iterdir():
        path.unlink() if path.is_file() else None
    ours.start()
    fill(ours.port)
    before = everything(ours.port)
    ours.stop()
    moving.carry("export")
    kafka.start()
    assert everything(kafka.port) == before
    append(kafka.port, 6)
    kafka.stop()


CODECS = ("none", "gzip", "snappy", "lz4")


def write_values(port: int, count: int, codecs: tuple[str, ...] = CODECS) -> list[bytes]:
    values = [f"{codec} {at} ".encode() * 5 for codec in codecs for at in range(count)]
    for codec in codecs:
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "compression.type": codec, "linger.ms": 0}
        producer = Producer({**settings, "batch.num.messages": 7})
        for value in values:
            if value.startswith(codec.encode()):
                producer.produce("legacy", value, key=value[:9], timestamp=NOW, partition=0)
        assert producer.flush(30) == 0
    return values


def read_values(port: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition("legacy", 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("message_format", "end"),
    [("0.9.0", "stop"), pytest.param("0.10.0", "kill", marks=pytest.mark.slow)],
    ids=["magic 0", "magic 1"],
)
def test_segments_of_old_message_formats_are_served_and_appended_to(message_format: str, end: str) -> None:
    try:
        KafkaOnZooKeeper.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    formats = {"inter.broker.protocol.version": "2.8", "log.message.format.version": message_format}
    small = {"log.segment.bytes": 2000, "log.retention.ms": -1}
    with KafkaOnZooKeeper({**KAFKA_SETTINGS, **formats, **small}) as kafka:
        with History(kafka.port) as h:
            h.create("legacy", 1, not_yet=(*SOON, ErrorCode.INVALID_REPLICATION_FACTOR))
        values = write_values(kafka.port, 40)
        assert read_values(kafka.port, len(values)) == values
        kafka.kill() if end == "kill" else kafka.stop()
        segments = sorted((kafka.data / "legacy-0").glob("*.log"))
        assert len(segments) >= 3
        assert {path.read_bytes()[16] for path in segments if path.stat().st_size} == {int("10" in message_format)}
        indexes = {path: path.read_bytes() for path in sorted((kafka.data / "legacy-0").glob("*.index"))[:-1]}
        ours = BrokerProcess({**SETTINGS, **small}, folder=kafka.folder)
        with ours:
            assert read_values(ours.port, len(values)) == values
            values += write_values(ours.port, 20, (*CODECS, "zstd"))
            assert read_values(ours.port, len(values)) == values
            ours.restart()
            assert read_values(ours.port, len(values)) == values
        assert {path: path.read_bytes() for path in indexes} == indexes
        for name in ("inter.broker.protocol.version", "log.message.format.version"):
            del kafka.overrides[name]
        if end == "kill":
            kafka.await_end_of_session()
        kafka.start()
        assert read_values(kafka.port, len(values)) == values
        kafka.stop()
