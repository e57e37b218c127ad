"""The coordinator's answers about groups and offsets, and how they are made from a group's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.group import Group
from kbroker.rules.group_offsets import GroupOffsets
from kbroker.rules.group_state import GroupState

NO_OFFSET = -1


class FetchedOffset(NamedTuple):
    """One partition in the answer to OffsetFetch."""

    partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    error: ErrorCode


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it; metadata and assignment are empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group as DescribeGroups shows it."""

    error: ErrorCode
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(NamedTuple):
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: str
    kind: str = "classic"
    """`classic` or `consumer`: the group's protocol (KIP-848)."""


def described(group: Group) -> DescribedGroup:
    """Describe a group as DescribeGroups shows it. The caller holds the lock that guards the group."""
    stable = group.state is GroupState.STABLE
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            group.metadata_of(member) if stable else b"",
            member.assignment if stable else b"",
        )
        for member in group.members.values()
    )
    name = (group.protocol_name or "") if stable else ""
    return DescribedGroup(ErrorCode.NONE, group.state, group.protocol_type or "", name, members)


def fetched(
    offsets: GroupOffsets, partitions: Iterable[TopicPartition] | None, require_stable: bool
) -> list[FetchedOffset]:
    """The committed offsets of `partitions`; None: of all partitions that have one.

    With `require_stable`, a partition with a commit on its way gets UNSTABLE_OFFSET_COMMIT (KIP-447).
    """
    found = []
    for partition in sorted(offsets.committed) if partitions is None else partitions:
        committed = offsets.committed.get(partition)
        if require_stable and offsets.is_unstable(partition):
            found.append(_no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        elif committed is None:
            found.append(_no_offset(partition, ErrorCode.NONE))
        else:
            stored = (committed.offset, committed.leader_epoch, committed.metadata)
            found.append(FetchedOffset(partition, *stored, ErrorCode.NONE))
    return found


def _no_offset(partition: TopicPartition, error: ErrorCode) -> FetchedOffset:
    return FetchedOffset(partition, NO_OFFSET, -1, "", error)
