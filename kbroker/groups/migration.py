"""A live group changes from the classic protocol to the newer one (KIP-848) and back."""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from typing import Any

from kbroker.errors import BadInput, ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.rules.consumer_group_member import (
    NOTHING,
    Assignment,
    Change,
    ClassicGroupGone,
    ClassicMetadata,
    Current,
    CurrentChange,
    EpochChange,
    MemberState,
    Subscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
    TopicView,
)
from kbroker.rules.consumer_group_state import metadata_hash_of
from kbroker.rules.group import Group
from kbroker.rules.group_member import Member
from kbroker.rules.group_members import GroupMembers
from kbroker.rules.mixed_group import MixedGroup, Wanted

UPGRADE, DOWNGRADE = ("upgrade", "bidirectional"), ("downgrade", "bidirectional")
"""The values of group.consumer.migration.policy that allow it."""

BUILT_IN = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors of clients that lose nothing when what they note in an assignment is lost. librdkafka's sticky one does."""

MAX_VERSION = 3
"""Of the messages inside JoinGroup and SyncGroup. What newer ones add behind their fields is not looked at."""

LOG = logging.getLogger(__name__)

_version = struct.Struct(">h")


# --- messages of consumers -----------------------------------------------------------------------------------
def wanted_of(metadata: bytes, topics: TopicView) -> Wanted:
    """What a member's metadata says. Raises BadInput."""
    read: Any = _read(M.ConsumerProtocolSubscription, metadata)
    owned: dict[bytes, list[int]] = {}
    for one in read.owned_partitions:
        topic = topics.find(one.topic)
        if topic is not None:
            owned.setdefault(topic[0], []).extend(one.partitions)
    return Wanted(tuple(sorted(set(read.topics))), owned, read.rack_id)


def _read(kind: Any, data: bytes) -> Any:
    if len(data) < _version.size:
        raise BadInput("metadata of a consumer without a version")
    version: int = _version.unpack_from(data)[0]
    if version < 0:
        raise BadInput(f"metadata of a consumer of version {version}")
    return kind.decode_prefix(memoryview(data)[_version.size :], min(version, MAX_VERSION))[0]


def _existing(named: Any, topics: TopicView) -> dict[bytes, frozenset[int]]:
    """Those of the partitions that are named that there are."""
    found: dict[bytes, frozenset[int]] = {}
    for one in named:
        topic_id, count = topics.find(one.topic) or (b"", 0)
        if count:
            there = frozenset(partition for partition in one.partitions if 0 <= partition < count)
            found[topic_id] = found.get(topic_id, frozenset()) | there
    return found


def assignment_bytes(assigned: Mapping[bytes, Any], metadata: bytes, topics: TopicView) -> bytes:
    """What SyncGroup tells a member, in the version that its own metadata has."""
    version = min(max(_version.unpack_from(metadata)[0], 0), MAX_VERSION) if len(metadata) >= _version.size else 0
    A = M.ConsumerProtocolAssignment
    named = [(topics.name_of(topic_id), sorted(of)) for topic_id, of in assigned.items()]
    partitions = [A.TopicPartition(topic=name, partitions=of) for name, of in named if name is not None]
    return _version.pack(version) + A(assigned_partitions=partitions).encode(version)


# --- classic to newer ----------------------------------------------------------------------------------------
def upgrade(group: Group, policy: str, max_size: int, topics: TopicView) -> list[Change]:
    """The group as one of the newer protocol. GROUP_ID_NOT_FOUND, as in Kafka, when it cannot be one."""
    why = None
    if policy not in UPGRADE:
        why = "online upgrade is disabled"
    elif not group.is_consumer_group:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > max_size:
        why = "the group size exceeds the consumer group maximum size"
    if why is not None:
        raise _cannot(group, why)
    changes: list[Change] = [ClassicGroupGone()] if group.generation > 0 else []
    epoch = max(group.generation, 1)
    members: list[tuple[str, Subscription, Assignment]] = []
    try:
        members += [(member.member_id, *_as_newer(group, member, topics)) for member in group.members.values()]
    except ProtocolError:
        raise
    except BadInput:
        raise _cannot(group, "the embedded consumer protocol is malformed") from None
    names = {name for _, subscription, _ in members for name in subscription.topics}
    changes += [SubscriptionChange(member_id, subscription) for member_id, subscription, _ in members]
    changes.append(EpochChange(epoch, metadata_hash_of(names, topics)))
    changes += [TargetChange(member_id, assigned) for member_id, _, assigned in members]
    changes.append(TargetEpochChange(epoch))
    for member_id, _, assigned in members:
        epochs = {topic_id: dict.fromkeys(sorted(of), epoch) for topic_id, of in assigned.items()}
        changes.append(CurrentChange(member_id, Current(epoch, epoch, MemberState.STABLE, epochs)))
    return changes


def _cannot(group: Group, why: str) -> ProtocolError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    LOG.info("%s", message)
    return ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _as_newer(group: Group, member: Member, topics: TopicView) -> tuple[Subscription, Assignment]:
    name = group.protocol_name or next(iter(member.protocols))
    wanted = wanted_of(member.protocols[name], topics)
    assigned: Assignment = NOTHING
    if member.assignment:
        read = _read(M.ConsumerProtocolAssignment, member.assignment)
        if read.user_data and name not in BUILT_IN:
            raise _cannot(group, "an unsupported custom assignor is in use")
        assigned = _existing(read.assigned_partitions, topics)
    subscription = Subscription(
        member.instance_id,
        wanted.rack_id,
        member.client_id,
        member.client_host,
        wanted.topics,
        "",
        member.rebalance_timeout_ms,
        None,
        ClassicMetadata(member.session_timeout_ms, tuple(member.protocols.items())),
    )
    return subscription, assigned


# --- newer to classic ----------------------------------------------------------------------------------------
def can_downgrade(group: MixedGroup, policy: str, max_size: int) -> bool:
    """Whether everybody who is left speaks the classic protocol, so that the group can be a classic one again."""
    return group.is_all_classic and policy in DOWNGRADE and len(group.members) <= max_size


def downgrade(group: MixedGroup, topics: TopicView, max_size: int, initial_rebalance_delay_ms: int) -> Group:
    """The group as one of the classic protocol, with the assignment that it was on its way to."""
    members = GroupMembers()
    for one in group.members.values():
        subscription, classic = one.subscription, one.subscription.classic
        assert classic is not None
        target = group.targets.get(one.member_id, NOTHING)
        members.add(
            Member(
                one.member_id,
                subscription.instance_id,
                subscription.client_id,
                subscription.client_host,
                subscription.rebalance_timeout_ms,
                classic.session_timeout_ms,
                dict(classic.protocols),
                assignment_bytes(target, classic.protocols[0][1], topics),
            )
        )
    limits = (max_size, initial_rebalance_delay_ms)
    name = members.vote()
    # The epoch that members are in: they hear that they have to join again, not that they were left behind.
    generation = group.target_epoch
    return Group.restore(group.group_id, "consumer", name, generation, None, members.by_id.values(), *limits)
