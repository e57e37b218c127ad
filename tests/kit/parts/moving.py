"""A partition in memory with a replica on each of several brokers: the test says who leads and who has what.

A replica is committed as far as all replicas in the ISR have it. A new leader must be in the ISR, so it has all that is
committed; what it has beyond that stays, and what others have beyond that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from kbroker._core.wire import record_batch
from kbroker.errors import ErrorCode
from kbroker.state_log.replica import Committed
from tests.kit.logs.home import ManualClock
from tests.kit.parts.replica import MemoryReplica


class MovingReplica(MemoryReplica):
    """The replica of one broker. Only the leader's takes appends."""

    def __init__(self, partition: MovingPartition) -> None:
        super().__init__()
        self.partition = partition

    def _refusal(self, leader_epoch: int) -> ErrorCode:
        if self.partition.leading is not self or leader_epoch < self.led_since:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(self.partition.in_sync) < self.partition.min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return self.refuse or ErrorCode.NONE

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = 0) -> None:
        refusal = self._refusal(leader_epoch)
        if not refusal and not self.is_verified(batch, guard):
            refusal = ErrorCode.INVALID_TXN_STATE
        if refusal:
            committed(refusal, -1)
            return
        base_offset = self.put(batch)
        self.partition.wait(self.log_end_offset, base_offset, committed)

    def when_committed(self, leader_epoch: int, committed: Committed) -> None:
        if self.partition.leading is not self or leader_epoch < self.led_since:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            self.partition.wait(self.log_end_offset, self.log_end_offset, committed)

    def copy(self, other: MovingReplica) -> None:
        """Become what `other` is, as a follower of it does that truncates first and then fetches."""
        self.batches = list(other.batches)
        self.log_end_offset = other.log_end_offset
        self.in_transaction, self.guards = set(other.in_transaction), {}

    def end_shared_with(self, other: MovingReplica) -> int:
        """The offset up to which both have the same."""
        end = 0
        for mine, theirs in zip(self.batches, other.batches, strict=False):
            if mine != theirs:
                break
            end = record_batch.header(mine).last_offset + 1
        return end


class MovingPartition:
    """One partition on `brokers` brokers. Broker 0 leads first, and all are in sync.

    While `follows` is set, the followers have each record at once.
    """

    def __init__(self, brokers: int, min_in_sync: int = 1) -> None:
        self.replicas = [MovingReplica(self) for _ in range(brokers)]
        self.min_in_sync = min_in_sync
        self.leader = 0
        self.leader_epoch = 0
        self.in_sync = set(range(brokers))
        self.high_watermark = 0
        self.follows = True
        self.waiting: list[tuple[int, int, Committed]] = []

    @property
    def leading(self) -> MovingReplica:
        return self.replicas[self.leader]

    def wait(self, end_offset: int, base_offset: int, committed: Committed) -> None:
        """Call `committed` when the high watermark has reached `end_offset`, perhaps now.

        Others that wait for it too are called by `settle`: in a broker that happens on another thread, after the append
        that this is part of.
        """
        if self.follows:
            self._copy(range(len(self.replicas)))
        self._advance()
        if end_offset <= self.high_watermark:
            committed(ErrorCode.NONE, base_offset)
        else:
            self.waiting.append((end_offset, base_offset, committed))

    def replicate(self, *node_ids: int) -> None:
        """Let these brokers fetch all that the leader has."""
        self._copy(node_ids)
        self._advance()
        self.settle()

    def settle(self) -> None:
        """Call all whose appends are committed."""
        done = [each for each in self.waiting if each[0] <= self.high_watermark]
        self.waiting = [each for each in self.waiting if each[0] > self.high_watermark]
        for _, base_offset, committed in done:
            committed(ErrorCode.NONE, base_offset)

    def _copy(self, node_ids: Iterable[int]) -> None:
        for node_id in node_ids:
            if node_id != self.leader:
                self.replicas[node_id].copy(self.leading)

    def shrink(self, node_id: int) -> None:
        """Take a follower out of the ISR."""
        self.in_sync -= {node_id} - {self.leader}
        self._advance()
        self.settle()

    def expand(self, node_id: int) -> None:
        """Let a follower catch up, and take it into the ISR."""
        self.replicate(node_id)
        self.in_sync.add(node_id)

    def elect(self, node_id: int) -> int:
        """Make a broker of the ISR the leader in a new epoch, which is returned. The old leader may lead on."""
        assert node_id in self.in_sync
        self.leader_epoch += 1
        if node_id == self.leader:
            self.leading.leader_epoch = self.leader_epoch
            return self.leader_epoch
        self.leader = node_id
        self.leading.lead_again(self.leader_epoch)
        self.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.follows:
            self.replicate(*range(len(self.replicas)))
        return self.leader_epoch

    def fail(self, error: ErrorCode) -> None:
        """End all appends that wait with `error`. Their records stay where they are."""
        self.settle()
        waiting, self.waiting = self.waiting, []
        for _, _, committed in waiting:
            committed(error, -1)

    def _advance(self) -> None:
        if len(self.in_sync) >= self.min_in_sync:
            shared = min(self.replicas[node_id].end_shared_with(self.leading) for node_id in self.in_sync)
            assert shared >= self.high_watermark, "a committed record is lost"
            self.high_watermark = shared


