"""Asking a coordinator on another broker whether partitions are in a transaction, or to add them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.state_log.deadlines import Deadlines
from kbroker.transactions import peer_verifier as module
from kbroker.transactions.peer_verifier import PeerVerifier
from kbroker.transactions.verifier import LocalVerifier
from tests.kit.logs.home import ManualClock
from tests.kit.parts.peers import Sent, StandInPeers
from tests.kit.parts.transactions import TransactionHome

OWN, OTHER = 1, 2
A, B = TopicPartition("t", 0), TopicPartition("u", 3)
Codes = dict[TopicPartition, ErrorCode]


class Bench:
    """A verifier on broker 1. The id "id" has its coordinator here, others on broker 2."""

    def __init__(self) -> None:
        self.home = TransactionHome()
        self.peers, self.clock = StandInPeers(), ManualClock()
        self.coordinators = {"id": OWN}
        self.deadlines = Deadlines("test", self.clock, threaded=False)
        self.verifier = PeerVerifier(
            OWN, LocalVerifier(lambda: self.home.coordinator), lambda name: self.coordinators.get(name, OTHER),
            cast(Any, self.peers), self.deadlines, timeout_ms=30_000, add_wait_ms=100,
        )  # fmt: skip
        self.told: list[Codes] = []

    def verify(
        self, name: str = "other", who: tuple[int, int] = (7, 0), at: tuple[TopicPartition, ...] = (A, B)
    ) -> None:
        self.verifier.verify(name, *who, at, lambda codes: self.told.append(dict(codes)))

    def add(self, name: str = "other", who: tuple[int, int] = (7, 0), at: tuple[TopicPartition, ...] = (A, B)) -> None:
        self.verifier.add(name, *who, at, lambda codes: self.told.append(dict(codes)))

    def listen(self, milliseconds: int = 0) -> list[Codes]:
        self.clock.now_ms += milliseconds
        self.deadlines.run_due()
        told, self.told = self.told, []
        return told


@pytest.fixture
def bench() -> Bench:
    return Bench()


def reply(sent: Sent, but: Codes | None = None, error: ErrorCode = ErrorCode.NONE) -> None:
    R = M.AddPartitionsToTxnResponse
    sent.answer(
        R(
            error_code=error,
            results_by_transaction=[
                R.AddPartitionsToTxnResult(
                    transactional_id=t.transactional_id,
                    topic_results=[
                        R.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                R.AddPartitionsToTxnPartitionResult(
                                    partition_index=p,
                                    partition_error_code=(but or {}).get(TopicPartition(topic.name, p), ErrorCode.NONE),
                                )
                                for p in topic.partitions
                            ],
                        )
                        for topic in t.topics
                    ],
                )
                for t in sent.message.transactions
            ],
        )
    )


def test_the_own_coordinator_is_asked_at_once(bench: Bench) -> None:
    who = bench.home.producer()
    bench.verify("id", who)
    assert bench.listen() == [{A: ErrorCode.TRANSACTION_ABORTABLE, B: ErrorCode.TRANSACTION_ABORTABLE}]
    bench.add("id", who)
    bench.verify("id", who)
    assert bench.listen() == [{A: ErrorCode.NONE, B: ErrorCode.NONE}] * 2 and bench.peers.sent == []


@pytest.mark.parametrize("adds", [False, True])
def test_another_broker_is_asked_and_answers_on_the_other_thread(bench: Bench, adds: bool) -> None:
    (bench.add if adds else bench.verify)()
    sent = bench.peers.take()
    (asked,) = sent.message.transactions
    assert (sent.node_id, sent.version, asked.verify_only) == (OTHER, 5, not adds)
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("other", 7, 0)
    reply(sent, {B: ErrorCode.PRODUCER_FENCED})
    assert bench.told == []
    assert bench.listen() == [{A: ErrorCode.NONE, B: ErrorCode.PRODUCER_FENCED}]


def test_questions_for_one_broker_go_together_but_one_per_transaction(bench: Bench) -> None:
    bench.verify("first")
    for name in ("x", "y", "x"):
        bench.verify(name)
    names = []
    while bench.peers.sent:
        sent = bench.peers.take()
        names.append([each.transactional_id for each in sent.message.transactions])
        reply(sent)
    assert names == [["first"], ["x", "y"], ["x"]] and len(bench.listen()) == 4


def test_a_request_has_a_bounded_size(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PARTITIONS", 3)
    many = tuple(TopicPartition("t", number) for number in range(5))
    bench.verify("first")
    for name, at in (("x", many), ("y", (A, B)), ("z", (A,)), ("w", (A,))):
        bench.verify(name, at=at)
    names = []
    while bench.peers.sent:
        sent = bench.peers.take()
        names.append([each.transactional_id for each in sent.message.transactions])
        reply(sent)
    assert names == [["first"], ["x"], ["y", "z"], ["w"]]


def test_a_coordinator_of_an_older_release_cannot_be_asked_so_the_append_goes_on(bench: Bench) -> None:
    bench.peers.versions[ApiKey.ADD_PARTITIONS_TO_TXN] = 3
    bench.verify()
    assert bench.peers.sent == [] and bench.listen() == [{A: ErrorCode.NONE, B: ErrorCode.NONE}]
    bench.add()
    assert bench.listen() == [{A: ErrorCode.NETWORK_EXCEPTION, B: ErrorCode.NETWORK_EXCEPTION}], "nobody has added them"


def test_without_a_coordinator_the_client_is_to_try_again(bench: Bench) -> None:
    bench.coordinators["other"] = -1
    bench.verify()
    assert bench.listen() == [{A: ErrorCode.COORDINATOR_NOT_AVAILABLE, B: ErrorCode.COORDINATOR_NOT_AVAILABLE}]


def test_a_broken_connection_is_told_and_the_next_request_goes(bench: Bench) -> None:
    bench.verify()
    bench.verify("next")
    bench.peers.take().fail()
    assert bench.listen() == [{A: ErrorCode.NETWORK_EXCEPTION, B: ErrorCode.NETWORK_EXCEPTION}]
    reply(bench.peers.take())
    assert bench.listen() == [{A: ErrorCode.NONE, B: ErrorCode.NONE}]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_request_refuses_all_partitions(bench: Bench, error: ErrorCode, told: ErrorCode) -> None:
    bench.verify()
    reply(bench.peers.take(), error=error)
    assert bench.listen() == [{A: told, B: told}]


def test_what_an_answer_does_not_name_is_not_in_the_transaction(bench: Bench) -> None:
    bench.verify()
    bench.peers.take().answer(M.AddPartitionsToTxnResponse())
    assert bench.listen() == [{A: ErrorCode.UNKNOWN_SERVER_ERROR, B: ErrorCode.UNKNOWN_SERVER_ERROR}]


def test_an_addition_waits_a_while_for_the_end_of_the_transaction_before(bench: Bench) -> None:
    busy = {A: ErrorCode.CONCURRENT_TRANSACTIONS, B: ErrorCode.CONCURRENT_TRANSACTIONS}
    bench.add()
    for _ in range(2):
        reply(bench.peers.take(), busy)
        assert bench.listen() == [] and bench.peers.sent == []
        assert bench.listen(20) == []
    reply(bench.peers.take())
    assert bench.listen() == [{A: ErrorCode.NONE, B: ErrorCode.NONE}]
    bench.add()
    reply(bench.peers.take(), busy)
    bench.listen(90)
    reply(bench.peers.take(), busy)
    assert bench.listen() == [busy], "it has waited long enough"


def test_a_question_is_not_asked_again(bench: Bench) -> None:
    busy = {A: ErrorCode.CONCURRENT_TRANSACTIONS, B: ErrorCode.CONCURRENT_TRANSACTIONS}
    bench.verify()
    reply(bench.peers.take(), busy)
    assert bench.listen() == [busy]
