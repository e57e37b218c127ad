"""The `Verifier` of a member of a cluster, which asks the coordinators on other brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from kbroker.client.errors import error_of
from kbroker.cluster.peers import PeerError, Peers
from kbroker.errors import ErrorCode, NotNow
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.state_log.deadlines import Deadlines
from kbroker.transactions.verifier import Answer, Codes, Verifier

LOG = logging.getLogger(__name__)

LOWEST_VERSION, HIGHEST_VERSION = 4, 5
"""The versions of AddPartitionsToTxn that are for brokers."""

MOST_PARTITIONS = 10_000
"""Most partitions in one request; one transaction may have more."""

ADD_RETRY_MS = 20
"""The time after which a coordinator is asked again that still ends the transaction before."""


class _Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[TopicPartition]
    is_verify: bool
    answer: Answer
    until_ms: int
    """When an addition is not tried again any more."""

    def tell(self, hand_over: Callable[[Callable[[], None]], object], codes: Codes | ErrorCode) -> None:
        """Answer on another thread: it appends, which the peers' thread must not do."""
        told = dict.fromkeys(self.partitions, codes) if isinstance(codes, ErrorCode) else codes
        hand_over(partial(self.answer, told))


class _Node:
    """The questions for one coordinator's broker."""

    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.queue: list[_Question] = []
        self.under_way: dict[str, _Question] | None = None
        """The questions of the request that has no answer yet, by transactional id; None if there is none."""

    def take(self) -> dict[str, _Question]:
        """Take the next request's questions from the queue. A transactional id is in one request only once."""
        taken: dict[str, _Question] = {}
        left, count = [], 0
        for question in self.queue:
            fits = not taken or count + len(question.partitions) <= MOST_PARTITIONS
            if fits and question.transactional_id not in taken:
                taken[question.transactional_id] = question
                count += len(question.partitions)
            else:
                left.append(question)
        self.queue = left
        return taken


class _CannotBeAsked(NotNow):
    """The coordinator's broker serves no version of AddPartitionsToTxn that is for brokers."""


class PeerVerifier:
    """The `Verifier` of a member of a cluster.

    `coordinator_of` is the broker id of a transactional id's coordinator by the metadata; -1 if it is not known now.
    `deadlines` has the thread that answers what other brokers have said.
    """

    def __init__(
        self,
        node_id: int,
        own: Verifier,
        coordinator_of: Callable[[str], int],
        peers: Peers,
        deadlines: Deadlines,
        *,
        timeout_ms: int,
        add_wait_ms: int,
    ):
        self._node_id = node_id
        self._own = own
        self._coordinator_of = coordinator_of
        self._peers = peers
        self._deadlines = deadlines
        self._timeout_ms = timeout_ms
        self._add_wait_ms = add_wait_ms
        self._lock = threading.Lock()
        """Guards `_nodes`. No other lock is taken while it is held."""
        self._nodes: dict[int, _Node] = {}

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        """The contract is that of `Verifier.verify`."""
        self._ask(_Question(transactional_id, producer_id, producer_epoch, partitions, True, answer, 0))

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        """The contract is that of `Verifier.add`."""
        until_ms = self._deadlines.now_ms() + self._add_wait_ms
        self._ask(_Question(transactional_id, producer_id, producer_epoch, partitions, False, answer, until_ms))

    def _ask(self, question: _Question) -> None:
        node_id = self._coordinator_of(question.transactional_id)
        if node_id == self._node_id:
            ask = self._own.verify if question.is_verify else self._own.add
            who = (question.transactional_id, question.producer_id, question.producer_epoch)
            ask(*who, question.partitions, question.answer)
        elif node_id < 0:
            question.answer(dict.fromkeys(question.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            with self._lock:
                self._nodes.setdefault(node_id, _Node()).queue.append(question)
            self._send(node_id)

    def _send(self, node_id: int) -> None:
        """Ask the broker what waits for it, unless a request to it is under way."""
        with self._lock:
            node = self._nodes[node_id]
            if node.under_way is not None or not node.queue:
                return
            node.under_way = questions = node.take()

        def make(version: int) -> M.Message:
            if version < LOWEST_VERSION:
                raise _CannotBeAsked(f"AddPartitionsToTxn {version} is not for brokers")
            return _request(questions.values())

        answered = partial(self._answered, node_id)
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        self._peers.ask(node_id, make, key, HIGHEST_VERSION, answered, timeout_ms=self._timeout_ms)

    def _answered(self, node_id: int, answer: M.Message | PeerError, version: int) -> None:
        with self._lock:
            node = self._nodes[node_id]
            questions, node.under_way = node.under_way or {}, None
        if isinstance(answer, PeerError):
            served = self._peers.served(node_id, ApiKey.ADD_PARTITIONS_TO_TXN)
            if 0 <= served < LOWEST_VERSION:
                LOG.info("broker %d cannot be asked for transactions: their batches are not verified", node_id)
            for question in questions.values():
                cannot = 0 <= served < LOWEST_VERSION and question.is_verify
                question.tell(self._deadlines.soon, ErrorCode.NONE if cannot else ErrorCode.NETWORK_EXCEPTION)
        else:
            assert isinstance(answer, M.AddPartitionsToTxnResponse)
            results = {result.transactional_id: result for result in answer.results_by_transaction}
            for transactional_id, question in questions.items():
                if answer.error_code:
                    self._tell(question, _top_error(answer.error_code))
                elif transactional_id in results:
                    self._tell(question, _codes(question, results[transactional_id]))
                else:
                    self._tell(question, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._send(node_id)

    def _tell(self, question: _Question, codes: Codes | ErrorCode) -> None:
        is_busy = not isinstance(codes, ErrorCode) and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
        again_ms = self._deadlines.now_ms() + ADD_RETRY_MS
        if is_busy and not question.is_verify and again_ms <= question.until_ms:
            self._deadlines.schedule(again_ms, partial(self._ask, question))
        else:
            question.tell(self._deadlines.soon, codes)


def _top_error(code: int) -> ErrorCode:
    """The error of all partitions when the whole request is refused, as in Kafka."""
    error = error_of(code)
    return ErrorCode.INVALID_TXN_STATE if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else error


def _request(questions: Collection[_Question]) -> M.AddPartitionsToTxnRequest:
    R = M.AddPartitionsToTxnRequest
    transactions = []
    for question in questions:
        topics: dict[str, list[int]] = {}
        for at in question.partitions:
            topics.setdefault(at.topic, []).append(at.partition_id)
        transactions.append(
            R.AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=question.is_verify,
                topics=[R.AddPartitionsToTxnTopic(name=name, partitions=ids) for name, ids in topics.items()],
            )
        )
    return R(transactions=transactions)


def _codes(question: _Question, result: M.AddPartitionsToTxnResponse.AddPartitionsToTxnResult) -> Codes:
    """The error of each partition that was asked for; UNKNOWN_SERVER_ERROR if the answer lacks it."""
    told = {
        TopicPartition(topic.name, each.partition_index): error_of(each.partition_error_code)
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
    return {at: told.get(at, ErrorCode.UNKNOWN_SERVER_ERROR) for at in question.partitions}
