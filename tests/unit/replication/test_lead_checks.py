"""Whoever asks is told that this broker leads only by answers that were given after it had asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from kbroker.replication.hosted import Hosted, Role
from kbroker.replication.lead_checks import FOLLOWS, LeadChecks
from tests.kit.parts.peers import Sent, StandInPeers

AT = TopicPartition("t", 0)
ME, OTHERS = 1, (2, 3)
REFUSED = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Bench:
    def __init__(self) -> None:
        self.peers = StandInPeers()
        self.hosted: Hosted | None = Hosted(
            Role.LEADER,
            NO_UUID,
            ME,
            7,
            0,
            replicas=(1, 2, 3, 4),
            isr=(1, 2),
            adding=(),
            removing=(),
            proposed=(1, 2, 3),
        )
        self.due: list[Callable[[], None]] = []
        self.told: list[tuple[str, ErrorCode]] = []
        peers: Any = self.peers
        self.checks = LeadChecks(ME, lambda at: self.hosted, peers, self.due.append, 5000)

    def check(self, name: str) -> None:
        self.checks.check(AT, lambda error: self.told.append((name, error)))

    def run(self) -> None:
        while self.due:
            self.due.pop(0)()

    def answer(self, sent: Sent, code: ErrorCode) -> None:
        R = M.OffsetForLeaderEpochResponse
        topic = R.OffsetForLeaderTopicResult(
            topic="t", partitions=[R.EpochEndOffset(partition=0, error_code=code, leader_epoch=-1, end_offset=-1)]
        )
        sent.answer(R(topics=[topic]))
        self.run()

    def lead(self, **change: Any) -> None:
        assert self.hosted is not None
        self.hosted = self.hosted._replace(**change)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert not made.checks._checks or made.peers.sent, "nothing is left of checks that are over"


def test_all_who_may_be_elected_are_asked_in_the_own_epoch(bench: Bench) -> None:
    bench.check("a")
    assert {sent.node_id for sent in bench.peers.sent} == set(OTHERS)
    for sent in bench.peers.sent:
        (topic,) = sent.message.topics
        (asked,) = topic.partitions
        assert (topic.topic, asked.partition, asked.current_leader_epoch) == ("t", 0, 7)
        assert sent.message.replica_id == ME


@pytest.mark.parametrize("code", FOLLOWS)
def test_it_leads_when_the_last_one_has_said_that_it_does_not(bench: Bench, code: ErrorCode) -> None:
    bench.check("a")
    bench.answer(bench.peers.take(), code)
    assert not bench.told
    bench.answer(bench.peers.take(), code)
    assert bench.told == [("a", ErrorCode.NONE)]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR],
)
def test_any_other_answer_may_be_that_of_a_leader(bench: Bench, code: ErrorCode) -> None:
    bench.check("a")
    bench.answer(bench.peers.take(), code)
    bench.answer(bench.peers.take(), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert bench.told == [("a", REFUSED)]


def test_no_answer_may_be_that_of_a_leader(bench: Bench) -> None:
    bench.check("a")
    bench.answer(bench.peers.take(), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.peers.take().fail()
    bench.run()
    assert bench.told == [("a", REFUSED)]


def test_who_asks_while_a_question_is_under_way_waits_for_the_next_one(bench: Bench) -> None:
    bench.check("a")
    first = [bench.peers.take(), bench.peers.take()]
    bench.check("b")
    bench.check("c")
    assert not bench.peers.sent
    for sent in first:
        bench.answer(sent, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert bench.told == [("a", ErrorCode.NONE)]
    for _ in OTHERS:
        bench.answer(bench.peers.take(), ErrorCode.FENCED_LEADER_EPOCH)
    assert bench.told[1:] == [("b", REFUSED), ("c", REFUSED)]
    assert not bench.peers.sent


def test_who_leads_on_in_a_newer_epoch_asks_again(bench: Bench) -> None:
    bench.check("a")
    bench.lead(leader_epoch=8, isr=(1, 3), proposed=None)
    bench.answer(bench.peers.take(), ErrorCode.FENCED_LEADER_EPOCH)
    bench.peers.take().fail()
    bench.run()
    (again,) = bench.peers.sent
    assert again.node_id == 3
    assert again.message.topics[0].partitions[0].current_leader_epoch == 8
    bench.answer(bench.peers.take(), ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert bench.told == [("a", ErrorCode.NONE)]


def test_nobody_is_asked_by_a_leader_alone_in_the_isr_or_by_a_follower(bench: Bench) -> None:
    bench.lead(isr=(1,), proposed=None)
    bench.check("alone")
    bench.lead(role=Role.FOLLOWER)
    bench.check("follower")
    bench.hosted = None
    bench.check("gone")
    assert bench.told == [("alone", ErrorCode.NONE), ("follower", REFUSED), ("gone", REFUSED)]
    assert not bench.peers.sent and not bench.due
