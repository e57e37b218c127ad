"""The groups of one partition of `__consumer_offsets`: their state in memory, and the appends of their records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.groups import consumer_records, records
from kbroker.groups.options import GroupOptions
from kbroker.groups.records import GroupValue
from kbroker.groups.replay import PartitionReplay
from kbroker.groups.subscribed_topics import subscribed_topics
from kbroker.groups.unsettled import Unsettled
from kbroker.model import TopicPartition
from kbroker.room import Room
from kbroker.rules.consumer_group_member import Change, StoreChanges
from kbroker.rules.group import Group
from kbroker.rules.group_member import Store, StoreAssignment, StoreReplacement, Token
from kbroker.rules.group_offsets import CommittedOffset, GroupOffsets, StagedOffsets
from kbroker.rules.group_state import NEVER, GroupState
from kbroker.rules.mixed_group import MixedGroup
from kbroker.state_log.append_errors import COORDINATOR_ERRORS
from kbroker.state_log.deadlines import Alarm
from kbroker.state_log.replica import Committed
from kbroker.state_log.shards import Shard
from kbroker.state_log.state_partition import NO_PRODUCER, KeyValue, Phase, Producer, StatePartition

LOG = logging.getLogger(__name__)

TOMBSTONES_PER_BATCH = 500
NO_TIMESTAMP = -1

_STORE_ERRORS = COORDINATOR_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error that a member gets when its group could not be stored, by the error of the append."""

_COMMIT_ERRORS = COORDINATOR_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""The error that a client gets when its offsets could not be stored, by the error of the append."""


def store_error(error: ErrorCode) -> ErrorCode:
    """The error that a member gets when storing its group ended with `error`."""
    return _STORE_ERRORS.get(error, error)


def beat_error(error: ErrorCode) -> ErrorCode:
    """The error that a member of a consumer group gets when storing its changes ended with `error`."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.REQUEST_TIMED_OUT else store_error(error)


def commit_error(error: ErrorCode) -> ErrorCode:
    """The error that a client gets when storing its offsets ended with `error`."""
    return _COMMIT_ERRORS.get(error, error)


class ServedGroup:
    """One group: the state machine of its members, its offsets, and its next deadline.

    The machine is of the group's protocol. It is replaced when the group changes to the other protocol.
    """

    __slots__ = (
        "alarm", "armed_ms", "machine", "made_by", "offsets", "reported", "rests_until_ms", "state_timestamp_ms",
        "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        machine: Group | MixedGroup,
        offsets: GroupOffsets | None = None,
        state_timestamp_ms: int = NO_TIMESTAMP,
        made_by: str | None = None,
    ):
        self.machine = machine
        self.made_by = made_by
        """The host of the client that created the group; None if it was loaded from the log."""
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.state_timestamp_ms = state_timestamp_ms
        """Wall clock time of the group's state, from its newest record; NO_TIMESTAMP if no record has it."""
        self.armed_ms = NEVER
        """The time for which `alarm` is scheduled; NEVER if it is not."""
        self.alarm: Alarm | None = None
        """The scheduled call that advances the machine."""
        self.rests_until_ms = 0
        """The machine is not advanced before this time, because that looks at all members."""
        self.unsettled = Unsettled()
        """The answers that wait until the group's changes are committed."""
        self.reported = ErrorCode.NONE
        """Why the group could not be stored, which was logged; NONE since it could. A client may join again at once."""

    @property
    def classic(self) -> Group | None:
        """The state machine if the group uses the classic protocol, else None."""
        return self.machine if isinstance(self.machine, Group) else None

    @property
    def consumer(self) -> MixedGroup | None:
        """The state machine if the group uses the consumer protocol, else None."""
        return self.machine if isinstance(self.machine, MixedGroup) else None


