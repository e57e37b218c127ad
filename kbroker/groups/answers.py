"""What the coordinator says of groups and offsets to whoever asks."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition


class FetchedOffset(NamedTuple):
    """What OffsetFetch says of one partition."""

    partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    error: ErrorCode


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it; metadata and assignment only while the group is stable."""

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
    """`classic` or `consumer`: which protocol its members speak (KIP-848)."""
