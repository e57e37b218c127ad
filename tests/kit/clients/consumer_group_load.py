"""A group of the consumer protocol (KIP-848) of many members on raw connections: how long a rebalance takes."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.clients.group_load import await_coordinator
from tests.kit.clients.wire import WireClient

VERSION = 1
JOINING, LEAVING = 0, -1
TIMEOUT_S = 60.0


class ConsumerMember:
    """One member and its connection to the coordinator. It gives up and takes partitions as soon as it is told to."""

    def __init__(self, client: WireClient, group: str, topic: str):
        self.client = client
        self.group = group
        self.topic = topic
        self.member_id = str(uuid.uuid4())
        self.epoch = JOINING
        self.owned: list[M.ConsumerGroupHeartbeatRequest.TopicPartitions] = []
        self._has_news = False

    @property
    def partition_count(self) -> int:
        return sum(len(each.partitions) for each in self.owned)

    def send(self) -> int:
        request = M.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, rebalance_timeout_ms=-1
        )
        if self.epoch == JOINING:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = [self.topic]
            request.topic_partitions = []
        elif self._has_news:
            request.topic_partitions = self.owned
        self._has_news = False
        return self.client.send(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, request)

    def receive(self, sent: int) -> None:
        answer = self.client.receive(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, sent)
        if answer.error_code:
            raise RuntimeError(f"ConsumerGroupHeartbeat: {ErrorCode(answer.error_code).name}: {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            owned = M.ConsumerGroupHeartbeatRequest.TopicPartitions
            self.owned = [
                owned(topic_id=each.topic_id, partitions=each.partitions) for each in answer.assignment.topic_partitions
            ]
            self._has_news = True

    def leave(self) -> None:
        self.epoch = LEAVING
        self.receive(self.send())


def settle(members: list[ConsumerMember], partitions: int) -> None:
    """Send heartbeats of all members until they are in one epoch and have all `partitions` between them."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        beats = [member.send() for member in members]
        for member, sent in zip(members, beats, strict=True):
            member.receive(sent)
        if len({member.epoch for member in members}) == 1 and sum(m.partition_count for m in members) == partitions:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("the group does not settle")


def time_rebalance(host: str, port: int, topic: str, partitions: int, members: int) -> float:
    """Return the seconds from when one member leaves until the others are in one epoch and have all partitions."""
    group = f"consumers-of-{topic}"
    await_coordinator(host, port, group)
    with ExitStack() as stack:
        all_members = [
            ConsumerMember(stack.enter_context(WireClient(host, port, timeout_s=60)), group, topic)
            for _ in range(members)
        ]
        settle(all_members, partitions)
        started = time.perf_counter()
        all_members[-1].leave()
        settle(all_members[:-1], partitions)
        return time.perf_counter() - started
