"""Asks the replicas of a partition whether one of them leads it already.

A leader that is cut off from the cluster, but not from its clients, does not hear that another one was elected. What it
has committed stays, and it can commit nothing more. But what it answers from memory may be older than what its
successor has acknowledged. So it asks first, as a read of Raft does (Ongaro 2014, 6.4): a successor is one of the ISR,
and has a newer leader epoch from before its first record on.

The question is an OffsetForLeaderEpoch in the own leader epoch, which members of every kind serve. Whoever knows a
newer epoch answers FENCED_LEADER_EPOCH. A follower in the same or an older epoch has an error of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from kbroker.client.errors import error_of
from kbroker.cluster.peers import PeerError, Peers
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.replication.hosted import Hosted

LOG = logging.getLogger(__name__)

HIGHEST_VERSION = 4

FOLLOWS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
)  # fmt: skip
"""What a replica answers that does not lead, and knows of no leader after this one."""

Checked = Callable[[ErrorCode], None]


class _Check:
    """The question about one partition that is under way, and who asks."""

    __slots__ = ("error", "left", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way: list[Checked] = []
        """Who had asked when the question was sent."""
        self.waiting: list[Checked] = []
        """Who has asked since: the answers may be older than that."""
        self.left = 0
        self.error = ErrorCode.NONE


class LeadChecks:
    """The checks of one broker. May be used by any thread.

    `hosted` is this broker's role in a partition. `hand_over` has another thread call what it is given: the peers'
    thread must not wait. A replica that does not answer within `timeout_ms` counts as one that may lead.
    """

    def __init__(
        self,
        node_id: int,
        hosted: Callable[[TopicPartition], Hosted | None],
        peers: Peers,
        hand_over: Callable[[Callable[[], None]], object],
        timeout_ms: int,
    ):
        self._node_id = node_id
        self._hosted = hosted
        self._peers = peers
        self._hand_over = hand_over
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        """Guards `_checks`. No other lock is taken while it is held."""
        self._checks: dict[TopicPartition, _Check] = {}

    def check(self, partition: TopicPartition, checked: Checked) -> None:
        """Call `checked` once, before this returns if nobody else is in the ISR.

        With NONE no other broker had taken the lead over from this one before this call. NOT_LEADER_OR_FOLLOWER:
        another broker leads, or one that may have been elected does not answer.
        """
        with self._lock:
            check = self._checks.setdefault(partition, _Check())
            check.waiting.append(checked)
            if check.under_way:
                return
            check.under_way, check.waiting = check.waiting, []
        self._ask(partition, check)

    def _ask(self, partition: TopicPartition, check: _Check) -> None:
        """Ask the others of the ISR, as it is after the last of `under_way` has come."""
        hosted = self._hosted(partition)
        if hosted is None or not hosted.is_leader:
            check.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._end(partition, check)
            return
        others = hosted.maximal_isr - {self._node_id}
        check.error, check.left = ErrorCode.NONE, len(others)
        leader_epoch = hosted.leader_epoch
        if not others:
            self._end(partition, check)
        for node_id in others:
            self._peers.ask(
                node_id,
                lambda _: _question(self._node_id, partition, leader_epoch),
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                HIGHEST_VERSION,
                partial(self._answered, partition, check, leader_epoch),
                timeout_ms=self._timeout_ms,
            )

    def _answered(
        self, partition: TopicPartition, check: _Check, leader_epoch: int, answer: M.Message | PeerError, _: int
    ) -> None:
        follows = not isinstance(answer, PeerError) and _code_of(answer) in FOLLOWS
        with self._lock:
            if not follows:
                check.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            check.left -= 1
            if check.left:
                return
        hosted = self._hosted(partition)
        if check.error and hosted is not None and hosted.is_leader and hosted.leader_epoch > leader_epoch:
            self._hand_over(partial(self._ask, partition, check))  # it leads on, in an epoch of which others have heard
        else:
            self._hand_over(partial(self._end, partition, check))

    def _end(self, partition: TopicPartition, check: _Check) -> None:
        for checked in check.under_way:
            try:
                checked(check.error)
            except Exception:
                LOG.exception("%s: who has asked whether it is led here", partition)
        with self._lock:
            check.under_way, check.waiting = check.waiting, []
            if not check.under_way:
                del self._checks[partition]
                return
        self._hand_over(partial(self._ask, partition, check))


def _question(node_id: int, partition: TopicPartition, leader_epoch: int) -> M.OffsetForLeaderEpochRequest:
    R = M.OffsetForLeaderEpochRequest
    asked = R.OffsetForLeaderPartition(
        partition=partition.partition_id, current_leader_epoch=leader_epoch, leader_epoch=leader_epoch
    )
    return R(replica_id=node_id, topics=[R.OffsetForLeaderTopic(topic=partition.topic, partitions=[asked])])


def _code_of(answer: M.Message) -> ErrorCode:
    """The error in an answer about one partition."""
    assert isinstance(answer, M.OffsetForLeaderEpochResponse)
    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
    return error_of(codes[0]) if codes else ErrorCode.NONE