class MovingTopic:
    """An internal topic of such partitions as one broker sees it (`state_log.topic.StateTopic`)."""

    def __init__(self, node_id: int, partitions: list[MovingPartition]) -> None:
        self.node_id = node_id
        self.partitions = partitions

    def ensure(self) -> None:
        pass

    def partition_count(self) -> int | None:
        return len(self.partitions)

    def default_partition_count(self) -> int:
        return len(self.partitions)

    def led_partitions(self) -> Iterable[int]:
        return [number for number, partition in enumerate(self.partitions) if partition.leader == self.node_id]

    def replica(self, partition_id: int) -> MovingReplica | None:
        partition = self.partitions[partition_id]
        return partition.replicas[self.node_id] if partition.leader == self.node_id else None


H = TypeVar("H")


class MovingBrokers(Generic[H]):
    """Brokers with a coordinator each (`home.coordinator`, `home.deadlines`), on one partition that moves between them.

    `make` makes a broker's home. Partitions are loaded at once.
    """

    def __init__(self, partition: MovingPartition, make: Callable[[MovingTopic, ManualClock], H]) -> None:
        self.partition = partition
        self.clock = ManualClock()
        count = len(partition.replicas)
        self.homes: list[Any] = [make(MovingTopic(node_id, [partition]), self.clock) for node_id in range(count)]
        for home in self.homes:
            home.coordinator.shards._loader.submit = lambda load: load()
        self.untold: list[list[Callable[[], None]]] = [[] for _ in self.homes]
        """What each broker's coordinator has not been told yet."""

    @property
    def leader(self) -> H:
        home: H = self.homes[self.partition.leader]
        return home

    def move(self, node_id: int, *, tells: bool = True) -> None:
        """Make a broker of the ISR the leader. The coordinators are told at once, or later by `tell`.

        A broker is told of one change before the next one.
        """
        old = self.partition.leader
        self.tell(old, node_id)
        epoch = self.partition.elect(node_id)
        if old != node_id:
            self.untold[old].append(partial(self.homes[old].coordinator.shards.resign, 0, epoch))
        self.untold[node_id].append(partial(self.homes[node_id].coordinator.shards.lead, 0, epoch))
        if tells:
            self.tell(*range(len(self.homes)))

    def tell(self, *node_ids: int) -> None:
        """Tell these brokers' coordinators what they do not know yet of their roles, in its order."""
        for node_id in node_ids:
            untold, self.untold[node_id] = self.untold[node_id], []
            for call in untold:
                call()

    def advance(self, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        for home in self.homes:
            home.deadlines.run_due()
