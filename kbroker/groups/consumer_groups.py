"""The coordinator's part for groups of the consumer protocol (KIP-848): heartbeats, descriptions, checks of commits.

`rules/consumer_group.py` decides what a group does. Groups of both protocols are in the same shards, under the same
locks, and are written to the log in the same way (`Home.settle`).
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.errors import BadInput, ErrorCode, KbrokerError, ProtocolError, client_text
from kbroker.groups.home import Answers, Home
from kbroker.groups.migration import assignment_bytes, can_downgrade, downgrade, upgrade, wanted_of
from kbroker.groups.options import GroupOptions
from kbroker.groups.shard import GroupShard, ServedGroup
from kbroker.model import TopicPartition
from kbroker.rules.consumer_group_member import (
    JOINING_EPOCH,
    NOTHING,
    Assignment,
    Beat,
    BeatAnswer,
    ClassicGroupGone,
    ConsumerMember,
    ResolvedRegex,
    TopicView,
)
from kbroker.rules.group import Group
from kbroker.rules.group_member import JoinAnswer, Joining, SyncAnswer, Token
from kbroker.rules.group_state import NEVER
from kbroker.rules.mixed_group import MixedGroup
from kbroker.rules.topic_regex import TopicRegex
from kbroker.state_log.loader import Loader

LOG = logging.getLogger(__name__)

MAX_PATTERN_CPU_S = 5.0
"""The CPU time that matching one pattern against the names of all topics may take."""

NOT_SERVED = "Consumer groups of KIP-848 are not served while an Apache Kafka is a member of the cluster."
"""What a member of such a group is told with UNSUPPORTED_VERSION."""

BeatReply = Callable[[BeatAnswer], None]


class NamedTopics(TopicView, Protocol):
    """The cluster's topics, with all their names."""

    def names(self) -> Iterable[str]:
        """The names of all topics, internal ones too."""
        ...


class NoTopics:
    """A cluster without topics."""

    def find(self, name: str) -> tuple[bytes, int] | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return None

    def names(self) -> Iterable[str]:
        return ()


class DescribedConsumerGroup(NamedTuple):
    """A group as ConsumerGroupDescribe shows it."""

    error: ErrorCode
    message: str | None = None
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[tuple[ConsumerMember, Assignment], ...] = ()
    """Each member with its target assignment."""
    topics: NamedTopics = NoTopics()


