"""Records of `__consumer_offsets`, byte for byte those of Apache Kafka 3.9. On disk. Do not change.

    key    int16 version, then
             0, 1  OffsetCommitKey   group, topic, partition      value: int16 version 0-4, OffsetCommitValue
             2     GroupMetadataKey  group                        value: int16 version 0-4, GroupMetadataValue
           others  groups of the consumer protocol (KIP-848): see `consumer_records.py`
    a null value deletes the offset or the group

kbroker writes the versions that 3.9 writes: OffsetCommitValue 3 (or 1 if an old client set a retention time, since only
version 1 has an expire timestamp) and GroupMetadataValue 3. It reads all versions, the flexible version 4 of a later
release too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.errors import MalformedBytes
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.group import Group
from kbroker.rules.group_member import Member
from kbroker.rules.group_offsets import NO_EXPIRY, CommittedOffset

MAX_STRING_SIZE = 2**15 - 1
OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
_OFFSET_VALUE, _OFFSET_VALUE_WITH_EXPIRY, _GROUP_VALUE = 3, 1, 3

_version = struct.Struct(">h")
_OFFSET_KEY_PREFIX = _version.pack(OFFSET_KEY_VERSIONS[1])
_GROUP_KEY_PREFIX = _version.pack(GROUP_KEY_VERSION)
_OFFSET_VALUE_PREFIX = _version.pack(_OFFSET_VALUE)
_OFFSET_VALUE_WITH_EXPIRY_PREFIX = _version.pack(_OFFSET_VALUE_WITH_EXPIRY)
_GROUP_VALUE_PREFIX = _version.pack(_GROUP_VALUE)


class OffsetKey(NamedTuple):
    """The key of a record of a committed offset."""

    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """The key of a record of a group's members."""

    group_id: str


class GroupValue(NamedTuple):
    """The value of a record of a group's members."""

    protocol_type: str
    protocol_name: str | None
    generation: int
    leader: str | None
    state_timestamp_ms: int
    """When the group came into the recorded state; -1 in versions before 2."""
    members: list[Member]


# --- writing ---------------------------------------------------------------------------------------------
def fits(text: str, most_bytes: int = MAX_STRING_SIZE) -> bool:
    """Whether `text` has at most `most_bytes` bytes in UTF-8.

    A string from a request always fits into a record; a member id that is made from one may be too long.
    """
    return len(text) * 4 <= most_bytes or len(text.encode()) <= most_bytes


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    """The key of a committed offset. Group id and topic must fit into a record (`fits`)."""
    key = M.OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition_id)
    return _OFFSET_KEY_PREFIX + key.encode(1)


def offset_value(committed: CommittedOffset) -> bytes:
    """The value of a committed offset."""
    value = M.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
    )
    if committed.expire_timestamp_ms == NO_EXPIRY:
        return _OFFSET_VALUE_PREFIX + value.encode(_OFFSET_VALUE)
    value.leader_epoch = -1  # version 1 has none
    value.expire_timestamp = committed.expire_timestamp_ms
    return _OFFSET_VALUE_WITH_EXPIRY_PREFIX + value.encode(_OFFSET_VALUE_WITH_EXPIRY)


def group_key(group_id: str) -> bytes:
    """The key of a group. The group id must fit into a record (`fits`)."""
    return _GROUP_KEY_PREFIX + M.GroupMetadataKey(group=group_id).encode(2)


def group_value(group: Group, assignments: Mapping[str, bytes], state_timestamp_ms: int) -> bytes:
    """Encode the value of a group: its members with their assignments, by member id."""
    value = M.GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=state_timestamp_ms,
        members=[
            M.GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=group.metadata_of(member),
                assignment=assignments[member.member_id],
            )
            for member in group.members.values()
        ],
    )
    return _GROUP_VALUE_PREFIX + value.encode(_GROUP_VALUE)


# --- reading ---------------------------------------------------------------------------------------------
def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """The decoded key of a record; None for other kinds of record. Raises MalformedBytes if it cannot be read."""
    version = _version_of(key)
    if version in OFFSET_KEY_VERSIONS:
        offset = M.OffsetCommitKey.decode(memoryview(key)[2:], version)
        return OffsetKey(offset.group, TopicPartition(offset.topic, offset.partition))
    if version == GROUP_KEY_VERSION:
        return GroupKey(M.GroupMetadataKey.decode(memoryview(key)[2:], version).group)
    return None


def decode_offset_value(value: bytes, record_offset: int) -> CommittedOffset:
    """The committed offset in a value; `record_offset` is the base offset of its batch.

    Raises MalformedBytes if it cannot be read.
    """
    version = _version_of(value)
    _check(version, M.OffsetCommitValue.MIN_VERSION, M.OffsetCommitValue.MAX_VERSION)
    read = M.OffsetCommitValue.decode(memoryview(value)[2:], version)
    expiry = read.expire_timestamp if version == _OFFSET_VALUE_WITH_EXPIRY else NO_EXPIRY
    return CommittedOffset(read.offset, read.leader_epoch, read.metadata, read.commit_timestamp, expiry, record_offset)


def decode_group_value(value: bytes) -> GroupValue:
    """The group in a value. Raises MalformedBytes if it cannot be read or has two members of one id."""
    version = _version_of(value)
    _check(version, M.GroupMetadataValue.MIN_VERSION, M.GroupMetadataValue.MAX_VERSION)
    read = M.GroupMetadataValue.decode(memoryview(value)[2:], version)
    members = [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout if version == 0 else member.rebalance_timeout,
            member.session_timeout,
            {read.protocol or "": member.subscription},
            member.assignment,
        )
        for member in read.members
    ]
    instances = [member.instance_id for member in members if member.instance_id is not None]
    if len({member.member_id for member in members}) != len(members) or len(set(instances)) != len(instances):
        raise MalformedBytes("a group with two members of the same id")
    return GroupValue(
        read.protocol_type, read.protocol, read.generation, read.leader, read.current_state_timestamp, members
    )


def _version_of(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedBytes("a record of __consumer_offsets without a version")
    version: int = _version.unpack_from(data)[0]
    return version


def _check(version: int, lowest: int, highest: int) -> None:
    if not lowest <= version <= highest:
        raise MalformedBytes(f"a record of __consumer_offsets with a value of version {version}")
