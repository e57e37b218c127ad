"""Markers for partitions that other brokers lead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.transactions import marker_sender
from kbroker.transactions.marker_sender import MarkerSender
from kbroker.transactions.markers import Marker
from tests.kit.parts.peers import Sent, StandInPeers
from tests.kit.parts.transactions import MemoryMarkers

OWN, OTHER, THIRD = 1, 2, 3
HERE, A, B, C = (TopicPartition("t", number) for number in range(4))
COMMIT = Marker(7, 3, 5, True)


class Bench:
    """A sender on broker 1, whose partitions and other brokers the test controls."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {HERE: OWN, A: OTHER, B: OTHER, C: THIRD}
        self.own, self.peers = MemoryMarkers(), StandInPeers()
        self.handed: list[Callable[[], None]] = []
        self.told: list[tuple[TopicPartition, ErrorCode]] = []
        self.sender = MarkerSender(OWN, self.own, self.leaders.get, cast(Any, self.peers), self.handed.append, 30_000)

    def write(self, *partitions: TopicPartition, marker: Marker = COMMIT) -> None:
        for at in partitions:
            self.sender.write(at, marker, partial(self._note, at))

    def _note(self, at: TopicPartition, error: ErrorCode) -> None:
        self.told.append((at, error))

    def listen(self) -> list[tuple[TopicPartition, ErrorCode]]:
        """Return what was told since the last call, after what was handed to the other thread."""
        handed, self.handed[:] = list(self.handed), []
        for call in handed:
            call()
        told, self.told = self.told, []
        return told


@pytest.fixture
def bench() -> Bench:
    return Bench()


def asked(sent: Sent) -> list[tuple[int, int, int, bool, list[TopicPartition]]]:
    return [
        (m.producer_id, m.producer_epoch, m.coordinator_epoch, m.transaction_result,
         [TopicPartition(t.name, p) for t in m.topics for p in t.partition_indexes])
        for m in sent.message.markers
    ]  # fmt: skip


def reply(sent: Sent, code: ErrorCode = ErrorCode.NONE, but: dict[TopicPartition, ErrorCode] | None = None) -> None:
    R = M.WriteTxnMarkersResponse
    sent.answer(
        R(
            markers=[
                R.WritableTxnMarkerResult(
                    producer_id=m.producer_id,
                    topics=[
                        R.WritableTxnMarkerTopicResult(
                            name=t.name,
                            partitions=[
                                R.WritableTxnMarkerPartitionResult(
                                    partition_index=p, error_code=(but or {}).get(TopicPartition(t.name, p), code)
                                )
                                for p in t.partition_indexes
                            ],
                        )
                        for t in m.topics
                    ],
                )
                for m in sent.message.markers
            ]
        )
    )


def test_own_partitions_are_written_here(bench: Bench) -> None:
    bench.write(HERE)
    assert bench.own.written == [(HERE, COMMIT)] and bench.listen() == [(HERE, ErrorCode.NONE)]
    assert bench.peers.sent == []


@pytest.mark.parametrize("version", [1, 2])
def test_others_get_it_in_the_version_of_their_release(bench: Bench, version: int) -> None:
    bench.peers.versions[ApiKey.WRITE_TXN_MARKERS] = version
    bench.write(A, marker=COMMIT._replace(client_version=2))
    sent = bench.peers.take()
    assert (sent.node_id, sent.version) == (OTHER, version)
    assert asked(sent) == [(7, 3, 5, True, [A])]
    assert [m.transaction_version for m in sent.message.markers] == [2 if version == 2 else 0]
    assert bench.listen() == []
    reply(sent)
    assert bench.listen() == [(A, ErrorCode.NONE)]


def test_what_comes_while_a_request_is_under_way_goes_together_in_the_next(bench: Bench) -> None:
    bench.write(A)
    abort = Marker(8, 0, 5, False)
    bench.write(B)
    bench.write(A, B, marker=abort)
    bench.write(C)
    assert [sent.node_id for sent in bench.peers.sent] == [OTHER, THIRD]
    reply(bench.peers.take())
    bench.peers.take()
    (second,) = bench.peers.sent
    assert asked(second) == [(7, 3, 5, True, [B]), (8, 0, 5, False, [A, B])]


