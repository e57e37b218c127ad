"""Groups: their members and their committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import TypeVar

from kbroker.client.admin.items import (
    call_all_nodes,
    call_coordinator,
    call_coordinators,
    call_for_each,
    missing_answer,
    numbers_by_topic,
    value_or_error,
)
from kbroker.client.admin.results import GroupDescription, GroupListing, MemberDescription
from kbroker.client.consumer.group_metadata import OffsetAndMetadata
from kbroker.client.errors import BrokerError, ClientError, raise_for
from kbroker.client.network.cluster import COORDINATOR, GROUP, Cluster
from kbroker.errors import ErrorCode, MalformedBytes
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

T = TypeVar("T")

CLASSIC, CONSUMER = "classic", "consumer"  #: types of groups; "consumer" is also the protocol type of classic groups
DEAD = "Dead"
NOT_OF_CONSUMERS = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
STABLE_SINCE = 7  #: the version of OffsetFetch that has require_stable (KIP-447)
LEFT_BY_ADMIN = "removed by an administrator"


async def listing(cluster: Cluster, states: Collection[str], types: Collection[str]) -> list[GroupListing]:
    async def ask(node_id: int) -> list[GroupListing]:
        message = M.ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        answer = await cluster.call(message, node_id)
        raise_for(answer.error_code, None, f"groups of broker {node_id}")
        return [
            GroupListing(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in answer.groups
        ]

    by_node = await call_all_nodes(cluster, ask)
    return sorted(chain.from_iterable(by_node.values()), key=lambda group: group.group_id)


async def describe(cluster: Cluster, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
    async def attempt(node_id: int, theirs: list[str]) -> dict[str, GroupDescription | ClientError]:
        connection = await cluster.connection(node_id, COORDINATOR)
        found: dict[str, GroupDescription | ClientError] = {}
        if connection.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
            answer = await connection.call(M.ConsumerGroupDescribeRequest(group_ids=theirs))
            # ConsumerGroupDescribe does not find groups of the classic protocol: they are asked for below.
            found = {
                group.group_id: value_or_error(
                    group.error_code, group.error_message, f"group {group.group_id!r}", _of_consumers(group, node_id)
                )
                for group in answer.groups
                if group.error_code not in NOT_OF_CONSUMERS
            }
        others = [group_id for group_id in theirs if group_id not in found]
        if others:
            for group in (await connection.call(M.DescribeGroupsRequest(groups=others))).groups:
                what = f"group {group.group_id!r}"
                # Kafka 4 answers GROUP_ID_NOT_FOUND; earlier releases describe a group in the state Dead (KIP-1043).
                if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
                    found[group.group_id] = GroupDescription(group.group_id, DEAD, "", "", "", node_id, ())
                else:
                    found[group.group_id] = value_or_error(group.error_code, None, what, _classic(group, node_id))
        return found

    return await call_coordinators(cluster, group_ids, GROUP, attempt)


def _of_consumers(group: M.ConsumerGroupDescribeResponse.DescribedGroup, node_id: int) -> GroupDescription:
    members = tuple(
        MemberDescription(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            _partitions(each.assignment),
            _partitions(each.target_assignment),
            each.member_epoch,
            each.rack_id,
        )
        for each in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        CONSUMER,
        CONSUMER,
        group.assignor_name,
        node_id,
        members,
        group.group_epoch,
        group.assignment_epoch,
    )


def _partitions(assignment: M.ConsumerGroupDescribeResponse.Assignment) -> tuple[TopicPartition, ...]:
    found = (TopicPartition(each.topic_name, n) for each in assignment.topic_partitions for n in each.partitions)
    return tuple(sorted(found))


def _classic(group: M.DescribeGroupsResponse.DescribedGroup, node_id: int) -> GroupDescription:
    of_consumers = group.protocol_type == CONSUMER
    members = tuple(
        MemberDescription(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            assigned(bytes(each.member_assignment)) if of_consumers else (),
        )
        for each in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, CLASSIC, group.protocol_type, group.protocol_data, node_id, members
    )


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions in the assignment of a classic group's member; () when the bytes are not an assignment.

    The bytes are a version, which is skipped, and the partitions, which all versions begin with.
    """
    try:
        found = M.ConsumerProtocolAssignment.decode_prefix(data[2:], 0)[0]
    except MalformedBytes:
        return ()
    return tuple(sorted(TopicPartition(each.topic, n) for each in found.assigned_partitions for n in each.partitions))


async def delete(cluster: Cluster, group_ids: Iterable[str]) -> None:
    async def attempt(node_id: int, theirs: list[str]) -> dict[str, ClientError | None]:
        answer = await cluster.call(M.DeleteGroupsRequest(groups_names=theirs), node_id, COORDINATOR)
        return {
            each.group_id: value_or_error(each.error_code, None, f"group {each.group_id!r}", None)
            for each in answer.results
        }

    await call_coordinators(cluster, group_ids, GROUP, attempt)