class GroupShard(Shard):
    """The groups whose records are in one partition. `lock` guards everything here and the order of appends."""

    def __init__(self, partition: StatePartition, options: GroupOptions, clock: Clock, room: Room):
        self.partition = partition
        self.lock = threading.RLock()
        self.groups: dict[str, ServedGroup] = {}
        self.settling = False
        """Whether the thread that holds the lock is in an append: if it commits at once, this thread goes on itself."""
        self._in_transaction: dict[int, set[str]] = {}
        """Ids of the groups that may have offsets in an open transaction, by producer id."""
        self._ended_while_loading: list[tuple[int, bool, int]] = []
        self._options = options
        self._clock = clock
        self._room = room

    # --- loading -----------------------------------------------------------------------------------------
    def load(self, now_ms: int) -> list[ServedGroup]:
        """Replay the partition, and serve it from then on. Returns its groups.

        May be called by any thread that does not hold the lock. Raises what reading the log raises; the partition is
        still LOADING then.
        """
        replay = PartitionReplay(self.partition.name)
        count = self.partition.replay(replay.apply_batch, self._options.offsets_load_buffer_bytes)
        loaded = {
            group_id: self._restore(group_id, value, offsets, replay.consumer_groups.get(group_id))
            for group_id, value, offsets in replay.groups()
        }
        with self.lock:
            if self.partition.phase is not Phase.LOADING:
                return []  # ended meanwhile
            self.groups = loaded
            for group_id, served in loaded.items():
                if served.consumer is not None:
                    served.consumer.limits = self._options.limits_of(group_id)
                    served.unsettled.count = 1  # the end of the log may not be committed
                for producer_id in served.offsets.transactions:
                    self._in_transaction.setdefault(producer_id, set()).add(group_id)
                served.machine.start(now_ms)
            self.partition.activate()
            for ended in self._ended_while_loading:  # the replay may have read these markers or not
                self.end_transaction(*ended)
            self._ended_while_loading = []
        if count:
            LOG.info("%s: %d records replayed, %d groups", self.partition.name, count, len(loaded))
        return list(loaded.values())

    def _restore(
        self, group_id: str, value: GroupValue | None, offsets: GroupOffsets, changes: list[Change] | None
    ) -> ServedGroup:
        if changes is not None and value is None:
            consumer = MixedGroup(group_id, self._options.consumer)
            consumer.restore(changes)
            return ServedGroup(consumer, offsets)
        limits = (self._options.max_size, self._options.initial_rebalance_delay_ms)
        if value is None:  # the group has offsets only: its consumers assign partitions to themselves
            return ServedGroup(Group(group_id, *limits), offsets)
        machine = Group.restore(
            group_id, value.protocol_type, value.protocol_name, value.generation, value.leader, value.members, *limits
        )
        return ServedGroup(machine, offsets, value.state_timestamp_ms)

    # --- groups ------------------------------------------------------------------------------------------
    def create(self, group_id: str, host: str) -> ServedGroup:
        """Create an empty classic group for a client of that host. The caller holds the lock."""
        machine = Group(group_id, self._options.max_size, self._options.initial_rebalance_delay_ms)
        served = self.groups[group_id] = ServedGroup(machine, made_by=host)
        self._room.made(host)
        return served

    def adopt(self, served: ServedGroup, machine: MixedGroup) -> None:
        """Change `served`, which may be new, into a group of the consumer protocol. The caller holds the lock."""
        served.machine = machine
        if machine.group_id not in self.groups and served.made_by is not None:
            self._room.made(served.made_by)
        self.groups[machine.group_id] = served

    def forsake(self, served: ServedGroup, before: Group | MixedGroup) -> None:
        """Undo `adopt`: give the group back its earlier state machine, or remove a new group.

        The caller holds the lock.
        """
        if served.machine is before:
            self.remove_if_nothing_left(served)
        else:
            served.machine = before

    def is_replaceable(self, served: ServedGroup) -> bool:
        """Whether the group has no members, so that it may become one of the other protocol and keep its offsets."""
        machine = served.machine
        return machine.state is GroupState.EMPTY and not machine.pending_members

    def has_group_record(self, served: ServedGroup) -> bool:
        """Whether the log has a record of the group itself, not only of its offsets."""
        machine = served.machine
        return machine.generation > 0 if isinstance(machine, Group) else machine.has_epoch_record

    def make_classic(self, served: ServedGroup) -> ErrorCode:
        """Make a group without members a classic one, in the log too; it keeps its offsets.

        Returns the append's error.
        """
        error = self._append_tombstones(self._group_keys(served))
        if not error:
            served.machine = Group(
                served.machine.group_id, self._options.max_size, self._options.initial_rebalance_delay_ms
            )
        return error

    def downgrade(self, served: ServedGroup, group: Group) -> ErrorCode:
        """Replace a consumer group by the classic `group`, in the log too. Returns the append's error."""
        records_of_it: list[KeyValue] = [(key, None) for key in self._group_keys(served)]
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        now_ms = self._clock.wall_ms()
        records_of_it.append((records.group_key(group.group_id), records.group_value(group, assignments, now_ms)))
        error = self._append_now(records_of_it)
        if not error:
            served.machine, served.state_timestamp_ms = group, now_ms
        return error

    def end(self, error: ErrorCode) -> list[tuple[Token, object]]:
        """End the shard: this broker is not the coordinator any more. Returns the answers to requests that wait."""
        answers: list[tuple[Token, object]] = []
        with self.lock:
            self.partition.end()
            for served in self.groups.values():
                served.machine.end(error)
                answers += served.machine.take_answers()
                answers += served.unsettled.fail(error)
                self._give_back_room(served)
            self.groups = {}
        return answers

    # --- writing; the caller holds the lock --------------------------------------------------------------
    def store(self, served: ServedGroup, store: Store | StoreChanges, committed: Committed) -> None:
        """Append the group's record, with what `store` says. `committed` is called once with the outcome.

        A store that is overtaken, because the group has changed since, is not appended and counts as committed.
        """
        if isinstance(store, StoreChanges):
            self._store_changes(served, store, committed)
            return
        machine = served.classic
        if machine is None:
            committed(ErrorCode.NONE, -1)  # overtaken: the group has changed to the other protocol
            return
        if isinstance(store, StoreAssignment):
            assignments: Mapping[str, bytes] = store.assignments
            if machine.generation != store.generation or machine.state is not GroupState.COMPLETING_REBALANCE:
                committed(ErrorCode.NONE, -1)  # overtaken by a newer generation, which has its own record
                return
        elif isinstance(store, StoreReplacement):
            assignments = {member.member_id: member.assignment for member in machine.members.values()}
        elif machine.members:
            committed(ErrorCode.NONE, -1)  # overtaken: a member has joined meanwhile
            return
        else:
            assignments = {}
        served.state_timestamp_ms = self._clock.wall_ms()
        LOG.info("group %r: generation %d, %d members", machine.group_id, machine.generation, len(machine.members))
        value = records.group_value(machine, assignments, served.state_timestamp_ms)
        self.partition.append([(records.group_key(machine.group_id), value)], committed)

    def _store_changes(self, served: ServedGroup, store: StoreChanges, committed: Committed) -> None:
        """Append the changes as one batch. They are applied as soon as the log has the batch, before it is durable."""
        machine = served.consumer
        assert machine is not None
        served.unsettled.count += 1
        group_id = machine.group_id
        self.partition.append([consumer_records.record(group_id, change) for change in store.changes], committed)
        machine.appended(store)

    def remove_offsets(self, served: ServedGroup, partitions: Iterable[TopicPartition]) -> ErrorCode:
        """Remove offsets, in the log too, and those of open transactions. Returns the append's error."""
        group_id, known = served.machine.group_id, served.offsets.known()
        gone = [partition for partition in partitions if partition in known]
        error = self._append_tombstones([records.offset_key(group_id, partition) for partition in gone])
        if not error:
            served.offsets.remove(gone)
        return error

    def remove_topic(self, served: ServedGroup, topic: str) -> bool:
        """Remove the offsets of a deleted topic, in the log too. Returns whether there were any."""
        group_id = served.machine.group_id
        gone = sorted(partition for partition in served.offsets.known() if partition.topic == topic)
        served.offsets.remove(gone)
        self._append_tombstones([records.offset_key(group_id, partition) for partition in gone])
        return bool(gone)

    def remove_if_nothing_left(self, served: ServedGroup) -> None:
        """Remove the group if it has neither members nor offsets."""
        if self.is_replaceable(served) and not (served.offsets.committed or served.offsets.is_busy):
            self.remove_group(served)

    def remove_if_never_used(self, served: ServedGroup) -> None:
        """Remove the group if it has no record, members or offsets: a request has only named it."""
        if not self.has_group_record(served):
            self.remove_if_nothing_left(served)

    def remove_group(self, served: ServedGroup) -> ErrorCode:
        """Remove a group that has no members, with all its offsets, in the log too. Returns the append's error."""
        machine = served.machine
        keys = [records.offset_key(machine.group_id, partition) for partition in sorted(served.offsets.known())]
        keys += self._group_keys(served)
        error = self._append_tombstones(keys)
        if not error:
            machine.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            del self.groups[machine.group_id]
            self._give_back_room(served)
            if served.alarm is not None:
                served.alarm.cancel()
        return error

    def _give_back_room(self, served: ServedGroup) -> None:
        if served.made_by is not None:
            self._room.gone(served.made_by)

    def _group_keys(self, served: ServedGroup) -> list[bytes]:
        """Return the keys of those records about the group itself, not its offsets, that the log may have."""
        if not self.has_group_record(served):
            return []
        machine = served.machine
        if isinstance(machine, Group):
            return [records.group_key(machine.group_id)]
        return [consumer_records.record(machine.group_id, change)[0] for change in machine.tombstones()]

    def _append_tombstones(self, keys: list[bytes]) -> ErrorCode:
        """Append tombstones. Returns the error of the first batch that was refused at once.

        Later outcomes are not waited for.
        """
        for first in range(0, len(keys), TOMBSTONES_PER_BATCH):
            error = self._append_now([(key, None) for key in keys[first : first + TOMBSTONES_PER_BATCH]])
            if error:
                return error
        return ErrorCode.NONE

    def _append_now(self, records_of_it: list[KeyValue]) -> ErrorCode:
        """Append a batch. Returns its error if it is refused at once; a later outcome is not waited for."""
        refused = [ErrorCode.NONE]

        def committed(error: ErrorCode, _: int) -> None:
            refused[0] = error

        self.partition.append(records_of_it, committed)
        return refused[0]

    # --- commits and transactions; the caller holds the lock ---------------------------------------------
    def begin_commit(
        self, served: ServedGroup, offsets: Mapping[TopicPartition, CommittedOffset], producer: Producer
    ) -> StagedOffsets:
        """Note that offsets are being appended; with a producer they belong to its transaction."""
        if producer is NO_PRODUCER:
            return served.offsets.begin(offsets)
        self._in_transaction.setdefault(producer.producer_id, set()).add(served.machine.group_id)
        return served.offsets.begin(offsets, producer.producer_id)

    def end_commit(self, served: ServedGroup, staged: StagedOffsets, error: ErrorCode, record_offset: int) -> None:
        """Note that staged offsets are in the log, in the batch at `record_offset`; with `error`, that they are not."""
        if error:
            served.offsets.fail(staged)
        else:
            served.offsets.finish(staged, record_offset)
        if staged.producer_id is not None:
            self._forget_ended(staged.producer_id, served.machine.group_id)

    def end_transaction(self, producer_id: int, commit: bool, marker_offset: int) -> None:
        """Note that the marker at `marker_offset` ends the producer's transaction. A second call changes nothing."""
        if self.partition.phase is Phase.LOADING:
            self._ended_while_loading.append((producer_id, commit, marker_offset))
            return
        for group_id in tuple(self._in_transaction.get(producer_id, ())):
            served = self.groups.get(group_id)
            if served is not None:
                served.offsets.end_transaction(producer_id, commit, marker_offset)
            self._forget_ended(producer_id, group_id)

    def _forget_ended(self, producer_id: int, group_id: str) -> None:
        served, group_ids = self.groups.get(group_id), self._in_transaction.get(producer_id)
        if group_ids is None or (served is not None and served.offsets.has_transaction(producer_id)):
            return
        group_ids.discard(group_id)
        if not group_ids:
            del self._in_transaction[producer_id]

    # --- expiry ------------------------------------------------------------------------------------------
    def expire(self) -> int:
        """Remove expired offsets, and groups that have neither members nor offsets then (KIP-211).

        Returns how many offsets were removed. The lock is taken for one group at a time, so that others wait only
        briefly. The caller does not hold it.
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
        if isinstance(machine, MixedGroup):
            return served.offsets.expired(now_ms, retention_ms, None, machine.is_subscribed)
        if machine.protocol_type is None:
            return served.offsets.expired(now_ms, retention_ms, None)
        if machine.state is GroupState.EMPTY:
            since = served.state_timestamp_ms
            return served.offsets.expired(now_ms, retention_ms, None if since == NO_TIMESTAMP else since)
        if machine.state is GroupState.STABLE and (topics := subscribed_topics(machine)) is not None:
            return served.offsets.expired(now_ms, retention_ms, None, topics.__contains__)
        return []
