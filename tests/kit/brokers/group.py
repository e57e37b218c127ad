"""A broker with one topic and a coordinator for groups of one member. It refuses, lies and keeps silent as told.

Otherwise it keeps to the group protocols, the classic one and that of KIP-848. It notes in `wrongs` what a coordinator
would not forgive.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers import answers
from tests.kit.brokers.scripted import Peer, ScriptedBroker

NODE = 5
TOPIC = "t"
TOPIC_ID = b"id-of-the-topic-"
Action = int | str | Callable[[Any], Any]


class GroupBroker(ScriptedBroker):
    """A context manager. `will[api_key]` lists what becomes of the next requests of that API, in order.

    An item is an error code, "close", "silence", or a function of the request that returns the response.
    """

    def __init__(self, partitions: int = 2):
        super().__init__(self._script)
        self.partitions = partitions
        self.will: dict[ApiKey, deque[Action]] = defaultdict(deque)
        self.asked: list[tuple[ApiKey, Any]] = []
        self.wrongs: list[str] = []
        self.committed: dict[int, int] = {}
        self.generation = 0
        self.member_id = ""
        self.member_epoch = 0  # of a member of the consumer protocol
        self.is_rebalancing = False
        self.assigned: list[int] | None = None
        """Partitions that the member gets regardless of its own assignment as the leader; None: its own assignment."""
        self.target: list[int] = list(range(partitions))
        """Partitions that a member of the consumer protocol is to have."""
        self.target_id = TOPIC_ID
        self.heartbeat_ms = 10
        self.given: list[int] | None = None  # what it was told last
        self.owned: list[int] = []  # what it has told
        self._changed = threading.Condition()

    def count(self, api_key: ApiKey) -> int:
        with self._changed:
            return sum(key == api_key for key, _ in self.asked)

    def wait(self, true: Callable[[], object], timeout_s: float = 30) -> None:
        """Wait until a request has come that makes `true()` true."""
        with self._changed:
            assert self._changed.wait_for(true, timeout_s)

    def give(self, partitions: list[int]) -> None:
        """Assign these partitions to the member of the consumer protocol, instead of those it has."""
        with self._changed:
            self.target = partitions
            self.generation += 1

    def beats(self) -> list[Any]:
        """The heartbeats that have come (ConsumerGroupHeartbeat)."""
        with self._changed:
            return [message for key, message in self.asked if key == ApiKey.CONSUMER_GROUP_HEARTBEAT]

    def rebalance(self) -> None:
        """Begin a rebalance, as if another member wanted to join."""
        with self._changed:
            self.is_rebalancing = True

    def expel(self) -> None:
        """Remove the member: its id is not known any more."""
        with self._changed:
            self.member_id = ""

    def _script(self, peer: Peer) -> None:
        for asked in peer.requests():
            api_key, message = ApiKey(asked.api_key), asked.message
            with self._changed:
                self.asked.append((api_key, message))
                action = self.will[api_key].popleft() if self.will[api_key] else None
                self._changed.notify_all()
            if action == "close":
                return
            if action == "silence":
                peer.wait_for_end()
                return
            if callable(action):
                response = action(message)
            else:
                assert not isinstance(action, str)
                with self._changed:
                    response = getattr(self, f"_{api_key.name.lower()}")(message, action or 0)
            peer.respond(asked, response)

    # --- the cluster ----------------------------------------------------------------------------------------

    def _metadata(self, message: Any, code: int) -> M.Message:
        asked = [(TOPIC, TOPIC_ID)] if message.topics is None else [(row.name, row.topic_id) for row in message.topics]
        topics = [
            answers.topic(TOPIC, [NODE] * self.partitions, leader_epoch=1, topic_id=TOPIC_ID, error_code=code)
            if name == TOPIC or topic_id == TOPIC_ID
            else answers.topic(name, [], topic_id=topic_id, error_code=3 if name else 100)
            for name, topic_id in asked
        ]
        return answers.metadata({NODE: self.port}, topics)

    def _find_coordinator(self, message: Any, code: int) -> M.Message:
        R = M.FindCoordinatorResponse
        found = {"node_id": NODE, "host": "127.0.0.1", "port": self.port, "error_code": code}
        return R(coordinators=[R.Coordinator(key=key, **found) for key in message.coordinator_keys])

    def _list_offsets(self, message: Any, code: int) -> M.Message:
        R = M.ListOffsetsResponse
        rows = [
            R.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    R.ListOffsetsPartitionResponse(partition_index=row.partition_index, offset=0, error_code=code)
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
        return R(topics=rows)

    def _fetch(self, message: Any, code: int) -> M.Message:
        return M.FetchResponse(error_code=code)

    # --- the group ------------------------------------------------------------------------------------------

    def _check(self, message: Any, generation: int) -> int:
        if message.member_id != self.member_id or not self.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _join_group(self, message: Any, code: int) -> M.Message:
        R = M.JoinGroupResponse
        if not code and not message.member_id and message.group_instance_id is None:
            self.member_id = f"member-{len(self.asked)}"
            return R(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=self.member_id, protocol_name="", leader="")
        if not code and message.group_instance_id is not None and not message.member_id:
            self.member_id = f"static-{len(self.asked)}"
        elif not code and message.member_id != self.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code:
            return R(error_code=code, member_id=message.member_id, protocol_name="", leader="")
        self.generation += 1
        self.is_rebalancing = False
        first = message.protocols[0]
        row = R.JoinGroupResponseMember(member_id=self.member_id, metadata=first.metadata)
        return R(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=first.name,
            leader=self.member_id,
            member_id=self.member_id,
            members=[row],
        )

    def _sync_group(self, message: Any, code: int) -> M.Message:
        code = code or self._check(message, message.generation_id)
        assignment = b""
        if not code:
            assignment = next(bytes(row.assignment) for row in message.assignments)
        return M.SyncGroupResponse(
            error_code=code, protocol_type="consumer", protocol_name=message.protocol_name, assignment=assignment
        )

    def _heartbeat(self, message: Any, code: int) -> M.Message:
        code = code or self._check(message, message.generation_id)
        if not code and self.is_rebalancing:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return M.HeartbeatResponse(error_code=code)

    def _consumer_group_heartbeat(self, message: Any, code: int) -> M.Message:
        R = M.ConsumerGroupHeartbeatResponse
        epoch = message.member_epoch
        if not code and epoch == 0:
            self._join_by_heartbeat(message)
        elif not code and message.member_id != self.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif not code and epoch > self.generation:
            code = ErrorCode.FENCED_MEMBER_EPOCH
        if code:
            return R(error_code=code, error_message="by design")
        if epoch < 0:
            self.member_id = ""
            return R(member_id=message.member_id, member_epoch=epoch)
        if message.topic_partitions is not None:
            self.owned = [n for row in message.topic_partitions for n in row.partitions]
            if not set(self.owned) <= set(self.given or self.owned) | set(self.target):
                self.wrongs.append(f"owned, and never given: {self.owned}")
        kept = [n for n in self.owned if n in self.target]
        to_give = kept if len(kept) < len(self.owned) else self.target
        is_full = message.rebalance_timeout_ms >= 0
        assignment = None
        if is_full or to_give != self.given:
            row = R.TopicPartitions(topic_id=self.target_id, partitions=to_give)
            assignment = R.Assignment(topic_partitions=[row] if to_give else [])
            self.given = to_give
        self.member_epoch = self.generation if to_give is self.target else epoch
        return R(
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            heartbeat_interval_ms=self.heartbeat_ms,
            assignment=assignment,
        )

    def _join_by_heartbeat(self, message: Any) -> None:
        if message.topic_partitions != [] or message.rebalance_timeout_ms < 0:
            self.wrongs.append("joins without telling all")
        if message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
            self.wrongs.append("joins for nothing")
        self.member_id = message.member_id or f"member-{len(self.asked)}"
        self.generation += 1
        self.given, self.owned = None, []

    def _leave_group(self, message: Any, code: int) -> M.Message:
        R = M.LeaveGroupResponse
        rows = []
        for each in message.members:
            known = each.member_id == self.member_id
            rows.append(R.MemberResponse(member_id=each.member_id, error_code=0 if known else 25))
            self.member_id = "" if known else self.member_id
        return R(error_code=code, members=rows)

    def _offset_commit(self, message: Any, code: int) -> M.Message:
        R = M.OffsetCommitResponse
        epoch = message.generation_id_or_member_epoch
        if not self.member_epoch:
            code = code or self._check(message, epoch)
        elif not code and message.member_id != self.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif not code and epoch != self.member_epoch:
            code = ErrorCode.STALE_MEMBER_EPOCH
        topics = []
        for topic in message.topics:
            rows = []
            for row in topic.partitions:
                if not code and row.committed_offset < self.committed.get(row.partition_index, 0):
                    self.wrongs.append(f"commit behind: {row.partition_index} {row.committed_offset}")
                if not code:
                    self.committed[row.partition_index] = row.committed_offset
                rows.append(R.OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code))
            topics.append(R.OffsetCommitResponseTopic(name=topic.name, partitions=rows))
        return R(topics=topics)

    def _offset_fetch(self, message: Any, code: int) -> M.Message:
        R = M.OffsetFetchResponse
        groups = []
        for group in message.groups:
            topics = [
                R.OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=[
                        R.OffsetFetchResponsePartitions(
                            partition_index=n, committed_offset=self.committed.get(n, -1), metadata=""
                        )
                        for n in topic.partition_indexes
                    ],
                )
                for topic in group.topics
            ]
            groups.append(R.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=code))
        return R(groups=groups)
