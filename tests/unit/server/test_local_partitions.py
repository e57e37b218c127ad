"""What a change of settings costs a broker with many logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from kbroker.cluster.image import MetadataImage, Partition, Topic
from kbroker.cluster.topics import Topics
from kbroker.config.broker_config import load_config
from kbroker.fs import RealFileSystem
from kbroker.groups.coordinator import GroupCoordinator
from kbroker.model import TopicPartition
from kbroker.server.local_partitions import LocalPartitions
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import StorageOptions
from kbroker.transactions.coordinator import TransactionCoordinator

PARTITIONS = 5_000
KEEP = {"retention.ms": "1000", "max.message.bytes": "500"}


def topic_of(number: int, configs: Mapping[str, str]) -> Topic:
    return Topic(f"t{number}", UUID(int=number), (Partition(0, 1, 0, (1,), (1,)),), configs)


class ListingOf(RealFileSystem):
    """A file system whose log directory lists as many partitions as asked for, without having them."""

    def __init__(self, path: str, count: int):
        self._path = path
        self._names = [f"t{number}-0" for number in range(count)]
        self.opened = 0

    def list_directory(self, path: str) -> list[str]:
        return super().list_directory(path) + (self._names if path == self._path else [])

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.opened += 1
        return super().open(path, flags, mode)


def calls_in(body: Callable[[], object]) -> dict[str, int]:
    """Return how often each Python function was called."""
    counts: dict[str, int] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_code.co_qualname
            counts[name] = counts.get(name, 0) + 1

    sys.setprofile(note)
    try:
        body()
    finally:
        sys.setprofile(None)
    return counts


def made(tmp_path: Path) -> tuple[LocalPartitions, LogManager, ListingOf, Topics]:
    # Every fifth topic has its own settings, the same for all of them.
    topics = [topic_of(at, KEEP if at % 5 == 0 else {}) for at in range(PARTITIONS)]
    image = MetadataImage("c").with_topics(topics)
    fs = ListingOf(str(tmp_path), PARTITIONS)
    logs = LogManager(StorageOptions((str(tmp_path),), flusher_threads=1), fs=fs)
    local = LocalPartitions(logs, load_config(), 0, lambda config: None)

    def owner_of(at: TopicPartition) -> Topic | None:
        return image.topic(at.topic)

    return local, logs, fs, cast("Topics", SimpleNamespace(node_id=1, image=image, owner_of=owner_of))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[LocalPartitions, LogManager, ListingOf]]:
    local, logs, fs, known = made(tmp_path)
    logs.start(local.resolver(known), background=False)
    local.serve(known, cast("GroupCoordinator", None), cast("TransactionCoordinator", None))
    fs.opened = 0
    yield local, logs, fs
    logs.abandon()


def test_a_changed_default_touches_only_the_logs_that_it_is_for(
    broker: tuple[LocalPartitions, LogManager, ListingOf],
) -> None:
    local, logs, fs = broker
    counts = calls_in(lambda: local.update_broker_configs({"log.retention.ms": "7"}))
    assert counts[Log.update_options.__qualname__] == PARTITIONS * 4 // 5
    assert counts["log_options"] == 4
    assert sum(counts.values()) < 10 * PARTITIONS
    assert fs.opened == 0
    kept = [log.options.retention_ms for log in logs.logs()]
    assert kept.count(7) == PARTITIONS * 4 // 5
    assert kept.count(1000) == PARTITIONS // 5


def test_a_setting_that_is_of_no_log_touches_none(broker: tuple[LocalPartitions, LogManager, ListingOf]) -> None:
    local, _, fs = broker
    counts = calls_in(lambda: local.update_broker_configs({"max.connections.per.ip": "7"}))
    assert Log.update_options.__qualname__ not in counts
    assert sum(counts.values()) < PARTITIONS
    assert fs.opened == 0


def test_a_changed_expiration_of_producers_is_for_the_next_look(
    broker: tuple[LocalPartitions, LogManager, ListingOf],
) -> None:
    local, logs, _ = broker
    local.update_broker_configs({"producer.id.expiration.ms": "7"})
    assert logs.producer_id_expiration_ms == 7
    local.update_broker_configs({})
    assert logs.producer_id_expiration_ms == 86_400_000


def test_a_changed_topic_touches_its_own_logs(broker: tuple[LocalPartitions, LogManager, ListingOf]) -> None:
    local, logs, fs = broker
    counts = calls_in(lambda: local.update_topic(topic_of(1, {"max.message.bytes": "10"})))
    assert counts[Log.update_options.__qualname__] == 1
    assert sum(counts.values()) < 500
    assert fs.opened == 0
    changed = logs.get(TopicPartition("t1", 0))
    assert changed is not None
    assert changed.options.max_message_bytes == 10


def test_a_start_makes_options_once_for_all_topics_with_the_same_settings(tmp_path: Path) -> None:
    local, logs, _, known = made(tmp_path)
    counts = calls_in(lambda: logs.start(local.resolver(known), background=False))
    found = logs.logs()
    logs.abandon()
    assert counts["log_options"] == 2
    assert len(found) == PARTITIONS
    assert [log.options.retention_ms for log in found].count(1000) == PARTITIONS // 5
