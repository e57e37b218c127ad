"""The state of one group of the consumer protocol (KIP-848), made by applying the changes that are in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.rules import range_assignor, uniform_assignor
from kbroker.rules.consumer_group_member import (
    NO_PARTITIONS,
    NOTHING,
    Assignment,
    Change,
    ConsumerMember,
    Current,
    CurrentChange,
    EpochChange,
    PartitionMetadataChange,
    RegexChange,
    ResolvedRegex,
    Subscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
    TopicView,
)
from kbroker.rules.group_state import GroupState

FIRST_EPOCH = 1
MEMBER_EPOCHS_FROM = 9
"""The first version of OffsetCommit that has a member epoch."""


class ConsumerLimits(NamedTuple):
    """Limits and times of consumer groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = (uniform_assignor.NAME, range_assignor.NAME)
    """The assignors that members may ask for. The first is the default."""
    assignment_interval_ms: int = 0
    """The least time between two new target assignments."""
    regex_refresh_interval_ms: int = 600_000


class ConsumerGroupState:
    """Members, epochs and assignments of a group. Only `apply` changes them. Not thread-safe."""

    def __init__(self, group_id: str, limits: ConsumerLimits):
        self.group_id = group_id
        self.limits = limits
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False
        self.has_epoch_record = False
        """Whether the log has the record of the group's epoch."""
        self.is_new = True
        """Whether the log has no record of this group yet."""
        self.is_dead = False
        self.owners: dict[bytes, dict[int, str]] = {}
        """The member that has a partition, or still has to give it up: member id by topic id and partition."""
        self.subscriptions_wanted: dict[tuple[tuple[str, ...], str], int] = {}
        """How many members have a subscription, by its (topic names, pattern)."""
        self.classic_count = 0
        """How many members use the classic protocol."""

    # --- questions ---------------------------------------------------------------------------------------
    @property
    def state(self) -> GroupState:
        """The group's state, as Kafka names it."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(member.current.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; the broker's default if no member asks for one."""
        return self.assignor_of(self.members.values())

    def assignor_of(self, members: Iterable[ConsumerMember]) -> str:
        votes: dict[str, int] = {}
        for member in members:
            name = member.subscription.assignor
            if name is not None and name in self.limits.assignors:
                votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else self.limits.assignors[0]

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_owned(self, topic_id: bytes, partition_id: int) -> bool:
        return partition_id in self.owners.get(topic_id, NO_PARTITIONS)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member is subscribed to the topic, by name or by pattern."""
        return topic in subscribed_topics(self.subscriptions_wanted, self.regexes)

    def pattern_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (_, regex), count in self.subscriptions_wanted.items():
            if regex:
                counts[regex] = counts.get(regex, 0) + count
        return counts

    def subscriptions_with(self, updated: ConsumerMember) -> Iterable[tuple[tuple[str, ...], str]]:
        replaced = self.members.get(updated.member_id)
        if replaced is None and updated.subscription.instance_id is not None:
            replaced = self.static_member(updated.subscription.instance_id)
        counts = self.subscriptions_wanted
        if replaced is not None and counts[(key := wanted_by(replaced.subscription))] == 1:
            counts = {one: count for one, count in counts.items() if one != key}
        return {**counts, wanted_by(updated.subscription): 1}

    def topic_ids(
        self, subscription: Subscription, topics: TopicView, counts: dict[bytes, int] | None = None
    ) -> frozenset[bytes]:
        """The ids of the subscribed topics that exist. Adds their numbers of partitions to `counts`, by id."""
        names: Iterable[str] = subscription.topics
        if subscription.regex:
            names = subscribed_topics([wanted_by(subscription)], self.regexes)
        found = dict(topic for topic in map(topics.find, names) if topic is not None)
        if counts is not None:
            counts.update(found)
        return frozenset(found)

    def last_target(self, member: ConsumerMember) -> Assignment:
        """The member's target assignment until now. A member that replaces a static one has the target of that one."""
        target = self.targets.get(member.member_id)
        if target is None:
            previous_id = self.static_members.get(member.subscription.instance_id or "")
            target = None if previous_id is None else self.targets.get(previous_id)
        return NOTHING if target is None else target

    # --- offsets -----------------------------------------------------------------------------------------
    def check_commit(
        self, epoch: int, member_id: str, instance_id: str | None, transactional: bool = False, version: int = 9
    ) -> ErrorCode:
        """NONE if the member may commit offsets now, else why not.

        With an epoch older than the member's, `check_partition` then decides for each partition.
        """
        if self.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members:
            return ErrorCode.NONE  # from an administrator, or a consumer that assigns partitions to itself
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and member.subscription.classic is None and version < MEMBER_EPOCHS_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        return self._epoch_error(member) if epoch > member.current.member_epoch else ErrorCode.NONE

    def check_partition(self, epoch: int, member_id: str, topic_id: bytes, partition_id: int) -> ErrorCode:
        """NONE if a member that has passed `check_commit` may commit for this partition, else why not.

        A member with an old epoch may commit for partitions that it has had since that epoch or before (KIP-1251).
        """
        member = self.members.get(member_id)
        if member is None or epoch == member.current.member_epoch:
            return ErrorCode.NONE
        assigned_in = member.current.holds(topic_id, partition_id)
        return self._epoch_error(member) if assigned_in is None or epoch < assigned_in else ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """NONE if the member may fetch offsets, else why not. A request without member id and epoch always may."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.current.member_epoch else self._epoch_error(member)

    @staticmethod
    def _epoch_error(member: ConsumerMember) -> ErrorCode:
        if member.subscription.classic is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.ILLEGAL_GENERATION

    # --- changes -----------------------------------------------------------------------------------------
    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes that are in the log."""
        for change in changes:
            match change:
                case SubscriptionChange():
                    self._apply_subscription(change)
                case CurrentChange():
                    self._apply_current(change)
                case TargetChange():
                    self._apply_target(change)
                case TargetEpochChange():
                    self.target_epoch = FIRST_EPOCH if change.epoch is None else change.epoch
                    self.target_timestamp_ms = change.timestamp_ms
                case EpochChange():
                    self.has_epoch_record = change.epoch is not None
                    self.epoch = FIRST_EPOCH if change.epoch is None else change.epoch
                    self.metadata_hash = change.metadata_hash
                case RegexChange(resolved=None):
                    self.regexes.pop(change.regex, None)
                case RegexChange(resolved=resolved) if resolved is not None:
                    self.regexes[change.regex] = resolved
                case PartitionMetadataChange():
                    self.has_partition_metadata = change.is_there

    def _apply_subscription(self, change: SubscriptionChange) -> None:
        member_id, subscription = change
        known = self.members.get(member_id)
        if known is not None:
            self.classic_count -= known.subscription.classic is not None
            key = wanted_by(known.subscription)
            self.subscriptions_wanted[key] -= 1
            if not self.subscriptions_wanted[key]:
                del self.subscriptions_wanted[key]
            instance_id = known.subscription.instance_id
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        if subscription is None:
            if known is not None:
                self._disown(known)
                del self.members[member_id]
            return
        self.classic_count += subscription.classic is not None
        key = wanted_by(subscription)
        self.subscriptions_wanted[key] = self.subscriptions_wanted.get(key, 0) + 1
        if subscription.instance_id is not None:
            self.static_members[subscription.instance_id] = member_id
        self.members[member_id] = (known or ConsumerMember(member_id))._replace(subscription=subscription)

    def _apply_current(self, change: CurrentChange) -> None:
        member_id, current = change
        member = self.members.get(member_id)
        if member is None:
            return
        was, current = member.current, Current() if current is None else current
        if current.assigned != was.assigned or current.revoking != was.revoking:
            self._disown(member)
            for assignment in (current.assigned, current.revoking):
                for topic_id, partitions in assignment.items():
                    self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))
        self.members[member_id] = member._replace(current=current)

    def _disown(self, member: ConsumerMember) -> None:
        for assignment in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in assignment.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _apply_target(self, change: TargetChange) -> None:
        if change.assignment is None:
            self.targets.pop(change.member_id, None)
        else:
            self.targets[change.member_id] = change.assignment

    def restore(self, changes: Iterable[Change]) -> None:
        """Make the group from the changes in its newest records, in any order."""
        self.is_new = False
        order = {SubscriptionChange: 0, CurrentChange: 1}
        self.apply(sorted(changes, key=lambda change: order.get(type(change), 2)))
        # Targets of members whose own record is gone are left-overs.
        self.targets = {member_id: of for member_id, of in self.targets.items() if member_id in self.members}

    def tombstones(self) -> list[Change]:
        """The changes that delete every record of the group."""
        changes: list[Change] = [CurrentChange(member_id, None) for member_id in self.members]
        changes += [TargetChange(member_id, None) for member_id in self.members]
        changes.append(TargetEpochChange(None))
        changes += [SubscriptionChange(member_id, None) for member_id in self.members]
        changes += [RegexChange(regex, None) for regex in self.regexes]
        changes.append(PartitionMetadataChange(False))
        changes.append(EpochChange(None))
        return changes


