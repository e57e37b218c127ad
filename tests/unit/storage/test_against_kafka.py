"""Our files under Apache Kafka 3.9's own tool and broker, and Kafka's files under ours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition as Partition
from kbroker.storage import checkpoints
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.kafka import maven
from tests.kit.kafka.dump_tool import printed_without_complaint
from tests.kit.kafka.process import KafkaProcess
from tests.kit.logs.home import LogHome, batch_of, read_all

SMALL = LogOptions(segment_bytes=20_000, index_interval_bytes=300)


@pytest.fixture(scope="module")
def classpath() -> str:
    try:
        return KafkaProcess.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))


@pytest.mark.usefixtures("classpath")
@pytest.mark.parametrize("stop", ["clean", "killed", "recovered"])
def test_kafkas_tool_finds_nothing_wrong_in_our_files(tmp_path: Path, stop: str) -> None:
    home = LogHome(tmp_path, options=SMALL)
    log = home.create()
    for at in range(300):
        log.append(
            batch_of(
                [b"%d" % at, b"x" * 150],
                1_700_000_000_000 + at * 10,
                producer_id=7,
                producer_epoch=0,
                base_sequence=at * 2,
                codec=at % 5,
            )
        )
    if stop == "clean":
        log.close()
    elif stop == "recovered":
        home.reopen(clean=False).close()
    files = sorted(path for path in home.log_path.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    snapshots = sorted(home.log_path.glob("*.snapshot"))
    assert len(files) >= 6
    assert len(snapshots) >= 1
    printed = printed_without_complaint([*files, *snapshots], "--deep-iteration")
    assert re.findall(r"\| offset: (\d+) ", printed) == [str(offset) for offset in range(600)]
    assert "producerId: 7 producerEpoch: 0" in printed
    if stop == "killed":
        return  # the newest entries of the active segment's indexes are not in their files; recovery makes them
    indexes = [path for path in files if path.suffix != ".log"]
    printed = printed_without_complaint(indexes, "--index-sanity-check")
    assert printed.count("passed sanity check") == len(indexes)


@pytest.fixture
def kafka(tmp_path: Path, classpath: str) -> Iterator[KafkaProcess]:
    overrides = {"log.segment.bytes": 20_000, "log.index.interval.bytes": 300}
    process = KafkaProcess(overrides, folder=tmp_path / "kafka")
    yield process
    if process.process is not None and process.process.poll() is None:
        process.kill()


def values_in(kafka: KafkaProcess, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(1000, 1) if not message.error()]
    consumer.close()
    return values


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_directory_goes_from_kafka_to_us_and_back(kafka: KafkaProcess) -> None:
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    values: list[bytes | None] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        settings = {"bootstrap.servers": kafka.address, "compression.type": codec, "enable.idempotence": True}
        producer = Producer({**settings, "linger.ms": 0, "batch.num.messages": 7})
        for at in range(200):
            values.append(f"{codec} {at} ".encode() * 5)
            producer.produce("orders", values[-1], timestamp=1_700_000_000_000 + len(values))
        assert producer.flush(30) == 0
    kafka.stop()

    at = Partition("orders", 0)
    topic_id = checkpoints.load_topic_id(
        RealFileSystem(), str(kafka.data / "orders-0" / checkpoints.PARTITION_METADATA)
    )
    assert topic_id is not None
    # What is KRaft's, and is not read.
    aside = kafka.folder / "aside"
    aside.mkdir()
    for name in ("meta.properties", "__cluster_metadata-0"):
        (kafka.data / name).rename(aside / name)
    logs = LogManager(StorageOptions((str(kafka.data),), producer_id_expiration_ms=1 << 50))
    logs.start({at: (topic_id, SMALL)}.get, 0, "c", background=False)
    log = logs.get(at)
    assert log is not None
    indexes = {path: path.stat().st_mtime_ns for path in (kafka.data / "orders-0").glob("*.index")}
    log.open()
    assert {path: path.stat().st_mtime_ns for path in indexes} == indexes, "a clean directory needs no new indexes"
    assert [record.value for record in read_all(log)] == values
    found = log.offset_for_timestamp(1_700_000_000_501)
    assert found is not None
    assert found[:2] == (1_700_000_000_501, 500)
    producers, end_offset = log.state.producers()
    assert end_offset == 1000
    assert len(producers) == 5
    for number in range(100):
        values.append(b"ours %d" % number)
        log.append(batch_of([values[-1]], 1_700_000_100_000 + number))
    logs.stop()
    for path in aside.iterdir():
        path.rename(kafka.data / path.name)

    kafka.start()
    assert values_in(kafka, len(values)) == values
    kafka.stop()
