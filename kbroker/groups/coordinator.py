"""The group coordinator: finds a group, holds its lock, lets its state machine decide, carries out what it asks for.

A request that may wait comes with a callable. It is called once with the answer, on the thread on which the answer
becomes due: that of another member's request, that of the log, or that of `Deadlines`.

Locks. A shard's `lock` is held over a call of a state machine and the appends that it asks for; answers are given after
its release. No two shards' locks are held at once. Order: shard, then the locks of the log and of connections.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.groups.answers import DescribedGroup, ListedGroup, described
from kbroker.groups.consumer_groups import ConsumerGroups, NamedTopics, NoTopics
from kbroker.groups.given_ids import GivenId, GivenIds, id_given_by
from kbroker.groups.home import Answers, Home
from kbroker.groups.offsets import Offsets
from kbroker.groups.options import GroupOptions
from kbroker.groups.records import fits
from kbroker.groups.shard import GroupShard, ServedGroup, beat_error, store_error
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.room import Room
from kbroker.rules.consumer_group_member import StoreChanges
from kbroker.rules.group import Group
from kbroker.rules.group_member import JoinAnswer, Joining, Leaving, Store, SyncAnswer
from kbroker.rules.group_state import NEVER, GroupState
from kbroker.rules.mixed_group import MixedGroup
from kbroker.rules.topic_names import listed
from kbroker.state_log.deadlines import Deadlines
from kbroker.state_log.replica import Replica
from kbroker.state_log.shards import Refusal, Shards
from kbroker.state_log.state_partition import Phase, StatePartition
from kbroker.state_log.topic import StateTopic

LOG = logging.getLogger(__name__)

CLASSIC, CONSUMER = "classic", "consumer"

MOST_LEAVING_LOCKED = 1000
"""Most members of one request that leave while the shard's lock is held; then other groups get a turn."""

MOST_PROTOCOLS = 100
"""Most protocols that a member may name: the group keeps them for as long as the member is in it."""

MEMBERS_LOOKED_AT_PER_MS = 100
"""Bounds the work on deadlines: after each look at its members a group rests for 1 ms per this many members."""

MOST_NAMED = 20
"""Most groups that the log line names when groups end because a Kafka has joined the cluster."""

COMMIT_RETRY_MS = 100
"""The time after which a partition is looked at again whose followers lag behind."""

_LONGEST_UNIQUE = str(uuid.UUID(int=0))


