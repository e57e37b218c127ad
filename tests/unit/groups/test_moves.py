"""Groups whose coordinator moves from broker to broker, at every step of their life."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol.records import ControlType
from kbroker.rules.consumer_group_member import Beat, BeatAnswer
from kbroker.rules.group import Group
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.state_log.state_partition import Producer
from tests.kit.parts.moving import MovingBrokers, MovingPartition
from tests.kit.wire.batches import encode_control_batch

from .conftest import Home

P0 = TopicPartition("t", 0)
DONE = [(ErrorCode.NONE, frozenset[TopicPartition]())]
LATE = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
RETRIED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class Brokers(MovingBrokers[Home]):
    """Three brokers with a coordinator each, on one partition of `__consumer_offsets` that moves between them."""

    def __init__(self, min_in_sync: int = 1) -> None:
        super().__init__(MovingPartition(3, min_in_sync), lambda topic, clock: Home(topic, clock))
        for node_id, home in enumerate(self.homes):
            home.numbers = 100 * node_id

    def commit_in_transaction(self, producer: Producer, offset: int) -> list[Any]:
        answers: list[Any] = []
        self.leader.coordinator.offsets.commit_transactional(
            "g", producer, -1, "", None, {P0: CommittedOffset(offset, -1, "", self.clock.wall_ms())},
            lambda _, asked: asked(ErrorCode.NONE), lambda error, _: answers.append(error),
        )  # fmt: skip
        return answers

    def end_transaction(self, producer: Producer, commit: bool) -> list[ErrorCode]:
        """Write a marker as the leader does, which tells its own coordinator once the marker is committed."""
        answers: list[ErrorCode] = []
        home, replica = self.leader, self.partition.leading
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = encode_control_batch(
            kind, 1, producer_id=producer.producer_id, producer_epoch=producer.epoch, coordinator_epoch=0
        )
        at = replica.put(marker)

        def committed(error: ErrorCode, _: int) -> None:
            if not error:
                home.coordinator.offsets.end_transaction(0, producer.producer_id, commit, at)
            answers.append(error)

        self.partition.wait(replica.log_end_offset, at, committed)
        return answers

    def beat(self, member_id: str, epoch: int, **fields: Any) -> list[BeatAnswer]:
        answers: list[BeatAnswer] = []
        beat = Beat(member_id, epoch, "c", client_host="/h", **fields)
        self.leader.coordinator.consumers.heartbeat("k", beat, answers.append)
        return answers


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_offsets_and_members_are_known_to_the_next_coordinator(brokers: Brokers) -> None:
    old = brokers.leader
    joined = old.form()
    assert old.commit({P0: 5}, generation=1, member_id=joined.member_id) == DONE
    brokers.move(1)
    assert old.coordinator.heartbeat("g", 1, joined.member_id, None) is ErrorCode.NOT_COORDINATOR
    assert brokers.leader.coordinator.heartbeat("g", 1, joined.member_id, None) is ErrorCode.NONE
    assert brokers.leader.fetch() == {"t-0": 5}
    assert brokers.leader.commit({P0: 6}, generation=1, member_id=joined.member_id) == DONE
    assert (
        brokers.leader.commit({P0: 7}, generation=0, member_id=joined.member_id)[0][0] is ErrorCode.ILLEGAL_GENERATION
    )


def test_a_members_session_begins_anew_with_the_next_coordinator(brokers: Brokers) -> None:
    joined = brokers.leader.form(session_timeout_ms=10_000)
    brokers.advance(9_000)
    brokers.move(1)
    brokers.advance(9_000)
    assert brokers.leader.coordinator.heartbeat("g", 1, joined.member_id, None) is ErrorCode.NONE
    brokers.advance(10_001)
    assert brokers.leader.coordinator.heartbeat("g", 1, joined.member_id, None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_load_clears_what_a_failed_unload_left(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-9307: what is left of groups that were not ended is not served when the broker is the coordinator again."""
    old = brokers.leader
    members = [old.form(group_id).member_id for group_id in ("g", "h")]
    for group_id, member_id in zip(("g", "h"), members, strict=True):
        assert old.commit({P0: 5}, group_id, 1, member_id) == DONE
    ended: list[str] = []

    def end(self: Group, error: ErrorCode) -> None:
        ended.append(self.group_id)
        if len(ended) == 2:
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Group, "end", end)
        with pytest.raises(MemoryError):
            brokers.move(1)
    assert old.coordinator.heartbeat("h", 1, members[1], None) is ErrorCode.NOT_COORDINATOR
    brokers.tell(1)
    assert brokers.leader.commit({P0: 6}, "h", 1, members[1]) == DONE
    brokers.move(0)
    assert [old.fetch(group_id) for group_id in ("g", "h")] == [{"t-0": 5}, {"t-0": 6}]
    for group_id, member_id in zip(("g", "h"), members, strict=True):
        assert old.coordinator.heartbeat(group_id, 1, member_id, None) is ErrorCode.NONE


