"""The groups of one partition of `__consumer_offsets`, in memory and on their way into it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.groups import records
from kbroker.groups.options import GroupOptions
from kbroker.groups.records import GroupValue
from kbroker.groups.replay import PartitionReplay
from kbroker.groups.subscription import subscribed_topics
from kbroker.model import TopicPartition
from kbroker.rules.group import NEVER, Group, GroupState
from kbroker.rules.group_member import JoinAnswer, Store, StoreAssignment, StoreReplacement, SyncAnswer, Token
from kbroker.rules.group_offsets import GroupOffsets
from kbroker.state_log.partition import KeyValue, Phase, StatePartition
from kbroker.state_log.replica import Committed

LOG = logging.getLogger(__name__)

TOMBSTONES_PER_BATCH = 500
NO_TIMESTAMP = -1

_STORE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a member is told when its group could not be stored, by what the append said."""

_COMMIT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""The same for offsets that could not be stored."""


def store_error(error: ErrorCode) -> ErrorCode:
    """What a member is told when storing its group ended with `error`."""
    return _STORE_ERRORS.get(error, error)


def commit_error(error: ErrorCode) -> ErrorCode:
    """What a committer is told when storing its offsets ended with `error`."""
    return _COMMIT_ERRORS.get(error, error)


class ServedGroup:
    """One group: its members' state machine, its offsets, and when it is looked at next."""

    __slots__ = ("armed_ms", "machine", "offsets", "state_timestamp_ms")

    def __init__(self, machine: Group, offsets: GroupOffsets | None = None, state_timestamp_ms: int = NO_TIMESTAMP):
        self.machine = machine
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.state_timestamp_ms = state_timestamp_ms
        """Wall clock of the state in the newest record; NO_TIMESTAMP when no record says it."""
        self.armed_ms = NEVER
        """When a call to look at the group is scheduled; NEVER when none is that counts."""


