"""Records of consumer groups (KIP-848) in `__consumer_offsets`, byte for byte those of Apache Kafka 4.3.

    key    int16 version, then
              3  ConsumerGroupMetadataKey                  group             value: epoch, hash of the topics
              4  ConsumerGroupPartitionMetadataKey         group             3.9 and 4.0 only; deleted when found
              5  ConsumerGroupMemberMetadataKey            group, member     the member and its subscription
              6  ConsumerGroupTargetAssignmentMetadataKey  group             epoch and time of the target assignment
              7  ConsumerGroupTargetAssignmentMemberKey    group, member     the member's target assignment
              8  ConsumerGroupCurrentMemberAssignmentKey   group, member     the member's current epoch and partitions
             16  ConsumerGroupRegularExpressionKey         group, pattern    the topics that match
    value  int16 version 0, then the message; a null value deletes

The hash of the topics is not Kafka's function: when Kafka or kbroker takes over the other's log, it finds the hash
changed once, and assigns anew. `records.py` has the records of classic groups and of offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from kbroker.errors import MalformedBytes
from kbroker.protocol import messages as M
from kbroker.rules.consumer_group_member import (
    Assignment,
    Change,
    ClassicGroupGone,
    ClassicMetadata,
    Current,
    CurrentChange,
    EpochChange,
    EpochsByPartition,
    MemberState,
    PartitionMetadataChange,
    RegexChange,
    ResolvedRegex,
    Subscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)

KeyValue: TypeAlias = tuple[bytes, bytes | None]

EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
CLASSIC_GROUP = 2
VALUE_VERSION = 0

_version = struct.Struct(">h")
_VALUE_PREFIX = _version.pack(VALUE_VERSION)


# --- writing -----------------------------------------------------------------------------------------------
def record(group_id: str, change: Change) -> KeyValue:
    """The record of a change: its key and value."""
    match change:
        case SubscriptionChange(member_id, subscription):
            key = M.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
            return _record(MEMBER, key, None if subscription is None else _subscription_value(subscription))
        case CurrentChange(member_id, current):
            current_key = M.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
            return _record(CURRENT, current_key, None if current is None else _current_value(current))
        case TargetChange(member_id, assignment):
            target_key = M.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
            return _record(TARGET, target_key, None if assignment is None else _target_value(assignment))
        case TargetEpochChange(epoch, timestamp_ms):
            V = M.ConsumerGroupTargetAssignmentMetadataValue
            value = None if epoch is None else V(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
            return _record(TARGET_EPOCH, M.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)
        case EpochChange(epoch, metadata_hash):
            of_epoch = None if epoch is None else M.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
            return _record(EPOCH, M.ConsumerGroupMetadataKey(group_id=group_id), of_epoch)
        case RegexChange(regex, resolved):
            regex_key = M.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
            return _record(REGEX, regex_key, None if resolved is None else _regex_value(resolved))
        case PartitionMetadataChange():
            return _record(PARTITION_METADATA, M.ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
        case ClassicGroupGone():
            return _record(CLASSIC_GROUP, M.GroupMetadataKey(group=group_id), None)


def _record(kind: int, key: M.Message, value: M.Message | None) -> KeyValue:
    encoded = None if value is None else _VALUE_PREFIX + value.encode(VALUE_VERSION)
    return _version.pack(kind) + key.encode(kind), encoded


def _subscription_value(subscription: Subscription) -> M.Message:
    V = M.ConsumerGroupMemberMetadataValue
    classic = subscription.classic
    return V(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=list(subscription.topics),
        subscribed_topic_regex=subscription.regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.assignor,
        classic_member_metadata=None
        if classic is None
        else V.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[V.ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
        ),
    )


def _current_value(current: Current) -> M.Message:
    return M.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=_with_epochs(current.assigned),
        partitions_pending_revocation=_with_epochs(current.revoking),
    )


def _with_epochs(assigned: EpochsByPartition) -> list[Any]:
    T = M.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    topics = []
    for topic_id, partitions in assigned.items():
        ordered = sorted(partitions)
        topics.append(T(topic_id=topic_id, partitions=ordered, assignment_epochs=[partitions[p] for p in ordered]))
    return topics


def _target_value(assignment: Assignment) -> M.Message:
    V = M.ConsumerGroupTargetAssignmentMemberValue
    return V(
        topic_partitions=[
            V.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
        ]
    )


def _regex_value(resolved: ResolvedRegex) -> M.Message:
    return M.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )


# --- reading -----------------------------------------------------------------------------------------------
def decode(key: bytes, value: bytes) -> tuple[str, Change] | None:
    """The group id and the change of a record; None if it is not a record of a consumer group.

    Raises MalformedBytes if the key or the value cannot be read.
    """
    kind = _version_of(key)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    key_class, value_class, make = decoder
    version = _version_of(value)
    if version != VALUE_VERSION:
        raise MalformedBytes(f"a record of a consumer group with a value of version {version}")
    about = key_class.decode(memoryview(key)[2:], kind)
    return about.group_id, make(about, value_class.decode(memoryview(value)[2:], version))


def _version_of(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedBytes("a record of __consumer_offsets without a version")
    version: int = _version.unpack_from(data)[0]
    return version


def _subscription(about: Any, read: Any) -> Change:
    classic = read.classic_member_metadata
    subscription = Subscription(
        read.instance_id,
        read.rack_id,
        read.client_id,
        read.client_host,
        tuple(sorted(set(read.subscribed_topic_names))),
        read.subscribed_topic_regex,
        read.rebalance_timeout_ms,
        read.server_assignor,
        None
        if classic is None
        else ClassicMetadata(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )
    return SubscriptionChange(about.member_id, subscription)


def _current(about: Any, read: Any) -> Change:
    state = MemberState(read.state) if read.state in _STATES else MemberState.UNKNOWN
    assigned = _read_epochs(read.assigned_partitions, read.member_epoch)
    revoking = _read_epochs(read.partitions_pending_revocation, read.member_epoch)
    return CurrentChange(
        about.member_id, Current(read.member_epoch, read.previous_member_epoch, state, assigned, revoking)
    )


def _read_epochs(topics: list[Any], member_epoch: int) -> dict[bytes, dict[int, int]]:
    """Partitions by topic id, each with the epoch it was assigned in.

    Records of before 4.3 have no such epochs: their partitions count as assigned in the member's epoch.
    """
    assigned: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs and len(epochs) != len(topic.partitions):
            raise MalformedBytes("a member with partitions of which some have no epoch")
        pairs = zip(topic.partitions, epochs or [member_epoch] * len(topic.partitions), strict=True)
        assigned.setdefault(bytes(topic.topic_id), {}).update(pairs)
    return assigned


def _target(about: Any, read: Any) -> Change:
    assignment: dict[bytes, frozenset[int]] = {}
    for topic in read.topic_partitions:
        assignment[bytes(topic.topic_id)] = frozenset(topic.partitions)
    return TargetChange(about.member_id, assignment)


def _regex(about: Any, read: Any) -> Change:
    return RegexChange(about.regular_expression, ResolvedRegex(frozenset(read.topics), read.version, read.timestamp))


_STATES = frozenset(MemberState)
_DECODERS: Mapping[int, tuple[Any, Any, Any]] = {
    EPOCH: (
        M.ConsumerGroupMetadataKey,
        M.ConsumerGroupMetadataValue,
        lambda _, read: EpochChange(read.epoch, read.metadata_hash),
    ),
    PARTITION_METADATA: (
        M.ConsumerGroupPartitionMetadataKey,
        M.ConsumerGroupPartitionMetadataValue,
        lambda *_: PartitionMetadataChange(True),
    ),
    MEMBER: (M.ConsumerGroupMemberMetadataKey, M.ConsumerGroupMemberMetadataValue, _subscription),
    TARGET_EPOCH: (
        M.ConsumerGroupTargetAssignmentMetadataKey,
        M.ConsumerGroupTargetAssignmentMetadataValue,
        lambda _, read: TargetEpochChange(read.assignment_epoch, read.assignment_timestamp),
    ),
    TARGET: (M.ConsumerGroupTargetAssignmentMemberKey, M.ConsumerGroupTargetAssignmentMemberValue, _target),
    CURRENT: (M.ConsumerGroupCurrentMemberAssignmentKey, M.ConsumerGroupCurrentMemberAssignmentValue, _current),
    REGEX: (M.ConsumerGroupRegularExpressionKey, M.ConsumerGroupRegularExpressionValue, _regex),
}
