"""One member of a classic consumer group, for the commands: joins, shares partitions by range, commits, leaves.

Single-threaded: the caller calls `keep` at least every few seconds, which sends what is due and says whether the
assignment has changed. Protocol: KIP-62 (rebalance timeout), KIP-394 (member id first).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M

SESSION_TIMEOUT_MS = 10_000
REBALANCE_TIMEOUT_MS = 20_000
HEARTBEAT_INTERVAL_S = 3.0
_PROTOCOL = "range"
_REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NOT_COORDINATOR,
    }
)


class GroupMember:
    """Membership of `group_id` with the one topic `topic`. `assignment` is what this member reads."""

    def __init__(self, client: BlockingClient, group_id: str, topic: str):
        self._client = client
        self._group_id = group_id
        self._topic = topic
        self._coordinator = client.coordinator(group_id)
        self._member_id = ""
        self._generation_id = -1
        self._next_heartbeat = 0.0
        self.assignment: list[TopicPartition] = []

    def join(self) -> None:
        """Become a member of the next generation; waits for the others. ProtocolError when the group refuses."""
        self._client.retried(self._join, also=_REJOIN)

    def keep(self) -> bool:
        """Send a heartbeat when one is due. False: the group is being rebalanced; commit, then `join` again."""
        if time.monotonic() < self._next_heartbeat:
            return True
        self._next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL_S
        request = M.HeartbeatRequest(
            group_id=self._group_id, generation_id=self._generation_id, member_id=self._member_id
        )
        code = self._client.call(request, self._coordinator).error_code
        if code in _REJOIN:
            return False
        raise_for(code, None, f"group {self._group_id!r}")
        return True

    def committed(self) -> dict[TopicPartition, int]:
        """The group's offsets of the assignment; a partition without one is left out."""
        topics = _by_topic(self.assignment, M.OffsetFetchRequest.OffsetFetchRequestTopic)
        request = M.OffsetFetchRequest(group_id=self._group_id, topics=topics)

        def attempt() -> dict[TopicPartition, int]:
            answer = self._client.call(request, self._coordinator)
            raise_for(answer.error_code, None, f"group {self._group_id!r}")
            found = {}
            for topic in answer.topics:
                for partition in topic.partitions:
                    raise_for(partition.error_code, None, f"{topic.name}-{partition.partition_index}")
                    if partition.committed_offset >= 0:
                        found[TopicPartition(topic.name, partition.partition_index)] = partition.committed_offset
            return found

        return self._client.retried(attempt)

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """Store the next offset to read of each partition. ProtocolError when a rebalance has overtaken it."""
        if not offsets:
            return
        request = M.OffsetCommitRequest
        topics: dict[str, list[M.OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
        for partition, offset in offsets.items():
            topics.setdefault(partition.topic, []).append(
                request.OffsetCommitRequestPartition(
                    partition_index=partition.partition_id, committed_offset=offset, committed_metadata=""
                )
            )
        answer = self._client.call(
            request(
                group_id=self._group_id,
                generation_id_or_member_epoch=self._generation_id,
                member_id=self._member_id,
                topics=[
                    request.OffsetCommitRequestTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            ),
            self._coordinator,
        )
        for topic in answer.topics:
            for partition in topic.partitions:
                raise_for(partition.error_code, None, f"commit of {topic.name}-{partition.partition_index}")

    def leave(self) -> None:
        """Let the others have the partitions at once."""
        request = M.LeaveGroupRequest
        self._client.call(request(group_id=self._group_id, member_id=self._member_id), self._coordinator)

    def _join(self) -> None:
        self._coordinator = self._client.coordinator(self._group_id)
        subscription = M.ConsumerProtocolSubscription(topics=[self._topic]).encode(0)
        request = M.JoinGroupRequest
        answer = self._client.call(
            request(
                group_id=self._group_id,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[request.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=b"\0\0" + subscription)],
            ),
            self._coordinator,
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return self._join()
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        raise_for(answer.error_code, None, f"group {self._group_id!r}")
        self._member_id, self._generation_id = answer.member_id, answer.generation_id
        assignments = self._assign(answer.members) if answer.leader == answer.member_id else []
        self.assignment = self._sync(assignments)
        self._next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL_S
        return None

    def _sync(self, assignments: list[M.SyncGroupRequest.SyncGroupRequestAssignment]) -> list[TopicPartition]:
        answer = self._client.call(
            M.SyncGroupRequest(
                group_id=self._group_id,
                generation_id=self._generation_id,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name=_PROTOCOL,
                assignments=assignments,
            ),
            self._coordinator,
        )
        raise_for(answer.error_code, None, f"group {self._group_id!r}")
        if len(answer.assignment) < 2:
            return []
        assigned = M.ConsumerProtocolAssignment.decode(bytes(answer.assignment)[2:], 0)
        return [
            TopicPartition(topic.topic, partition)
            for topic in assigned.assigned_partitions
            for partition in topic.partitions
        ]

    def _assign(
        self, members: Sequence[M.JoinGroupResponse.JoinGroupResponseMember]
    ) -> list[M.SyncGroupRequest.SyncGroupRequestAssignment]:
        """Each topic's partitions in contiguous ranges over the members that want it, as Kafka's RangeAssignor."""
        wanted: dict[str, list[str]] = {}
        for member in sorted(members, key=lambda member: member.member_id):
            subscription = M.ConsumerProtocolSubscription.decode_prefix(bytes(member.metadata)[2:], 0)[0]
            for topic in subscription.topics:
                wanted.setdefault(topic, []).append(member.member_id)
        shares: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
        for topic in wanted:
            for member_id, partitions in ranges(wanted[topic], sorted(self._partitions(topic))).items():
                shares[member_id][topic] = partitions
        assignment = M.ConsumerProtocolAssignment
        return [
            M.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=b"\0\0"
                + assignment(
                    assigned_partitions=[
                        assignment.TopicPartition(topic=topic, partitions=partitions)
                        for topic, partitions in topics.items()
                    ]
                ).encode(0),
            )
            for member_id, topics in shares.items()
        ]

    def _partitions(self, topic: str) -> list[int]:
        try:
            return list(self._client.leaders(topic))
        except ProtocolError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return []
            raise


def ranges(members: Sequence[str], partitions: Sequence[int]) -> dict[str, list[int]]:
    """`partitions` in runs as even as can be, the first members having one more."""
    share, extra = divmod(len(partitions), len(members))
    found, at = {}, 0
    for number, member in enumerate(members):
        size = share + (number < extra)
        found[member] = list(partitions[at : at + size])
        at += size
    return found


def _by_topic(
    partitions: Sequence[TopicPartition], make: type[M.OffsetFetchRequest.OffsetFetchRequestTopic]
) -> list[M.OffsetFetchRequest.OffsetFetchRequestTopic]:
    topics: dict[str, list[int]] = {}
    for topic, partition_id in partitions:
        topics.setdefault(topic, []).append(partition_id)
    return [make(name=topic, partition_indexes=ids) for topic, ids in topics.items()]
