"""A PartitionHost whose logs are empty directories. Tests can look at them, and make it fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kbroker.cluster.image import Partition, Topic
from kbroker.coordination.paths import encode_uuid
from kbroker.errors import StorageFailed


class Crash(BaseException):
    """The process dies here. No caller may catch this as an error."""


class FolderHost:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.failing: set[str] = set()
        """Directory names whose creation or deletion fails."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called before a creation fails."""
        self.steps_until_crash: int | None = None
        """Steps until the crash; None: no crash. Making or removing a directory is two steps: before and after."""
        self.topic_configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[str, str] = {}
        self.changed_groups: list[str] = []

    def create_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            name = f"{topic.name}-{partition.partition_id}"
            if name in self.failing:
                self.on_failure()
                raise StorageFailed(f"{name}: no space left on device")
            self._step()
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name / "topic_id").write_text(encode_uuid(topic.topic_id))
            self._step()

    def delete_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            name = f"{topic.name}-{partition.partition_id}"
            if name in self.failing:
                raise StorageFailed(f"{name}: input/output error")
            self._step()
            if (self.folder / name).exists():
                self.remove(name)
            self._step()

    def remove(self, name: str) -> None:
        (self.folder / name / "topic_id").unlink()
        (self.folder / name).rmdir()

    def _step(self) -> None:
        if self.steps_until_crash is not None:
            self.steps_until_crash -= 1
            if self.steps_until_crash < 0:
                raise Crash

    def update_topic(self, topic: Topic) -> None:
        self.topic_configs[topic.name] = dict(topic.configs)

    def update_group_configs(self, group_id: str) -> None:
        self.changed_groups.append(group_id)

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        self.broker_configs = dict(configs)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())