def test_a_rebalance_begins_anew_with_the_next_coordinator(brokers: Brokers) -> None:
    first = brokers.leader.form()
    waiting = brokers.leader.join()
    assert waiting == []
    brokers.move(1)
    assert [answer.error for answer in waiting] == [ErrorCode.NOT_COORDINATOR]
    waiting = brokers.leader.join()
    assert brokers.leader.coordinator.heartbeat("g", 1, first.member_id, None) is ErrorCode.REBALANCE_IN_PROGRESS
    (again,) = brokers.leader.join(member_id=first.member_id)
    assert (again.error, again.generation, len(waiting)) == (ErrorCode.NONE, 2, 1)


def test_a_leader_that_goes_on_in_a_new_epoch_keeps_waiting_members(brokers: Brokers) -> None:
    first = brokers.leader.form()
    waiting = brokers.leader.join()
    brokers.move(0)
    assert waiting == []
    (again,) = brokers.leader.join(member_id=first.member_id)
    assert again.generation == 2 and waiting[0].generation == 2


def test_a_commit_that_is_not_replicated_is_not_answered_and_the_next_coordinator_decides(brokers: Brokers) -> None:
    brokers.leader.commit({P0: 1})
    brokers.partition.follows = False
    answers = brokers.leader.commit({P0: 2})
    assert answers == [] and brokers.leader.fetch() == {"t-0": 1}
    brokers.partition.replicate(1)
    brokers.move(1)
    assert answers == [(ErrorCode.NOT_COORDINATOR, frozenset())]
    assert brokers.leader.fetch() == {"t-0": 2}, "it is loaded to the end of the log"


@pytest.mark.parametrize("error", LATE)
def test_a_commit_whose_followers_are_too_slow_is_to_be_tried_again(brokers: Brokers, error: ErrorCode) -> None:
    brokers.partition.follows = False
    answers = brokers.leader.commit({P0: 2})
    brokers.partition.fail(error)
    assert answers == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, frozenset())]


def test_pending_offsets_of_a_transaction_move_too(brokers: Brokers) -> None:
    producer = Producer(7, 0)
    assert brokers.commit_in_transaction(producer, 5) == [ErrorCode.NONE]
    brokers.move(1)
    _, (stable,) = brokers.leader.coordinator.offsets.fetch("g", [P0], require_stable=True)
    assert stable.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    brokers.end_transaction(producer, True)
    assert brokers.leader.fetch() == {"t-0": 5}
    brokers.move(2)
    assert brokers.leader.fetch() == {"t-0": 5}


def test_a_marker_that_was_not_told_is_found_in_the_log(brokers: Brokers) -> None:
    producer = Producer(7, 0)
    brokers.commit_in_transaction(producer, 5)
    brokers.partition.follows = False
    answers = brokers.end_transaction(producer, True)
    brokers.partition.replicate(1)
    brokers.move(1)
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert brokers.leader.fetch() == {"t-0": 5}


def test_members_of_a_consumer_group_beat_on_with_the_next_coordinator(brokers: Brokers) -> None:
    (joined,) = brokers.beat("m", 0, rebalance_timeout_ms=1000, topics=("t",), owned={})
    assert joined.error is ErrorCode.NONE
    brokers.move(1)
    (answer,) = brokers.beat("m", joined.member_epoch)
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, joined.member_epoch)