class GroupCoordinator:
    """Serves the groups whose records are in the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(
        self,
        topic: StateTopic,
        options: GroupOptions,
        clock: Clock,
        deadlines: Deadlines | None = None,
        make_unique: Callable[[], str] = lambda: str(uuid.uuid4()),
        topics: Callable[[], NamedTopics] = NoTopics,
        expire_others: Callable[[], object] = lambda: None,
        are_consumer_groups_served: Callable[[], bool] = lambda: True,
    ):
        """`expire_others` expires offsets that are kept elsewhere; it is called as often as `offsets.expire`.

        `are_consumer_groups_served`: not while an Apache Kafka is a member of the cluster; `kind_changed` tells when it
        is to be asked again.
        """
        self.options = options
        self._clock = clock
        self._deadlines = deadlines or Deadlines("group-deadlines", clock)
        self._make_unique = make_unique
        self._expire_others = expire_others
        self._given_ids = GivenIds()
        self.shards = Shards("group", topic, make=self._make_shard, load=self._load, end=_end)
        """The groups, by partition of `__consumer_offsets`."""
        self._room = Room("kbroker.groups.max", options.most_groups, self._count_groups, clock)
        home = Home(self._hold, self._settle, self._arm, _deliver, self._deadlines.now_ms, self._room.has_room)
        self.consumers = ConsumerGroups(home, options, clock, topics, are_consumer_groups_served)
        """Groups of the consumer protocol (KIP-848)."""
        self.offsets = Offsets(self.shards, home, self.consumers, options)
        """The offsets of groups of both protocols."""

    # --- life --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serve from now on. Partitions are loaded in the background."""
        self.shards.start()
        self._deadlines.every(self.options.offsets_retention_check_interval_ms, self.offsets.expire)
        self._deadlines.every(self.options.offsets_retention_check_interval_ms, self._expire_others)

    def stop(self) -> None:
        """Stop serving. Requests that wait are answered with COORDINATOR_NOT_AVAILABLE."""
        self.shards.stop()
        self.consumers.stop()
        self._deadlines.stop()

    def forget_topics(self, names: Collection[str]) -> None:
        """Remove the offsets of all groups for these topics, which are deleted; soon, on the thread of deadlines."""
        self._deadlines.soon(functools.partial(self.offsets.forget_topics, names))

    def kind_changed(self) -> None:
        """Remove the members of consumer groups if these are not served any more; soon, on the thread of deadlines."""
        self._deadlines.soon(self._maybe_expel)

    def _maybe_expel(self) -> None:
        if self.consumers.is_served():
            return
        for shard in self.shards.active():
            with shard.lock:
                groups = list(shard.groups.values())
            self._expel(shard, groups)

    def _expel(self, shard: GroupShard, groups: list[ServedGroup]) -> None:
        """Remove the members of the consumer protocol of these groups. The caller holds no lock."""
        ended = []
        for served in groups:
            with shard.lock:
                gone, answers = self.consumers.expel(shard, served)
            _deliver(answers)
            if gone:
                ended.append(repr(served.machine.group_id))
        if ended:
            LOG.warning(
                "groups that use KIP-848 end, since a Kafka is a member of the cluster: %s. Their offsets stay, and "
                "consumers with group.protocol=classic go on from them",
                listed(ended, MOST_NAMED),
            )

    def _make_shard(self, partition_id: int, replica: Replica) -> GroupShard:
        name = TopicPartition(GROUP_OFFSETS_TOPIC, partition_id)
        partition = StatePartition(name, replica, self._clock, self.options.offsets_topic_codec)
        return GroupShard(partition, self.options, self._clock, self._room)

    def _load(self, shard: GroupShard) -> None:
        loaded = shard.load(self._deadlines.now_ms())
        for served in loaded:
            with shard.lock:
                answers = self._settle(shard, served)
            _deliver(answers)
        if not self.consumers.is_served():
            self._expel(shard, loaded)
        if unsettled := [served for served in loaded if served.unsettled.count]:
            self._await_commit(shard, unsettled)

    def _hold(self, group_id: str) -> GroupShard | Refusal:
        """For `with`: the group's shard with its lock held, or why the group is not served here now."""
        return self.shards.hold(group_id) if group_id else Refusal(ErrorCode.INVALID_GROUP_ID)

    def _count_groups(self) -> int:
        return sum(len(shard.groups) for shard in self.shards.active())

    # --- what a state machine asks for -------------------------------------------------------------------
    def _settle(self, shard: GroupShard, served: ServedGroup) -> Answers:
        """Append what the group's state machine asks to store, and schedule its next deadline.

        The caller holds the lock. Returns the answers that the caller delivers after it has released the shard's lock.
        """
        machine = served.machine
        shard.settling = True
        try:
            while stores := machine.take_stores():
                for store in stores:
                    shard.store(served, store, functools.partial(self._stored, shard, served, machine, store))
        finally:
            shard.settling = False
        self._arm(shard, served)
        return served.unsettled.due(list(machine.take_answers()))

    def _stored(
        self,
        shard: GroupShard,
        served: ServedGroup,
        machine: Group | MixedGroup,
        store: Store | StoreChanges,
        error: ErrorCode,
        _: int,
    ) -> None:
        is_late = bool(error) and isinstance(store, StoreChanges) and store.is_done  # applied: the log has it
        if error not in (ErrorCode.NONE, served.reported):
            LOG.warning("group %r could not be stored: %s", served.machine.group_id, error.name)
        served.reported = error
        if error:
            error = beat_error(error) if isinstance(store, StoreChanges) else store_error(error)
        with shard.lock:
            if isinstance(store, StoreChanges) and not is_late:
                served.unsettled.count -= 1
            machine.stored(cast("Any", store), error, self._deadlines.now_ms())
            if shard.settling:
                return  # committed before the append returned: `_settle` goes on
            answers = self._settle(shard, served)
        _deliver(answers)
        if is_late:
            self._await_commit(shard, [served])

    def _await_commit(self, shard: GroupShard, groups: list[ServedGroup]) -> None:
        """Wait until what `groups` have applied is committed, unless the shard has ended. The caller holds no lock."""

        def committed(error: ErrorCode, _: int) -> None:
            answers: Answers = []
            with shard.lock:
                for served in groups:
                    if error:
                        answers += served.unsettled.fail(beat_error(error))
                    else:
                        served.unsettled.count -= 1
                        answers += served.unsettled.due([])
            _deliver(answers)
            if error:
                again = functools.partial(self._await_commit, shard, groups)
                self._deadlines.schedule(self._deadlines.now_ms() + COMMIT_RETRY_MS, again)

        if shard.partition.phase is Phase.ACTIVE:
            shard.partition.when_committed(committed)

    def _arm(self, shard: GroupShard, served: ServedGroup) -> None:
        due_ms = max(served.machine.wake_ms, served.rests_until_ms)
        if due_ms < served.armed_ms:
            if served.alarm is not None:
                served.alarm.cancel()
            served.armed_ms = due_ms
            served.alarm = self._deadlines.schedule(due_ms, functools.partial(self._advance, shard, served, due_ms))

    def _advance(self, shard: GroupShard, served: ServedGroup, due_ms: int) -> None:
        with shard.lock:
            if served.armed_ms != due_ms:
                return  # replaced by an earlier call, which has scheduled the next one
            served.armed_ms = NEVER
            now_ms, machine = self._deadlines.now_ms(), served.machine
            if machine.wake_ms <= now_ms:
                before = list(machine.members)
                machine.advance(now_ms)
                gone = [member_id for member_id in before if member_id not in machine.members]
                if gone:
                    LOG.info("group %r loses members that were not heard of in time: %s", machine.group_id, gone)
                served.rests_until_ms = now_ms + len(before) // MEMBERS_LOOKED_AT_PER_MS
            answers = self._settle(shard, served) + self.consumers.maybe_downgrade(shard, served)
            shard.remove_if_never_used(served)
        _deliver(answers)

    # --- members -----------------------------------------------------------------------------------------
    def join(self, group_id: str, joining: Joining, answer: Callable[[JoinAnswer], None]) -> None:
        """Handle a JoinGroup. It is answered once the generation begins, or at once with an error."""
        with self._hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                answer(JoinAnswer(shard, joining.member_id))
                return
            answers, given = self._join(shard, group_id, joining, answer)
        _deliver(answers)
        if given is not None:
            oldest = self._given_ids.add(joining.client_host, given)
            if oldest is not None:
                self._forget_given(*oldest)

    def _join(
        self, shard: GroupShard, group_id: str, joining: Joining, answer: Callable[[JoinAnswer], None]
    ) -> tuple[Answers, GivenId | None]:
        """Returns the answers that are due, and the id that a new member was given. The caller holds the lock."""
        served = shard.groups.get(group_id)
        refused = self._join_refusal(shard, served, joining)
        if refused:
            return [(answer, JoinAnswer(refused, joining.member_id))], None
        if served is not None and (mixed := served.consumer) is not None:
            return self.consumers.join(shard, served, mixed, joining, answer, self._make_unique()), None
        served = served or shard.create(group_id, joining.client_host)
        unique = "" if joining.member_id else self._make_unique()
        cast("Group", served.machine).join(answer, joining, unique, self._deadlines.now_ms())
        answers = self._settle(shard, served)
        given = next(filter(None, (id_given_by(each) for _, each in answers)), None)
        shard.remove_if_never_used(served)
        return answers, None if given is None else GivenId(shard, group_id, given)

    def _forget_given(self, shard: GroupShard, group_id: str, member_id: str) -> None:
        answers: Answers = []
        with shard.lock:
            served = shard.groups.get(group_id)
            if served is not None and served.classic is not None:
                served.classic.forget_pending(member_id, self._deadlines.now_ms())
                answers = self._settle(shard, served)
                shard.remove_if_never_used(served)
        _deliver(answers)

    def _join_refusal(self, shard: GroupShard, served: ServedGroup | None, joining: Joining) -> ErrorCode:
        """Why the group refuses this JoinGroup; NONE if it does not.

        Makes a consumer group without members a classic one, since the joining member uses the classic protocol.
        """
        if not self.options.min_session_timeout_ms <= joining.session_timeout_ms <= self.options.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not _is_keepable(joining, self.options.member_metadata_max_bytes):
            return ErrorCode.INVALID_REQUEST
        if served is None and joining.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if served is None:
            return ErrorCode.NONE if self._room.has_room(joining.client_host) else ErrorCode.GROUP_MAX_SIZE_REACHED
        if served.classic is None and shard.is_replaceable(served):
            return store_error(shard.make_classic(served))
        return ErrorCode.NONE

    def sync(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
        answer: Callable[[SyncAnswer], None],
    ) -> None:
        """Handle a SyncGroup. It is answered once the leader's assignment is stored, or at once with an error."""
        answers: Answers = []
        with self._hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                # The rebalance was only in the old coordinator's memory, so the member has to join again. Old clients
                # do not expect COORDINATOR_LOAD_IN_PROGRESS here.
                loading = shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                answer(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS if loading else shard))
                return
            served = shard.groups.get(group_id)
            classic = None if served is None else served.classic
            if served is not None and (mixed := served.consumer) is not None:
                who = (generation, member_id, instance_id)
                answers.append((answer, self.consumers.sync(mixed, *who, protocol_type, protocol_name)))
                self._arm(shard, served)
            elif served is None or classic is None:
                answers.append((answer, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)))
            else:
                named, now_ms = (protocol_type, protocol_name), self._deadlines.now_ms()
                classic.sync(answer, generation, member_id, instance_id, *named, assignments, now_ms)
                answers = self._settle(shard, served)
        _deliver(answers)

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Handle the Heartbeat of a classic member; REBALANCE_IN_PROGRESS tells it to join again."""
        with self._hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                # While the group is being loaded the member is told to go on: nothing better is known.
                return ErrorCode.NONE if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else shard
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            error = served.machine.heartbeat(generation, member_id, instance_id, self._deadlines.now_ms())
            self._arm(shard, served)
            return error

    def leave(self, group_id: str, leaving: list[Leaving]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Handle a LeaveGroup.

        Returns the error of the whole request and, if that is NONE, the error of each member.
        """
        errors: list[ErrorCode] = []
        for first in range(0, max(len(leaving), 1), MOST_LEAVING_LOCKED):
            error, more = self._leave_some(group_id, leaving[first : first + MOST_LEAVING_LOCKED])
            if error:
                return error, []
            errors += more
        return ErrorCode.NONE, errors

    def _leave_some(self, group_id: str, leaving: list[Leaving]) -> tuple[ErrorCode, list[ErrorCode]]:
        with self._hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return shard, []
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
            errors = served.machine.leave(leaving, self._deadlines.now_ms())
            answers = self._settle(shard, served) + self.consumers.maybe_downgrade(shard, served)
        _deliver(answers)
        return ErrorCode.NONE, errors

    # --- administration ----------------------------------------------------------------------------------
    def describe(self, group_id: str) -> DescribedGroup:
        """Describe one group as DescribeGroups answers it. An unknown group is Dead, and so is a consumer group."""
        with self.shards.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return DescribedGroup(shard)
            served = shard.groups.get(group_id)
            machine = None if served is None else served.classic
            if machine is None:
                return DescribedGroup(ErrorCode.NONE, GroupState.DEAD)
            return described(machine)

    def list_groups(self, states: Iterable[str] = (), kinds: Iterable[str] = ()) -> tuple[ErrorCode, list[ListedGroup]]:
        """List the groups that are in one of `states` and of one of `kinds` (empty: all). Case does not matter.

        The error is COORDINATOR_LOAD_IN_PROGRESS if some partitions are still loading: the list lacks their groups.
        """
        if not self.shards.is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        wanted, of_kinds = {state.lower() for state in states}, {kind.lower() for kind in kinds}
        listed = []
        for shard in self.shards.active():
            with shard.lock:
                for group_id, served in shard.groups.items():
                    machine, kind = served.machine, CLASSIC if served.consumer is None else CONSUMER
                    if (not wanted or machine.state.lower() in wanted) and (not of_kinds or kind in of_kinds):
                        listed.append(ListedGroup(group_id, machine.protocol_type or "", machine.state, kind))
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.shards.is_loading else ErrorCode.NONE, listed

    def delete_group(self, group_id: str) -> ErrorCode:
        """Delete one group. Returns its error: NON_EMPTY_GROUP if it has members."""
        with self.shards.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return shard
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            if served.machine.state is not GroupState.EMPTY:
                return ErrorCode.NON_EMPTY_GROUP
            return store_error(shard.remove_group(served))

    def group_counts(self) -> dict[str, int]:
        """Return how many groups are in each state, for metrics."""
        counts = dict.fromkeys((str(state) for state in GroupState), 0)
        for shard in self.shards.active():
            with shard.lock:
                for served in shard.groups.values():
                    counts[served.machine.state] += 1
        return counts


def _end(shard: GroupShard, error: ErrorCode) -> None:
    _deliver(shard.end(error))


def _deliver(answers: Answers) -> None:
    """Call the callables of requests with the answers that are due.

    An exception of a callable is logged. The caller holds no lock.
    """
    for answer, what in answers:
        try:
            cast("Callable[[object], None]", answer)(what)
        except Exception:
            LOG.exception("an answer could not be given")


def _is_keepable(joining: Joining, most_metadata: int) -> bool:
    """Whether the member has at most MOST_PROTOCOLS and `most_metadata` bytes, and an id that fits into a record."""
    name, protocols = joining.instance_id or joining.client_id, joining.protocols
    return (
        len(protocols) <= MOST_PROTOCOLS
        and sum(map(len, protocols.values())) <= most_metadata
        and fits(f"{name}-{_LONGEST_UNIQUE}")
    )