class GroupShard:
    """Groups whose records are in one partition. `lock` guards everything here and the order of appends.

    The lock is reentrant because an append may be committed before it returns, and then calls back.
    """

    def __init__(self, partition: StatePartition, options: GroupOptions, clock: Clock):
        self.partition = partition
        self.lock = threading.RLock()
        self.groups: dict[str, ServedGroup] = {}
        self.settling = False
        """Whether the thread that holds the lock is in an append; what is committed at once it goes on with itself."""
        self._options = options
        self._clock = clock

    # --- loading -----------------------------------------------------------------------------------------
    def load(self, now_ms: int) -> list[ServedGroup]:
        """Replays the partition and serves it from then on. Returns the groups; any thread, without the lock.

        Raises what reading the log raises; the partition stays as it was then.
        """
        replay = PartitionReplay(self.partition.name)
        count = self.partition.replay(replay.take, self._options.offsets_load_buffer_bytes)
        loaded = {group_id: self._restore(group_id, value, offsets) for group_id, value, offsets in replay.groups()}
        with self.lock:
            if self.partition.phase is not Phase.LOADING:
                return []  # ended meanwhile
            self.groups = loaded
            for served in loaded.values():
                served.machine.start(now_ms)
            self.partition.activate()
        if count:
            LOG.info("%s: %d records replayed, %d groups", self.partition.name, count, len(loaded))
        return list(loaded.values())

    def _restore(self, group_id: str, value: GroupValue | None, offsets: GroupOffsets) -> ServedGroup:
        limits = (self._options.max_size, self._options.initial_rebalance_delay_ms)
        if value is None:  # offsets only, of a consumer that assigns partitions to itself
            return ServedGroup(Group(group_id, *limits), offsets)
        machine = Group.restore(
            group_id, value.protocol_type, value.protocol_name, value.generation, value.leader, value.members, *limits
        )
        return ServedGroup(machine, offsets, value.state_timestamp_ms)

    # --- groups ------------------------------------------------------------------------------------------
    def create(self, group_id: str) -> ServedGroup:
        """A new, empty group."""
        machine = Group(group_id, self._options.max_size, self._options.initial_rebalance_delay_ms)
        served = self.groups[group_id] = ServedGroup(machine)
        return served

    def end(self, error: ErrorCode) -> list[tuple[Token, JoinAnswer | SyncAnswer]]:
        """This broker is not the coordinator any more. Returns what to tell those who wait."""
        answers: list[tuple[Token, JoinAnswer | SyncAnswer]] = []
        with self.lock:
            self.partition.end()
            for served in self.groups.values():
                served.machine.end(error)
                answers += served.machine.take_answers()
            self.groups = {}
        return answers

    # --- writing; the caller holds the lock --------------------------------------------------------------
    def store(self, served: ServedGroup, store: Store, committed: Committed) -> None:
        """Writes the group as `store` says it is now."""
        machine = served.machine
        if isinstance(store, StoreAssignment):
            assignments: Mapping[str, bytes] = store.assignments
            if machine.generation != store.generation or machine.state is not GroupState.COMPLETING_REBALANCE:
                committed(ErrorCode.NONE, -1)  # overtaken by a newer generation, which is stored itself
                return
        elif isinstance(store, StoreReplacement):
            assignments = {member.member_id: member.assignment for member in machine.members.values()}
        elif machine.members:
            committed(ErrorCode.NONE, -1)  # overtaken: somebody has joined meanwhile
            return
        else:
            assignments = {}
        served.state_timestamp_ms = self._clock.wall_ms()
        LOG.info("group %r: generation %d, %d members", machine.group_id, machine.generation, len(machine.members))
        value = records.group_value(machine, assignments, served.state_timestamp_ms)
        self.partition.append([(records.group_key(machine.group_id), value)], committed)

    def remove_offsets(self, served: ServedGroup, partitions: Iterable[TopicPartition]) -> ErrorCode:
        """Forgets offsets, in the log too."""
        group_id = served.machine.group_id
        gone = [partition for partition in partitions if partition in served.offsets.committed]
        error = self._append_tombstones([records.offset_key(group_id, partition) for partition in gone])
        if not error:
            served.offsets.remove(gone)
        return error

    def remove_topic(self, served: ServedGroup, topic: str) -> bool:
        """Forgets the offsets of a topic that is deleted, in the log too; whether there were any."""
        group_id = served.machine.group_id
        gone = served.offsets.remove_topic(topic)
        self._append_tombstones([records.offset_key(group_id, partition) for partition in gone])
        return bool(gone)

    def remove_if_nothing_left(self, served: ServedGroup) -> None:
        """Forgets a group that has neither members nor offsets."""
        machine, offsets = served.machine, served.offsets
        if machine.state is GroupState.EMPTY and not (machine.pending_members or offsets.committed or offsets.is_busy):
            self.remove_group(served)

    def remove_group(self, served: ServedGroup) -> ErrorCode:
        """Forgets a group that has no members, with all its offsets, in the log too."""
        machine = served.machine
        keys = [records.offset_key(machine.group_id, partition) for partition in served.offsets.committed]
        if machine.generation > 0:  # otherwise there never was a record of its members
            keys.append(records.group_key(machine.group_id))
        error = self._append_tombstones(keys)
        if not error:
            machine.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            del self.groups[machine.group_id]
        return error

    def _append_tombstones(self, keys: list[bytes]) -> ErrorCode:
        """The error of the first batch that was refused at once; what replicas say later is not waited for."""
        refused = [ErrorCode.NONE]

        def committed(error: ErrorCode, _: int) -> None:
            refused[0] = error

        for first in range(0, len(keys), TOMBSTONES_PER_BATCH):
            tombstones: list[KeyValue] = [(key, None) for key in keys[first : first + TOMBSTONES_PER_BATCH]]
            self.partition.append(tombstones, committed)
            if refused[0]:
                break
        return refused[0]

    # --- expiry ------------------------------------------------------------------------------------------
    def expire(self) -> int:
        """Removes offsets that are due and groups that have nothing any more (KIP-211); how many offsets.

        The lock is taken for one group at a time, so that nobody waits long for it.
        """
        removed = 0
        with self.lock:
            groups = list(self.groups.values())
        for served in groups:
            with self.lock:
                if served.machine.state is GroupState.DEAD:
                    continue
                due = self._expired_of(served, self._clock.wall_ms())
                if not self.remove_offsets(served, due):
                    removed += len(due)
                self.remove_if_nothing_left(served)
        return removed

    def _expired_of(self, served: ServedGroup, now_ms: int) -> list[TopicPartition]:
        machine, retention_ms = served.machine, self._options.offsets_retention_ms
        if machine.protocol_type is None:
            return served.offsets.expired(now_ms, retention_ms, None)
        if machine.state is GroupState.EMPTY:
            since = served.state_timestamp_ms
            return served.offsets.expired(now_ms, retention_ms, None if since == NO_TIMESTAMP else since)
        if machine.state is GroupState.STABLE and (topics := subscribed_topics(machine)) is not None:
            return served.offsets.expired(now_ms, retention_ms, None, topics.__contains__)
        return []
