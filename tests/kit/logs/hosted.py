"""A member's real logs in a directory, as a `replication.surroundings.LogHost`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from kbroker.model import TopicPartition
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.logs.home import ManualClock
from tests.kit.logs.quick_disk import UnsyncedFileSystem


class HostedLogs:
    def __init__(self, *directories: Path, clock: ManualClock, options: LogOptions | None = None):
        self.clock = clock
        self.options = options or LogOptions()
        storage = StorageOptions(tuple(str(each) for each in directories), flusher_threads=1)
        self.manager = LogManager(storage, fs=UnsyncedFileSystem(), clock=clock, is_member=True)
        self.manager.lock_directories()
        self.manager.start(lambda _: None, background=False)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self.manager.get(topic_partition)

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        pass

    def open_or_create(self, topic: str, topic_id: UUID, partition_id: int, *, is_new: bool) -> Log:
        return self.manager.create(topic, topic_id, partition_id, self.options)  # tests do not say what is new

    def delete(self, topic_partition: TopicPartition) -> None:
        self.manager.delete(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        log = self.manager.get(topic_partition)
        return log is not None and log.state.state == "offline"

    def close(self) -> None:
        self.manager.stop()