def subscribed_topics(
    subscriptions: Iterable[tuple[tuple[str, ...], str]], regexes: Mapping[str, ResolvedRegex]
) -> set[str]:
    names: set[str] = set()
    for by_name, regex in subscriptions:
        names.update(by_name)
        if regex in regexes:
            names |= regexes[regex].topics
    return names


def wanted_by(subscription: Subscription) -> tuple[tuple[str, ...], str]:
    return subscription.topics, subscription.regex or ""


def tombstones_of(member_id: str) -> Iterator[Change]:
    yield CurrentChange(member_id, None)
    yield TargetChange(member_id, None)
    yield SubscriptionChange(member_id, None)


def metadata_hash_of(names: Iterable[str], topics: TopicView) -> int:
    """A hash that changes when one of the topics is created, deleted or gets partitions; 0 if none of them exists.

    It is not Kafka's function.
    """
    from hashlib import blake2b  # imported here: it loads OpenSSL, which a broker without such groups need not

    digest, found_any = blake2b(digest_size=8), False
    for name in sorted(names):
        found = topics.find(name)
        if found is not None:
            found_any = True
            digest.update(b"%s\0%s%d;" % (name.encode(), found[0], found[1]))
    return int.from_bytes(digest.digest(), "big", signed=True) if found_any else 0
