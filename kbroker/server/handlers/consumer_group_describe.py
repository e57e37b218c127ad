"""ConsumerGroupDescribe, key 69, versions 0 to 1: state, epochs and members of consumer groups (KIP-848).

Leaves out: an authorizer; authorized operations are always all operations.

v0  first
v1  which protocol a member uses (KIP-1099)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kbroker._core.wire.codec import lazily
from kbroker.errors import ErrorCode
from kbroker.groups.consumer_groups import DescribedConsumerGroup, NamedTopics
from kbroker.protocol import messages as M
from kbroker.rules.consumer_group_member import Assignment, ConsumerMember
from kbroker.server.handlers.shared.authorized_operations import NOT_ASKED_FOR, ON_GROUP
from kbroker.server.handlers.shared.naming import each_once

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def handle(
    services: Services, request: Request, message: M.ConsumerGroupDescribeRequest
) -> M.ConsumerGroupDescribeResponse:
    """Answer the request at once."""
    operations = ON_GROUP if message.include_authorized_operations else NOT_ASKED_FOR
    is_served = services.features.consumer_groups and services.groups.options.consumer_enabled
    describe = services.groups.consumers.describe if is_served else _refused
    once = each_once(message.group_ids)
    groups = (_described(group_id, describe(group_id), operations) for group_id in once)
    return M.ConsumerGroupDescribeResponse(groups=lazily(len(once), groups))


def _refused(group_id: str) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(ErrorCode.UNSUPPORTED_VERSION)


def _described(
    group_id: str, described: DescribedConsumerGroup, operations: int
) -> M.ConsumerGroupDescribeResponse.DescribedGroup:
    topics = described.topics
    return M.ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=described.error,
        error_message=described.message,
        group_id=group_id,
        group_state=described.state,
        group_epoch=described.epoch,
        assignment_epoch=described.target_epoch,
        assignor_name=described.assignor,
        members=lazily(
            len(described.members), (_member(member, target, topics) for member, target in described.members)
        ),
        authorized_operations=operations if described.error is ErrorCode.NONE else NOT_ASKED_FOR,
    )


def _member(member: ConsumerMember, target: Assignment, topics: NamedTopics) -> M.ConsumerGroupDescribeResponse.Member:
    subscription, current = member.subscription, member.current
    having: dict[bytes, set[int]] = {topic_id: set(partitions) for topic_id, partitions in current.assigned.items()}
    for topic_id, partitions in current.revoking.items():
        having.setdefault(topic_id, set()).update(partitions)
    return M.ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=current.member_epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=list(subscription.topics),
        subscribed_topic_regex=subscription.regex,
        assignment=_assignment(having, topics),
        target_assignment=_assignment(target, topics),
        member_type=CONSUMER_MEMBER if subscription.classic is None else CLASSIC_MEMBER,
    )


def _assignment(
    assigned: Mapping[bytes, Collection[int]], topics: NamedTopics
) -> M.ConsumerGroupDescribeResponse.Assignment:
    R = M.ConsumerGroupDescribeResponse
    named = [(topic_id, topics.name_of(topic_id), partitions) for topic_id, partitions in assigned.items()]
    return R.Assignment(
        topic_partitions=[
            R.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
            for topic_id, name, partitions in named
            if name is not None
        ]
    )