@dataclass
class Member:
    """A member of the consumer group. It repeats a heartbeat that has failed, as clients do."""

    member_id: str
    epoch: int = 0
    answers: list[BeatAnswer] = field(default_factory=list)
    topics: tuple[str, ...] = ("t",)


@dataclass
class ClassicMember:
    """The only member of a classic group. It joins, syncs, and commits in its generation."""

    member_id: str = ""
    generation: int = -1
    step: str = "join"
    answers: list[Any] | None = None
    """The answers to what it has asked; None if it waits for none."""
    synced: int = -1
    """The last generation whose SyncGroup was answered with success: every later coordinator knows the member."""
    tried: int = 0
    committed: int = -1
    """The newest offset whose commit was answered with success."""


class Moves:
    """Commits, transactions and members of groups whose coordinator moves, lags and fails whenever it likes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.brokers = Brokers(min_in_sync=2)
        self.brokers.partition.follows = False
        self.tried = 0
        self.committed = -1
        """The newest offset whose commit was answered with success."""
        self.answers: list[tuple[int, list[Any]]] = []
        self.producer = Producer(1, 0)
        self.in_transaction: int | None = None
        """The offset of the open transaction, if its commit was answered with success."""
        self.ending: tuple[bool, list[ErrorCode]] | None = None
        self.members = [Member("m"), Member("n")]
        self.classic = ClassicMember()
        self.counts: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        partition, choose = self.brokers.partition, self.random
        for _ in range(steps):
            do = choose.random()
            if do < 0.15:
                self.commits()
            elif do < 0.28:
                self.goes_on_with_the_transaction()
            elif do < 0.39:
                self.beats(choose.choice(self.members))
            elif do < 0.49:
                self.goes_on_in_the_classic_group()
            elif do < 0.62:
                partition.replicate(choose.randrange(3))
            elif do < 0.74:
                in_sync = sorted(partition.in_sync)
                self.brokers.move(choose.choice(in_sync), tells=choose.random() < 0.7)
            elif do < 0.82:
                self.brokers.tell(choose.randrange(3))
            elif do < 0.86:
                partition.shrink(choose.randrange(3))
            elif do < 0.91:
                partition.expand(choose.randrange(3))
            elif do < 0.94:
                partition.follows = choose.random() < 0.3
            elif do < 0.97:
                partition.fail(choose.choice(LATE))
            else:
                self.brokers.advance(choose.choice([10, 1000, 4000]))
            self.listen()
        self.check()

    def commits(self) -> None:
        """Commit the next offset of the group that has no members."""
        if self.in_transaction is None and self.ending is None:
            self.tried += 1
            self.answers.append((self.tried, self.brokers.leader.commit({P0: self.tried})))

    def goes_on_with_the_transaction(self) -> None:
        if self.ending is not None:
            is_commit, answers = self.ending
            if answers and answers[0]:
                self.ending = (is_commit, self.brokers.end_transaction(self.producer, is_commit))
        elif self.in_transaction is not None:
            is_commit = self.random.random() < 0.7
            self.ending = (is_commit, self.brokers.end_transaction(self.producer, is_commit))
        elif not self.answers:
            self.tried += 1
            self.answers.append((self.tried, self.brokers.commit_in_transaction(self.producer, self.tried)))

    def beats(self, member: Member) -> None:
        if not member.answers:
            fields: dict[str, Any] = {}
            if member.epoch == 0 or self.random.random() < 0.3:
                member.topics = self.random.choice([("t",), ("t", "u")])
                fields = {"rebalance_timeout_ms": 60_000, "topics": member.topics, "owned": {}}
            member.answers = self.brokers.beat(member.member_id, member.epoch, **fields)

    def goes_on_in_the_classic_group(self) -> None:
        member, home = self.classic, self.brokers.leader
        if member.answers is not None:
            return
        if member.step == "commit" and self.random.random() < 0.2:
            member.step = "join"
        if member.step == "join":
            times = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 1_000_000}
            member.answers = home.join("c", member.member_id, **times)
        elif member.step == "sync":
            member.answers = home.sync("c", member.generation, member.member_id, {member.member_id: b"all"})
        else:
            member.tried += 1
            member.answers = home.commit({P0: member.tried}, "c", member.generation, member.member_id)

    def listen_to_the_classic_group(self) -> None:
        member = self.classic
        if not member.answers:
            return
        (answer,), member.answers = member.answers, None
        if member.step == "commit":
            error, _ = answer
            assert not error or error in RETRIED, f"a member or its generation is lost: {error!r}"
            if not error:
                member.committed = member.tried
                self.counts["commits of a generation"] += 1
        elif answer.error:
            if member.synced >= 0:
                assert answer.error in (*RETRIED, ErrorCode.ILLEGAL_GENERATION), f"a member is lost: {answer}"
            member.step = "join"
            member.member_id = "" if member.synced < 0 else member.member_id
        elif member.step == "join":
            assert answer.generation > member.synced, "a generation is given twice"
            member.member_id, member.generation, member.step = answer.member_id, answer.generation, "sync"
        else:
            member.step, member.synced = "commit", member.generation

    def listen(self) -> None:
        self.brokers.partition.settle()
        self.listen_to_the_classic_group()
        waiting = []
        for offset, answers in self.answers:
            error = answers[0] if answers and isinstance(answers[0], ErrorCode) else answers[0][0] if answers else None
            if error is None:
                waiting.append((offset, answers))
            elif not error:
                self.counts["commits"] += 1
                is_transactional = isinstance(answers[0], ErrorCode)
                if is_transactional:
                    self.in_transaction = offset
                else:
                    self.committed = max(self.committed, offset)
            else:
                assert error in RETRIED, error
                if isinstance(answers[0], ErrorCode):
                    self.in_transaction = None
                    self.ending = (False, [error])  # it may be in the log: the producer aborts
        self.answers = waiting
        if self.ending is not None and self.ending[1] == [ErrorCode.NONE]:
            if self.ending[0] and self.in_transaction is not None:
                self.committed = max(self.committed, self.in_transaction)
                self.counts["transactions"] += 1
            self.in_transaction = self.ending = None
            self.producer = Producer(self.producer.producer_id + 1, 0)
        for member in self.members:
            if member.answers:
                (answer,), member.answers = member.answers, []
                if answer.error is ErrorCode.FENCED_MEMBER_EPOCH:
                    # Heartbeats took effect whose answers it did not get, more than one: it joins anew, as in Kafka.
                    assert "smaller member epoch" in (answer.message or ""), "a member is set back"
                    member.epoch = 0
                elif answer.error:
                    assert answer.error in RETRIED, answer
                else:
                    assert answer.member_epoch >= member.epoch, "a member is set back"
                    self.counts["beats"] += 1
                    member.epoch = answer.member_epoch
        self.look()

    def look(self) -> None:
        """Check what the coordinator says, if it serves."""
        error, fetched = self.brokers.leader.coordinator.offsets.fetch("g", [P0], False)
        if not error:
            assert self.committed <= fetched[0].offset <= self.tried, "an acknowledged offset is lost"
        error, fetched = self.brokers.leader.coordinator.offsets.fetch("c", [P0], False)
        if not error:
            assert self.classic.committed <= fetched[0].offset <= self.classic.tried, "a member's offset is lost"

    def check(self) -> None:
        partition = self.brokers.partition
        partition.follows = True
        for node_id in range(3):
            partition.expand(node_id)
            self.brokers.tell(node_id)
        self.listen()
        for _ in range(3):
            if self.ending is not None or self.in_transaction is not None:
                self.goes_on_with_the_transaction()
                self.listen()
        for _ in range(4):
            for member in self.members:
                self.beats(member)
                self.listen()
            self.goes_on_in_the_classic_group()
            self.listen()
        self.brokers.move(1)
        self.look()
        _, (stable,) = self.brokers.leader.coordinator.offsets.fetch("g", [P0], require_stable=True)
        assert not stable.error, "a transaction hangs"


SEEDS, STEPS = 800, 60


def test_nothing_that_was_acknowledged_is_lost_wherever_the_coordinator_moves() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        moves = Moves(seed)
        try:
            moves.run(STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts += moves.counts
    assert min(counts[what] for what in ("commits", "transactions", "beats", "commits of a generation")) > SEEDS / 4, (
        counts
    )