async def remove_members(
    cluster: Cluster, group_id: str, instance_ids: Collection[str], member_ids: Collection[str]
) -> None:
    identity = M.LeaveGroupRequest.MemberIdentity
    named = {each: ("", each) for each in instance_ids} | {each: (each, None) for each in member_ids}

    async def attempt(left: list[str]) -> dict[str, ClientError | None]:
        node_id = await cluster.coordinator(group_id)
        connection = await cluster.connection(node_id, COORDINATOR)
        reason = LEFT_BY_ADMIN if connection.version_of(ApiKey.LEAVE_GROUP) >= 5 else None
        members = [identity(member_id=named[each][0], group_instance_id=named[each][1], reason=reason) for each in left]
        answer = await connection.call(M.LeaveGroupRequest(group_id=group_id, members=members))
        if answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            cluster.forget_coordinator(group_id)
        raise_for(answer.error_code, None, f"group {group_id!r}")
        return {
            name: value_or_error(each.error_code, None, f"member {name!r} of group {group_id!r}", None)
            for each in answer.members
            for name in [each.group_instance_id or each.member_id]
        }

    await call_for_each(cluster, named, attempt)


# --- offsets ----------------------------------------------------------------------------------------------


async def committed(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition] | None, require_stable: bool
) -> dict[TopicPartition, OffsetAndMetadata]:
    request = M.OffsetFetchRequest
    by_topic = None if partitions is None else numbers_by_topic(partitions)

    async def attempt(node_id: int) -> dict[TopicPartition, OffsetAndMetadata]:
        connection = await cluster.connection(node_id, COORDINATOR)
        version = connection.version_of(ApiKey.OFFSET_FETCH)
        if require_stable and version < STABLE_SINCE:
            raise BrokerError(
                f"{connection.address} serves OffsetFetch up to version {version} only, which does not tell of "
                "transactions that are open",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        if version >= 8:
            topics = _rows(request.OffsetFetchRequestTopics, by_topic)
            group = request.OffsetFetchRequestGroup(group_id=group_id, topics=topics)
            message = request(groups=[group], require_stable=require_stable)
            groups = (await connection.call(message)).groups
            answer = next((each for each in groups if each.group_id == group_id), None)
            if answer is None:
                raise missing_answer(f"group {group_id!r}")
        else:
            rows = _rows(request.OffsetFetchRequestTopic, by_topic)
            message = request(group_id=group_id, topics=rows, require_stable=require_stable)
            answer = await connection.call(message)
        raise_for(answer.error_code, None, f"group {group_id!r}")
        found = {}
        for topic in answer.topics:
            for each in topic.partitions:
                at = TopicPartition(topic.name, each.partition_index)
                raise_for(each.error_code, None, f"group {group_id!r}, {at}")
                if each.committed_offset >= 0:
                    found[at] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return found

    found: dict[TopicPartition, OffsetAndMetadata] = await call_coordinator(cluster, group_id, GROUP, attempt)
    return found


async def alter_offsets(cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    request = M.OffsetCommitRequest

    async def attempt(left: list[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        topics = [
            request.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=n,
                        committed_offset=offsets[TopicPartition(topic, n)].offset,
                        committed_leader_epoch=offsets[TopicPartition(topic, n)].leader_epoch,
                        committed_metadata=offsets[TopicPartition(topic, n)].metadata,
                    )
                    for n in numbers
                ],
            )
            for topic, numbers in numbers_by_topic(left).items()
        ]
        message = request(group_id=group_id, generation_id_or_member_epoch=-1, topics=topics)
        answer = await cluster.call_coordinator(message, group_id)
        return _of_partitions(cluster, group_id, answer)

    await call_for_each(cluster, offsets, attempt)


async def delete_offsets(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    request = M.OffsetDeleteRequest

    async def attempt(left: list[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        topics = [
            request.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[request.OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
            )
            for topic, numbers in numbers_by_topic(left).items()
        ]
        answer = await cluster.call_coordinator(request(group_id=group_id, topics=topics), group_id)
        if answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            cluster.forget_coordinator(group_id)
        raise_for(answer.error_code, None, f"group {group_id!r}")
        return _of_partitions(cluster, group_id, answer)

    await call_for_each(cluster, partitions, attempt)


def _of_partitions(
    cluster: Cluster, group_id: str, answer: M.OffsetCommitResponse | M.OffsetDeleteResponse
) -> dict[TopicPartition, ClientError | None]:
    found: dict[TopicPartition, ClientError | None] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            at = TopicPartition(topic.name, each.partition_index)
            if each.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                cluster.forget_coordinator(group_id)
            found[at] = value_or_error(each.error_code, None, f"group {group_id!r}, {at}", None)
    return found


def _rows(row: Callable[..., T], by_topic: Mapping[str, list[int]] | None) -> list[T] | None:
    if by_topic is None:
        return None
    return [row(name=topic, partition_indexes=numbers) for topic, numbers in by_topic.items()]
