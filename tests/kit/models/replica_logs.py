"""The logs of a member as plain values: which role each has, and how far its followers have come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kbroker.errors import ErrorCode, ProtocolError, StorageFailed
from kbroker.model import NO_UUID, TopicPartition


@dataclass
class ModelFollower:
    node_id: int
    broker_epoch: int
    log_end_offset: int = -1
    log_start_offset: int = -1
    last_caught_up_ms: int = 0
    in_sync: bool = False


@dataclass
class ModelState:
    """What `PartitionState` is to a leader; tests set the offsets."""

    log_end_offset: int = 0
    high_watermark: int = 0
    epoch_start_offset: int = 0
    committed: frozenset[int] = frozenset()
    maximal: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()
    silent: set[int] = field(default_factory=set)
    seen: dict[int, ModelFollower] = field(default_factory=dict)

    def set_in_sync(self, committed: Collection[int], maximal: Collection[int]) -> None:
        self.committed, self.maximal = frozenset(committed), frozenset(maximal)

    def set_live(self, node_ids: Collection[int]) -> None:
        self.live = frozenset(node_ids)

    def take_ready(self) -> set[int]:
        """Every follower, as if all of them had just fetched, but those that a test lets be `silent`."""
        return set(self.seen) - self.silent

    def followers(self) -> list[ModelFollower]:
        return list(self.seen.values())


@dataclass
class ModelLog:
    topic_partition: TopicPartition
    topic_id: UUID
    role: str = "follower"
    leader_epoch: int = -1
    is_offline: bool = False
    fails: bool = False
    """Whether the disk refuses the next change of the role."""
    is_complete: bool = True
    mended: int = 0
    damage: int | None = None
    looked_at: list[int] = field(default_factory=list)
    state: ModelState = field(default_factory=ModelState)
    has_led: Callable[[], None] = lambda: None
    """Called when it has taken the leader's role, before anybody else knows of that."""

    def _check(self) -> None:
        if self.is_offline or self.fails:
            raise StorageFailed(f"{self.topic_partition}: the disk refuses")

    def open(self) -> None:
        self._check()

    def find_damage(self, offset: int) -> int | None:
        self.looked_at.append(offset)
        return self.damage

    def note_damage(self, offset: int) -> None:
        self.is_complete = False

    def mend(self) -> None:
        self._check()
        self.is_complete, self.mended = True, self.mended + 1

    def accept(self) -> None:
        self._check()
        self.is_complete = True

    def lead(self, epoch: int, followers: Mapping[int, int], in_sync: Collection[int]) -> None:
        self._check()
        self.role, self.leader_epoch = "leader", epoch
        self.state.seen = {
            node_id: self.state.seen.get(node_id, ModelFollower(node_id, broker_epoch))
            for node_id, broker_epoch in followers.items()
        }
        self.state.set_in_sync(in_sync, in_sync)
        self.state.epoch_start_offset = self.state.log_end_offset
        self.has_led()

    def follow(self, epoch: int) -> None:
        self._check()
        self.role, self.leader_epoch = "follower", epoch

    def be_alone(self, epoch: int) -> None:
        self._check()
        self.role, self.leader_epoch = "alone", epoch

    def stop_replica(self) -> None:
        self.role = "stopped"


class ModelLogs:
    """A `LogHost` in memory, with one good directory, and perhaps one that has failed."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, ModelLog] = {}
        self.has_failed_directory = False
        self.full = False
        """Whether no log can be made or deleted now."""

    def get(self, topic_partition: TopicPartition) -> ModelLog | None:
        return self.logs.get(topic_partition)

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        pass

    def open_or_create(self, topic: str, topic_id: UUID, partition_id: int, *, is_new: bool) -> ModelLog:
        topic_partition = TopicPartition(topic, partition_id)
        log = self.logs.get(topic_partition)
        if log is None:
            if self.full:
                raise StorageFailed("no space is left")
            is_offline = self.has_failed_directory and not is_new
            log = self.logs[topic_partition] = ModelLog(topic_partition, topic_id, is_offline=is_offline)
        elif topic_id not in (log.topic_id, NO_UUID):
            raise ProtocolError(ErrorCode.INCONSISTENT_TOPIC_ID)
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        if self.full:
            raise StorageFailed("the directory cannot be renamed")
        self.logs.pop(topic_partition, None)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        log = self.logs.get(topic_partition)
        return log is not None and log.is_offline
