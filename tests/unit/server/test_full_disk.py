"""A broker whose disk is full: what it says, and how its administrator can make space."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.client import Consumer
from kbroker.client.admin.admin_client import AdminClient
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.crash.small_disk import disk, fill
from tests.kit.logs.home import batch_of

WAIT_S = 30.0
SETTINGS: dict[str, object] = {
    "kbroker.http.address": "127.0.0.1:0",
    "log.segment.bytes": 200_000,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk") as directory:
        yield directory


def await_that(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline


class FullBroker:
    """A broker on a disk that is filled up."""

    def __init__(self, broker: BrokerProcess, directory: Path):
        self.broker = broker
        self.directory = directory
        self.admin = AdminClient(bootstrap_servers=broker.address)
        self.wire = WireClient("127.0.0.1", broker.port)

    def close(self) -> None:
        self.admin.close()
        self.wire.close()

    def produce(self, topic: str) -> tuple[int, str | None]:
        """Produce 20 KB; return the error code and text that the producer gets."""
        now = int(time.time() * 1000)
        data = M.ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"x" * 20_000], now))
        topics = [M.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
        asked = M.ProduceRequest(acks=-1, timeout_ms=30000, topic_data=topics)
        (answer,) = self.wire.call(ApiKey.PRODUCE, 9, asked).responses[0].partition_responses
        return answer.error_code, answer.error_message

    def read(self, topic: str) -> int:
        """Return how many records there are."""
        with Consumer(
            bootstrap_servers=self.broker.address, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.assign([(topic, 0)])
            count = 0
            deadline = time.monotonic() + WAIT_S
            while count < 50 and time.monotonic() < deadline:
                count += len(consumer.poll(timeout=1.0))
            return count

    def get(self, path: str) -> tuple[int, str]:
        served = re.findall(r"on (http://127\.0\.0\.1:\d+)", self.broker.output)
        try:
            with urllib.request.urlopen(served[-1] + path, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def measured(self, name: str) -> float:
        """Return a metric of the log directory."""
        found = re.search(rf"^kbroker_log_directory_{name}{{.*}} (.*)$", self.get("/metrics")[1], re.MULTILINE)
        assert found is not None
        return float(found[1])

    def size_of(self, topic: str) -> int:
        used = 0
        for file in self.directory.glob(f"{topic}-*/*.log*"):
            with contextlib.suppress(FileNotFoundError):  # it is just being removed
                used += file.stat().st_size
        return used


@pytest.fixture
def full(small_disk: Path, tmp_path: Path) -> Iterator[FullBroker]:
    """A broker with topics `one`, of a single segment, and `several`, of more, and no space left."""
    with BrokerProcess({**SETTINGS, "log.dirs": str(small_disk / "data")}, folder=tmp_path / "broker") as broker:
        full = FullBroker(broker, small_disk / "data")
        for topic, count, size in (("one", 50, 10_000_000), ("several", 50, 200_000), ("doomed", 50, 200_000)):
            full.admin.create_topic(topic, 1, configs={"segment.bytes": str(size)})
            for _ in range(count):
                assert full.produce(topic) == (0, None)
        fill(small_disk)
        yield full
        full.close()


def test_producers_and_whoever_asks_are_told_that_the_disk_is_full_until_it_is_not(full: FullBroker) -> None:
    assert full.get("/ready")[0] == 503
    refused = int(ErrorCode.KAFKA_STORAGE_ERROR), "disk full: no space is left in the log directory"
    assert full.produce("one") == refused
    status, said = full.get("/ready")
    assert (status, said) == (
        503, f"log directory {full.directory} is full: no space is left, nothing can be produced\n"
    )  # fmt: skip
    assert full.get("/health") == (200, "ok\n")  # a restart would not help
    assert [full.measured(name) for name in ("full", "free_bytes", "total_bytes")] == [1, 0, 24 << 20]
    (full.directory.parent / "filler").unlink()
    assert full.get("/ready") == (200, "ok\n")
    assert full.produce("one") == (0, None)
    assert full.measured("full") == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_topics_are_deleted_with_no_byte_left_and_there_is_room(full: FullBroker, is_restarted: bool) -> None:
    if is_restarted:
        full.broker.kill()
        fill(full.directory.parent)
        full.broker.start()
        full.wire.close()
        full.wire = WireClient("127.0.0.1", full.broker.port)
    else:
        assert full.produce("doomed")[0] == ErrorCode.KAFKA_STORAGE_ERROR
    new = M.CreateTopicsRequest.CreatableTopic(name="more", num_partitions=1, replication_factor=1)
    (refused,) = full.wire.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[new], timeout_ms=30000)).topics
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "the disk is full; nothing was changed" in refused.error_message
    full.admin.delete_topics(["doomed"])
    assert full.admin.list_topics() == ["one", "several"]
    if not is_restarted:  # where an append was refused deleted files do not stay for a while
        await_that(lambda: full.size_of("doomed") == 0 and not list(full.directory.glob("doomed*")))
        await_that(lambda: full.produce("several")[0] == 0)


def test_a_broker_that_was_killed_on_a_full_disk_starts_there_and_serves_all_once_a_topic_is_deleted(
    full: FullBroker,
) -> None:
    """The broker's logs have a new leader epoch, which cannot be written, and need new indexes."""
    full.broker.kill()
    fill(full.directory.parent)
    full.broker.start()
    full.wire.close()
    full.wire = WireClient("127.0.0.1", full.broker.port)
    assert full.produce("several")[0] == ErrorCode.KAFKA_STORAGE_ERROR
    full.admin.delete_topics(["doomed"])
    assert full.read("several") == full.read("one") == 50
    await_that(lambda: full.produce("several")[0] == 0)
    full.broker.stop()
    assert (full.directory / ".kafka_cleanshutdown").exists()
    full.broker.start()
    assert (full.read("several"), full.read("one")) == (51, 50)
    assert "Traceback" not in full.broker.output


@pytest.mark.parametrize("topic", ["one", "several"])
def test_a_shorter_retention_is_taken_with_no_byte_left_and_makes_room(full: FullBroker, topic: str) -> None:
    assert full.produce(topic)[0] == ErrorCode.KAFKA_STORAGE_ERROR
    full.admin.alter_topic_config(topic, {"retention.bytes": "0"})
    await_that(lambda: full.size_of(topic) < 200_000)
    await_that(lambda: full.produce(topic)[0] == 0)
    assert "Traceback" not in full.broker.output


def test_the_log_warns_of_a_disk_that_becomes_full(small_disk: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.dirs": str(small_disk / "data"), "kbroker.disk.free.warning.percent": 100}
    with BrokerProcess(settings, folder=tmp_path / "broker") as broker:
        await_that(lambda: "less than kbroker.disk.free.warning.percent=100" in broker.output)
