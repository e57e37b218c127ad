"""What brokers tell of groups, as AdminClient returns it."""

from __future__ import annotations

from typing import Any

from kbroker.client.admin_results import GroupDescription, MemberDescription
from kbroker.errors import MalformedBytes
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M


def described(group: Any, coordinator: int) -> GroupDescription:
    """Of a DescribeGroupsResponse: a group of the classic protocol."""
    members = tuple(
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            assigned(bytes(member.member_assignment)),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, "classic", group.protocol_type, group.protocol_data, coordinator, members
    )


def described_newer(group: Any, coordinator: int) -> GroupDescription:
    """Of a ConsumerGroupDescribeResponse (KIP-848)."""
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, "consumer", "consumer", group.assignor_name, coordinator, members
    )


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """What a member of the consumer protocol reads; nothing for groups of other kinds."""
    if len(data) < 2:
        return ()
    try:
        assignment = M.ConsumerProtocolAssignment.decode_prefix(data[2:], 0)[0]
    except MalformedBytes:
        return ()
    return tuple(
        TopicPartition(topic.topic, number) for topic in assignment.assigned_partitions for number in topic.partitions
    )
