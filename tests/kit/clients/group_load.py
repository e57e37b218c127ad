"""A consumer group of many members on raw connections: how long a rebalance takes, seen from its members."""

from __future__ import annotations

import time
from contextlib import ExitStack

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.clients.wire import WireClient

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION, FIND_VERSION, DESCRIBE_VERSION = 3, 2, 2, 1, 1, 1
ASSIGNMENT = b"\0\0\0\0\0\1\0\5topic\0\0\0\1\0\0\0\0\0\0\0\0"


class Member:
    """One member and its connection to the coordinator."""

    def __init__(self, client: WireClient, group: str):
        self.client = client
        self.group = group
        self.member_id = ""
        self.generation_id = -1

    def send_join(self, topic: str) -> int:
        protocol = M.JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=b"\0\0\0\0\0\1\0" + bytes([len(topic)]) + topic.encode()
        )
        request = M.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=30000,
            rebalance_timeout_ms=60000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return self.client.send(ApiKey.JOIN_GROUP, JOIN_VERSION, request)

    def receive_join(self, sent: int) -> list[str]:
        """Receive the answer to JoinGroup.

        Return the ids of the members if this one is the leader, else an empty list.
        """
        answer = self.client.receive(ApiKey.JOIN_GROUP, JOIN_VERSION, sent)
        if answer.error_code:
            raise RuntimeError(f"JoinGroup: {ErrorCode(answer.error_code).name}")
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        return [member.member_id for member in answer.members]

    def send_sync(self, assigned_to: list[str]) -> int:
        entry = M.SyncGroupRequest.SyncGroupRequestAssignment
        request = M.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            assignments=[entry(member_id=member_id, assignment=ASSIGNMENT) for member_id in assigned_to],
        )
        return self.client.send(ApiKey.SYNC_GROUP, SYNC_VERSION, request)

    def receive_sync(self, sent: int) -> None:
        answer = self.client.receive(ApiKey.SYNC_GROUP, SYNC_VERSION, sent)
        if answer.error_code:
            raise RuntimeError(f"SyncGroup: {ErrorCode(answer.error_code).name}")

    def send_heartbeat(self) -> int:
        request = M.HeartbeatRequest(group_id=self.group, generation_id=self.generation_id, member_id=self.member_id)
        return self.client.send(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request)

    def leave(self) -> None:
        self.client.call(
            ApiKey.LEAVE_GROUP, LEAVE_VERSION, M.LeaveGroupRequest(group_id=self.group, member_id=self.member_id)
        )


def rebalance(members: list[Member], topic: str) -> None:
    """Rebalance: all members join, the leader assigns, and all get their assignment."""
    joins = [member.send_join(topic) for member in members]
    listed = [member.receive_join(sent) for member, sent in zip(members, joins, strict=True)]
    sync_all(members, listed)


def sync_all(members: list[Member], listed: list[list[str]]) -> None:
    """Send SyncGroup for all members and wait for their assignments. The leader is the one whose list is not empty."""
    syncs = [member.send_sync(assigned) for member, assigned in zip(members, listed, strict=True)]
    for member, sent in zip(members, syncs, strict=True):
        member.receive_sync(sent)


def await_coordinator(host: str, port: int, group: str) -> None:
    deadline = time.monotonic() + 30
    with WireClient(host, port) as client:
        while time.monotonic() < deadline:
            request = M.FindCoordinatorRequest(key=group, key_type=0)
            if client.call(ApiKey.FIND_COORDINATOR, FIND_VERSION, request).error_code == 0:
                return
            time.sleep(0.1)
    raise RuntimeError("no coordinator")


def time_rebalance(host: str, port: int, topic: str, members: int) -> float:
    """Return the seconds from when one member leaves until every other one has its new assignment."""
    group = f"group-of-{topic}"
    await_coordinator(host, port, group)
    with ExitStack() as stack:
        group_members = [
            Member(stack.enter_context(WireClient(host, port, timeout_s=60)), group) for _ in range(members)
        ]
        form(group_members, topic)
        started = time.perf_counter()
        group_members[-1].leave()
        rest = group_members[:-1]
        beats = [member.send_heartbeat() for member in rest]
        for member, sent in zip(rest, beats, strict=True):
            answer = member.client.receive(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, sent)
            if answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise RuntimeError(f"Heartbeat: {ErrorCode(answer.error_code).name}")
        rebalance(rest, topic)
        return time.perf_counter() - started


def form(members: list[Member], topic: str) -> None:
    """Form one generation with all members. The first one makes the group, and joins again only when the others are
    waiting for it: a member that came later would begin another generation."""
    first, rest = members[0], members[1:]
    rebalance([first], topic)
    joins = [member.send_join(topic) for member in rest]
    describe = M.DescribeGroupsRequest(groups=[first.group])
    deadline = time.monotonic() + 30
    while len(first.client.call(ApiKey.DESCRIBE_GROUPS, DESCRIBE_VERSION, describe).groups[0].members) < len(members):
        if time.monotonic() > deadline:
            raise RuntimeError("the group does not come together")
    joins.insert(0, first.send_join(topic))
    listed = [member.receive_join(sent) for member, sent in zip(members, joins, strict=True)]
    sync_all(members, listed)
