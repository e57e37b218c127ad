"""A PartitionHost whose logs are empty directories: what it holds can be looked at, and it can fail on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kbroker.cluster.image import Partition, Topic
from kbroker.coordination.paths import encode_uuid
from kbroker.errors import StorageFailed


class FolderHost:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.failing: set[str] = set()
        """Directory names whose creation or deletion fails."""
        self.topic_configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[str, str] = {}

    def create_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            name = f"{topic.name}-{partition.partition_id}"
            if name in self.failing:
                raise StorageFailed(f"{name}: no space left on device")
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name / "topic_id").write_text(encode_uuid(topic.topic_id))

    def delete_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            name = f"{topic.name}-{partition.partition_id}"
            if name in self.failing:
                raise StorageFailed(f"{name}: input/output error")
            if (self.folder / name).exists():
                (self.folder / name / "topic_id").unlink()
                (self.folder / name).rmdir()

    def update_topic(self, topic: Topic) -> None:
        self.topic_configs[topic.name] = dict(topic.configs)

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        self.broker_configs = dict(configs)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())
