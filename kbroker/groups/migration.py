"""Changes a group with members from the classic protocol to the consumer protocol (KIP-848), and back."""

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
"""The values of group.consumer.migration.policy that allow an upgrade, and a downgrade."""

BUILT_IN = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors whose groups can be upgraded although assignments have user data, as those of librdkafka's `sticky` do.

These assignors need the data only for their own next assignment, and after an upgrade there is none."""

MAX_VERSION = 3
"""The newest known version of the messages in JoinGroup and SyncGroup. Fields that later ones append are ignored."""

LOG = logging.getLogger(__name__)

_version = struct.Struct(">h")


# --- messages of consumers -----------------------------------------------------------------------------------
def wanted_of(metadata: bytes, topics: TopicView) -> Wanted:
    """Topics, owned partitions and rack from a member's metadata. Raises BadInput if it cannot be read."""
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
    """The named partitions that exist, by topic id."""
    found: dict[bytes, frozenset[int]] = {}
    for one in named:
        topic_id, count = topics.find(one.topic) or (b"", 0)
        if count:
            there = frozenset(partition for partition in one.partitions if 0 <= partition < count)
            found[topic_id] = found.get(topic_id, frozenset()) | there
    return found


def assignment_bytes(assigned: Mapping[bytes, Any], metadata: bytes, topics: TopicView) -> bytes:
    """The assignment that SyncGroup gives a member, encoded in the version of the member's `metadata`."""
    version = min(max(_version.unpack_from(metadata)[0], 0), MAX_VERSION) if len(metadata) >= _version.size else 0
    A = M.ConsumerProtocolAssignment
    named = [(topics.name_of(topic_id), sorted(of)) for topic_id, of in assigned.items()]
    partitions = [A.TopicPartition(topic=name, partitions=of) for name, of in named if name is not None]
    return _version.pack(version) + A(assigned_partitions=partitions).encode(version)


# --- classic to newer ----------------------------------------------------------------------------------------
def upgrade(group: Group, policy: str, max_size: int, topics: TopicView) -> list[Change]:
    """Return the changes that make a classic group a consumer group.

    Raises ProtocolError (GROUP_ID_NOT_FOUND, as in Kafka) if the group cannot be upgraded.
    """
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
    """Whether all members use the classic protocol, and the policy and the group's size allow a downgrade."""
    return group.is_all_classic and policy in DOWNGRADE and len(group.members) <= max_size


def downgrade(group: MixedGroup, topics: TopicView, max_size: int, initial_rebalance_delay_ms: int) -> Group:
    """The consumer group as a classic one; its members get their target assignments."""
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
    # With the members' own epoch as generation they are told to join again, not that their generation is too old.
    generation = group.target_epoch
    return Group.restore(group.group_id, "consumer", name, generation, None, members.by_id.values(), *limits)