def test_an_answer_that_names_a_producer_and_partition_means_one_marker(bench: Bench) -> None:
    bench.write(C)
    later = COMMIT._replace(producer_epoch=4)
    bench.write(C, C)
    bench.write(C, marker=later)
    for epochs in ([3], [3], [3], [4]):
        sent = bench.peers.take()
        assert [m.producer_epoch for m in sent.message.markers] == epochs and bench.peers.sent == []
        reply(sent)
    assert bench.listen() == [(C, ErrorCode.NONE)] * 4


def test_a_request_has_a_bounded_size(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "MOST_MARKERS", 2)
    many = [TopicPartition("u", number) for number in range(6)]
    bench.leaders |= dict.fromkeys(many, OTHER)
    bench.write(*many)
    sizes = []
    while bench.peers.sent:
        sent = bench.peers.take()
        sizes.append(sum(len(partitions) for *_, partitions in asked(sent)))
        reply(sent)
    assert sizes == [1, 2, 2, 1]
    assert sorted(bench.listen()) == [(at, ErrorCode.NONE) for at in many]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_each_partition_has_its_own_outcome(bench: Bench, code: ErrorCode, told: ErrorCode) -> None:
    bench.write(HERE, A)
    bench.listen()
    bench.write(B)
    reply(bench.peers.take())
    reply(bench.peers.take(), but={B: code})
    assert bench.listen() == [(A, ErrorCode.NONE), (B, told)]


def test_what_an_answer_does_not_name_is_not_written(bench: Bench) -> None:
    bench.write(A)
    bench.peers.take().answer(M.WriteTxnMarkersResponse())
    assert bench.listen() == [(A, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_a_broken_connection_ends_the_request_and_the_next_one_goes(bench: Bench) -> None:
    bench.write(A)
    bench.write(B)
    bench.peers.take().fail()
    assert bench.listen() == [(A, ErrorCode.NETWORK_EXCEPTION)]
    reply(bench.peers.take())
    assert bench.listen() == [(B, ErrorCode.NONE)]


@pytest.mark.parametrize(
    ("leader", "told"), [(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (-1, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_without_a_leader_nothing_is_sent(bench: Bench, leader: int | None, told: ErrorCode) -> None:
    if leader is None:
        del bench.leaders[A]
    else:
        bench.leaders[A] = leader
    bench.write(A)
    assert bench.listen() == [(A, told)] and bench.peers.sent == []


def test_a_connection_that_breaks_without_a_marker_is_not_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(A)
    bench.leaders[A] = THIRD
    bench.sender.metadata_changed()
    bench.peers.take().fail()
    assert not caplog.records


def test_nobody_waits_for_a_broker_that_leads_no_more(bench: Bench) -> None:
    """A broker that is paused answers only after the request has timed out."""
    bench.write(A)
    bench.write(B)
    bench.sender.metadata_changed()
    assert bench.listen() == []
    bench.leaders[A] = bench.leaders[B] = THIRD
    bench.sender.metadata_changed()
    assert sorted(bench.listen()) == [(at, ErrorCode.NOT_LEADER_OR_FOLLOWER) for at in (A, B)]
    bench.write(A)
    late, again = bench.peers.sent
    assert again.node_id == THIRD and asked(again) == [(7, 3, 5, True, [A])]
    reply(late)
    assert bench.listen() == [], "the late answer is nobody's"
    assert bench.peers.sent == [late, again], "nothing waited behind it"
    reply(again)
    assert bench.listen() == [(A, ErrorCode.NONE)]


def test_one_who_raises_does_not_keep_others_from_hearing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.leaders[C] = OTHER
    bench.write(C)
    bench.sender.write(A, COMMIT, lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    bench.write(B)
    reply(bench.peers.take())
    reply(bench.peers.take())
    assert bench.listen() == [(C, ErrorCode.NONE), (B, ErrorCode.NONE)]
    assert "a marker's outcome" in caplog.text
