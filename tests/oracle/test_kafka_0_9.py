"""Apache Kafka 0.9.0.1 gives the same messages the same offsets and contents, and its directories are read here.

It writes magic 0. A directory of it is opened by kbroker, and by Apache Kafka 3.9 with the same ZooKeeper: both answer
every version of Fetch and ListOffsets alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from tests.compat.clients import named
from tests.compat.records import checksum
from tests.kit.brokers.process import BrokerProcess, ServerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.kafka import maven
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper, OldKafka
from tests.kit.models.message_set import Message
from tests.oracle.answers import Names, differences, tree_of
from tests.oracle.history import History
from tests.oracle.scenario import lower
from tests.oracle.scenarios.old_messages import compressed, flat, messages_in
from tests.oracle.scenarios.requests import FetchTopic, fetch, fetch_partition, offsets_of, produce, records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS: dict[str, object] = {
    "broker.id": 0,
    "num.partitions": 1,
    "log.retention.ms": -1,
    "log.segment.bytes": 40_000,
    "log.index.interval.bytes": 300,
    "auto.create.topics.enable": "true",
}
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
CLIENT = named("kafka-python-1.4-for-0.9")
COUNT = 200
"""How many records the client writes with each codec: a batch of them fits into a segment."""


def sets() -> Iterator[bytes]:
    for turn in range(40):
        for codec in CODECS:
            size = (10, 300, 2000)[turn % 3]
            yield compressed(codec, 4, 0, size) if codec else flat(4, 0, size=size)


def make_topic(client: WireClient, name: str) -> None:
    """Make a topic by asking for it until it has a leader."""
    wanted = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=name)])
    for _ in range(1000):
        (topic,) = client.call(ApiKey.METADATA, 0, wanted).topics
        if not topic.error_code and topic.partitions and not topic.partitions[0].error_code:
            return
    raise AssertionError(f"no leader of {name}")


def write(broker: ServerProcess) -> list[int]:
    """Write the same messages to any broker; return the offsets that it tells."""
    with WireClient("127.0.0.1", broker.port) as client:
        for topic in ("sets", "client"):
            make_topic(client, topic)
        told = [client.call(ApiKey.PRODUCE, 1, produce("sets", one)).responses[0] for one in sets()]
    for at, codec in enumerate(CLIENT.codecs):
        done = CLIENT.run(
            "produce", bootstrap=broker.address, topic="client", first=at * COUNT, count=COUNT, size=100, codec=codec,
            headers=False, nulls=True, acks=-1, pause_ms=0,
        )  # fmt: skip
        assert done["acked"] == COUNT
    return [one.partition_responses[0].base_offset for one in told]


def ask_fetch(client: WireClient, version: int, topic: str, offset: int, max_bytes: int = 1 << 20) -> Any:
    request = fetch([FetchTopic(topic=topic, partitions=[fetch_partition(0, offset, max_bytes)])], max_bytes=max_bytes)
    return client.call(ApiKey.FETCH, version, lower(request, version))


def read(broker: ServerProcess, topic: str, version: int = 1, offset: int = 0) -> list[Message]:
    """Return all messages, as a client of that version sees them."""
    found: list[Message] = []
    with WireClient("127.0.0.1", broker.port) as client:
        while True:
            (part,) = ask_fetch(client, version, topic, offset).responses[0].partitions
            assert part.error_code == 0
            seen = [one for one in messages_in(bytes(part.records or b"")) if one.offset >= offset]
            if not seen:
                return found
            found += seen
            offset = seen[-1].offset + 1


class World:
    """Kafka 0.9, stopped, with its directory; the messages that were sent to it and read from it."""

    def __init__(self, kafka: OldKafka, told: list[int]):
        self.kafka, self.told = kafka, told
        self.messages = {topic: read(kafka, topic) for topic in ("sets", "client")}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    try:
        OldKafka.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with OldKafka({**SETTINGS, "zookeeper.session.timeout.ms": 60_000}) as kafka:
        made = World(kafka, write(kafka))
        kafka.stop()
        yield made


def test_the_same_messages_have_the_same_offsets_and_contents(world: World) -> None:
    with BrokerProcess(SETTINGS) as kbroker:
        assert write(kbroker) == world.told
        for topic, messages in world.messages.items():
            assert len(messages) == (640 if topic == "sets" else 4 * COUNT)
            assert read(kbroker, topic) == messages
            assert [(m.offset, m.key, m.value) for m in read(kbroker, topic, 2)] == [
                (m.offset, m.key, m.value) for m in messages
            ]


def copy_of(world: World, folder: Path) -> Path:
    shutil.copytree(world.kafka.data, folder / "data")
    return folder / "data"


def test_clients_of_all_times_read_a_directory_of_kafka_0_9(world: World, tmp_path: Path) -> None:
    copy_of(world, tmp_path)
    expected = (4 * COUNT, checksum(0, 4 * COUNT, 100, True, False))
    with BrokerProcess(SETTINGS, folder=tmp_path) as kbroker:
        for topic, messages in world.messages.items():
            for version in (0, 1, 2, 3):
                assert read(kbroker, topic, version) == messages, "as it lies, for it has no newer one"
        # aiokafka refuses lz4 of magic 0.
        for name in (CLIENT.name, "pykafka-for-0.9.0", "confluent", "kafka-python-3.0", "java-4.3"):
            done = named(name).run("consume", bootstrap=kbroker.address, topic="client", count=4 * COUNT, timeout_s=30)
            assert (done["count"], done["checksum"]) == expected, name
        with History(kbroker.port) as h:
            h.await_leaders("sets")
            h.produce("sets", 0, records(2))
        assert [m.offset for m in read(kbroker, "sets", 1, 638)] == [638, 639, 640, 641]
        kbroker.restart()
        assert [m.offset for m in read(kbroker, "sets", 3)] == list(range(642))


def test_kafka_3_9_answers_alike_about_the_same_directory(world: World, tmp_path: Path) -> None:
    """The messages in the directory are sent as they are: magic 0 to every version of Fetch."""
    data = copy_of(world, tmp_path / "kafka")
    copy_of(world, tmp_path / "kbroker")
    with ExitStack() as stack:
        kafka = KafkaOnZooKeeper({**SETTINGS, "log.dirs": data}, folder=tmp_path / "kafka")
        kafka.zookeeper = world.kafka.zookeeper
        stack.callback(kafka.kill)
        kafka.start()
        kbroker = stack.enter_context(BrokerProcess(SETTINGS, folder=tmp_path / "kbroker"))
        for broker in (kafka, kbroker):
            with WireClient("127.0.0.1", broker.port) as client:
                make_topic(client, "sets")
        answers = [answers_of(broker) for broker in (kafka, kbroker)]
    assert differences(*answers) == []


def answers_of(broker: ServerProcess) -> dict[str, Any]:
    names = Names(broker.port)
    found: dict[str, Any] = {}
    with WireClient("127.0.0.1", broker.port) as client:
        for version in range(13):
            for offset in (0, 1, 2, 77, 301, 639, 640, 641):
                for max_bytes in (700, 9000):
                    answer = ask_fetch(client, version, "sets", offset, max_bytes)
                    if version < 3:  # cut at the limit, in Kafka
                        answer.responses[0].partitions[0].records = b""
                    found[f"Fetch {version} {offset} {max_bytes}"] = tree_of(answer, version, names)
        for version in range(8):
            for timestamp in (-2, -1, 0, 1_700_000_000_000, 4_000_000_000_000):
                asked = M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of("sets", [(0, timestamp)])])
                if version == 0:
                    asked.topics[0].partitions[0].max_num_offsets = 1
                    if timestamp not in (-1, -2):
                        continue  # by the dates of the files, which are copies
                answer = client.call(ApiKey.LIST_OFFSETS, version, lower(asked, version))
                found[f"ListOffsets {version} {timestamp}"] = tree_of(answer, version, names)
    return found


@pytest.mark.parametrize("torn", [b"\0" * 20, b"\0\0\0\0\0\0\2\x80\0\0\0\x40", flat(1, 0)[:-3], b"x" * 5000])
def test_a_torn_tail_of_kafka_0_9_is_cut_and_the_rest_is_there(world: World, tmp_path: Path, torn: bytes) -> None:
    data = copy_of(world, tmp_path)
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for topic in ("sets", "client"):
        last = max((data / f"{topic}-0").glob("*.log"))
        last.write_bytes(last.read_bytes() + torn)
        for index in (data / f"{topic}-0").glob("*.index"):
            index.unlink()
    with BrokerProcess(SETTINGS, folder=tmp_path) as kbroker:
        for topic, messages in world.messages.items():
            assert read(kbroker, topic) == messages
            assert read(kbroker, topic, offset=333) == messages[333:]