class ConsumerGroups:
    """Serves the groups of the consumer protocol."""

    def __init__(
        self,
        home: Home,
        options: GroupOptions,
        clock: Clock,
        topics: Callable[[], NamedTopics],
        is_served: Callable[[], bool],
    ):
        """`is_served`: whether the protocol is served in this cluster now."""
        self.is_served = is_served
        self._home = home
        self._options = options
        self._clock = clock
        self._topics = topics
        self._resolver = Loader("group-patterns")

    def stop(self) -> None:
        """Stop matching the patterns of groups with topics."""
        self._resolver.stop()

    def update_limits(self, group_id: str) -> None:
        """Read the group's configs again; they hold from the members' next heartbeats on."""
        with self._home.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return  # loading the group takes its configs
            served = shard.groups.get(group_id)
            if served is not None and (machine := served.consumer) is not None:
                machine.limits = self._options.limits_of(group_id)

    # --- heartbeats --------------------------------------------------------------------------------------
    def heartbeat(self, group_id: str, beat: Beat, answer: BeatReply) -> None:
        """Handle a ConsumerGroupHeartbeat.

        It is answered once its changes are in the log, or at once if there are none.
        """
        if not beat.member_id:
            beat = beat._replace(member_id=_new_member_id())
        resolve: Callable[[], None] | None = None
        with self._home.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                answer(BeatAnswer(shard))
                return
            try:
                if not self.is_served():  # asked under the lock: after `expel` nobody joins
                    raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, NOT_SERVED)
                served, machine = self._group_of(shard, group_id, beat)
                answers = self._beat(shard, served, machine, beat, answer)
                patterns = machine.take_patterns()
                if patterns is not None:
                    resolve = functools.partial(self._resolve, shard, served, patterns)
            except ProtocolError as error:
                answers = [(answer, BeatAnswer(error.code, error.message))]
        self._home.deliver(answers)
        if resolve is not None:
            self._resolver.submit(resolve)

    def _beat(
        self, shard: GroupShard, served: ServedGroup, machine: MixedGroup, beat: Beat, answer: BeatReply
    ) -> Answers:
        """Let `machine`, which `served` may not have yet, decide. Returns the answers that are due."""
        machine.beat(answer, beat, self._topics(), self._home.now_ms(), self._clock.wall_ms())
        before = served.machine
        if machine.is_new:
            shard.adopt(served, machine)
        answers = self._home.settle(shard, served)
        if machine.is_new:
            shard.forsake(served, before)
        elif isinstance(before, Group):
            before.end(ErrorCode.REBALANCE_IN_PROGRESS)
            answers += before.take_answers()
        return answers + self.maybe_downgrade(shard, served)

    def _group_of(self, shard: GroupShard, group_id: str, beat: Beat) -> tuple[ServedGroup, MixedGroup]:
        """The group, or a new one that is not in the shard yet, for a member that joins.

        A classic group may be replaced or upgraded by a member that joins. Raises ProtocolError: GROUP_ID_NOT_FOUND if
        there is no such consumer group, GROUP_MAX_SIZE_REACHED if there is no room for another group.
        """
        served = shard.groups.get(group_id)
        if served is not None and (machine := served.consumer) is not None:
            return served, machine
        joins = beat.member_epoch == JOINING_EPOCH
        if served is None and joins:
            if not self._home.has_room(beat.client_host):
                raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED, "There is no room for another group.")
            machine = MixedGroup(group_id, self._options.limits_of(group_id))
            return ServedGroup(machine, made_by=beat.client_host), machine
        if served is None:
            what = "Consumer group" if beat.member_epoch > JOINING_EPOCH else "Group"
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"{what} {group_id} not found.")
        if joins and shard.is_replaceable(served):
            gone = [ClassicGroupGone()] if shard.has_group_record(served) else []
            return served, MixedGroup(group_id, self._options.limits_of(group_id), gone)
        if joins and served.classic is not None:
            options = self._options
            changes = upgrade(served.classic, options.migration_policy, options.consumer.max_size, self._topics())
            machine = MixedGroup(group_id, options.limits_of(group_id), changes)
            machine.start(self._home.now_ms())
            return served, machine
        raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    # --- the protocol is not served any more; the caller holds the shard's lock ---------------------------
    def expel(self, shard: GroupShard, served: ServedGroup) -> tuple[list[str], Answers]:
        """Remove a group's members of the consumer protocol, so that classic ones may have the group at once.

        Returns their ids, and the answers that are due. The group keeps its offsets.
        """
        machine = served.consumer
        gone = [] if machine is None else machine.expel()
        return gone, self._home.settle(shard, served) + self.maybe_downgrade(shard, served) if gone else []

    # --- members of the classic protocol; the caller holds the shard's lock ------------------------------
    def join(
        self, shard: GroupShard, served: ServedGroup, machine: MixedGroup, joining: Joining, token: Token, unique: str
    ) -> Answers:
        """Handle the JoinGroup of a classic member to a consumer group. Returns the answers that are due."""
        topics = self._topics()
        try:
            metadata = next(iter(joining.protocols.values()), None)
            if metadata is None:
                raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            wanted = wanted_of(metadata, topics)
            target_epoch = machine.target_epoch
            machine.join(token, joining, wanted, unique, topics, self._home.now_ms(), self._clock.wall_ms())
        except ProtocolError as error:
            return [(token, JoinAnswer(error.code, joining.member_id))]
        except BadInput:
            return [(token, JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, joining.member_id))]
        answers = self._home.settle(shard, served)
        # If a static member came back with nothing changed, all members keep their assignments: no rebalance.
        return answers + self.maybe_downgrade(shard, served, rebalance=target_epoch < machine.epoch)

    def sync(
        self,
        machine: MixedGroup,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> SyncAnswer:
        """Handle the SyncGroup of a classic member to a consumer group."""
        who, now_ms = (generation, member_id, instance_id), self._home.now_ms()
        try:
            member = machine.sync(*who, protocol_type, protocol_name, now_ms)
        except ProtocolError as error:
            return SyncAnswer(error.code)
        classic = member.subscription.classic
        assert classic is not None
        name, metadata = classic.protocols[0]
        assignment = assignment_bytes(member.current.assigned, metadata, self._topics())
        return SyncAnswer(ErrorCode.NONE, machine.protocol_type, name, assignment)

    def maybe_downgrade(self, shard: GroupShard, served: ServedGroup, rebalance: bool = True) -> Answers:
        """Make a consumer group a classic one if all its members use the classic protocol and the policy allows it.

        `rebalance`: whether the members have to join again then. Returns the answers that are due.
        """
        machine, options = served.consumer, self._options
        if machine is None or not can_downgrade(machine, options.migration_policy, options.max_size):
            return []
        group = downgrade(machine, self._topics(), options.max_size, options.initial_rebalance_delay_ms)
        error = shard.downgrade(served, group)
        if error:
            LOG.warning("group %r stays a consumer group: %s", group.group_id, error.name)
            return []
        LOG.info("group %r is a classic group now", group.group_id)
        served.armed_ms = NEVER
        group.start(self._home.now_ms())
        if rebalance:
            group.rebalance(self._home.now_ms())
        return self._home.settle(shard, served)

    # --- patterns ----------------------------------------------------------------------------------------
    def _resolve(self, shard: GroupShard, served: ServedGroup, patterns: frozenset[str]) -> None:
        """Find the topics that a group's patterns match, and tell the group.

        This runs on the resolver's thread and without a lock.
        """
        topics, wall_ms = self._topics(), self._clock.wall_ms()
        found: dict[str, ResolvedRegex] | None = {}
        try:
            names = sorted(topics.names())
            for pattern in patterns:
                found[pattern] = ResolvedRegex(_matching(pattern, names), wall_ms, wall_ms)  # type: ignore[index]
        except Exception:
            LOG.exception("patterns of group %r cannot be resolved", served.machine.group_id)
            found = None
        with shard.lock:
            machine = served.consumer
            if machine is None:
                return
            machine.resolved(found, topics)
            answers = self._home.settle(shard, served)
        self._home.deliver(answers)

    # --- offsets -----------------------------------------------------------------------------------------
    def check_commit(
        self,
        machine: MixedGroup,
        epoch: int,
        member_id: str,
        instance_id: str | None,
        partitions: Iterable[TopicPartition],
        version: int = 9,
        transactional: bool = False,
    ) -> ErrorCode:
        """NONE if the member may commit offsets of all `partitions`, else why not. The caller holds the shard's lock.

        `epoch` is the member epoch or generation of the request, `version` the version of its OffsetCommit.
        """
        error = machine.check_commit(epoch, member_id, instance_id, transactional, version)
        member = machine.members.get(member_id)
        if not error and member is not None and epoch != member.current.member_epoch:
            topics = self._topics()
            for name, partition_id in partitions:
                found = topics.find(name)
                error = machine.check_partition(epoch, member_id, found[0] if found else b"", partition_id)
                if error:
                    break
        if transactional and error is ErrorCode.STALE_MEMBER_EPOCH:
            return ErrorCode.ILLEGAL_GENERATION  # producers do not know STALE_MEMBER_EPOCH
        return error

    # --- administration ----------------------------------------------------------------------------------
    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Describe one group as ConsumerGroupDescribe answers it."""
        with self._home.hold(group_id) as shard:
            if isinstance(shard, ErrorCode):
                return DescribedConsumerGroup(shard)
            served = shard.groups.get(group_id)
            machine = None if served is None else served.consumer
            if machine is None:
                why = "not found" if served is None else "is not a consumer group"
                return DescribedConsumerGroup(ErrorCode.GROUP_ID_NOT_FOUND, client_text(f"Group {group_id} {why}."))
            members = tuple((m, machine.targets.get(m.member_id, NOTHING)) for m in machine.members.values())
            epochs = (machine.epoch, machine.target_epoch)
            return DescribedConsumerGroup(
                ErrorCode.NONE, None, machine.state, *epochs, machine.assignor, members, self._topics()
            )


def _matching(pattern: str, names: list[str]) -> frozenset[str]:
    """The topics that the pattern matches; empty, with a warning, if it is not valid here or takes too long to match.

    A pattern in the log may be invalid here if a newer broker has accepted it.
    """
    try:
        regex = TopicRegex(pattern)
    except KbrokerError as error:
        LOG.warning("the pattern %r is left alone: %s", pattern, error)
        return frozenset()
    matched = set()
    end_s = time.thread_time() + MAX_PATTERN_CPU_S
    for name in names:
        if regex.matches(name):
            matched.add(name)
        if time.thread_time() > end_s:
            LOG.warning("the pattern %r takes too long to match: no topic counts as matched", pattern)
            return frozenset()
    return frozenset(matched)


def _new_member_id() -> str:
    return str(uuid.uuid4())
