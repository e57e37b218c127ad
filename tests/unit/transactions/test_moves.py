"""Transactions whose coordinator moves from broker to broker, at every step of their life."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import EPOCH_VERSION, FIRST_VERSION
from kbroker.transactions.markers import Marker
from tests.kit.logs.home import ManualClock
from tests.kit.parts.moving import MovingBrokers, MovingPartition, MovingTopic
from tests.kit.parts.transactions import MemoryMarkers, TransactionHome

A = TopicPartition("t", 0)
LATE = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
RETRIED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class FencedMarkers(MemoryMarkers):
    """The markers of all brokers. A partition refuses those of a coordinator that is older than one it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[TopicPartition, int] = {}

    def write(self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        if marker.coordinator_epoch < self.newest.get(partition, -1):
            done(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            return
        self.newest[partition] = marker.coordinator_epoch
        super().write(partition, marker, done)


class Brokers(MovingBrokers[TransactionHome]):
    """Three brokers with a coordinator each, on one partition of `__transaction_state` that moves between them."""

    def __init__(self, min_in_sync: int = 1) -> None:
        self.markers, ids = FencedMarkers(), itertools.count(100)

        def make(topic: MovingTopic, clock: ManualClock) -> TransactionHome:
            home = TransactionHome(topic=topic, clock=clock, markers=self.markers)
            home.coordinator._next_producer_id = ids.__next__
            return home

        super().__init__(MovingPartition(3, min_in_sync), make)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_the_next_coordinator_knows_the_producer(brokers: Brokers) -> None:
    who = brokers.leader.producer()
    old = brokers.leader
    brokers.move(1)
    assert old.add(who, A) is ErrorCode.NOT_COORDINATOR
    assert brokers.leader.add(who, A) is ErrorCode.NONE
    brokers.move(2)
    assert brokers.leader.end(who) is ErrorCode.NONE
    assert [marker.coordinator_epoch for _, marker in brokers.markers.written] == [2]


def test_a_prepared_transaction_is_driven_on_by_the_next_coordinator(brokers: Brokers) -> None:
    who = brokers.leader.producer()
    brokers.leader.add(who, A)
    brokers.markers.hold = True
    assert brokers.leader.end(who) is ErrorCode.NONE
    brokers.markers.hold = False
    brokers.move(1)
    assert brokers.markers.of(A) == [True, True]
    assert brokers.leader.state() == "CompleteCommit"
    brokers.markers.release()
    assert brokers.leader.state() == "CompleteCommit", "the old coordinator's markers change nothing"


def test_nothing_is_driven_on_that_the_next_coordinator_could_lack(brokers: Brokers) -> None:
    """Broker 1 has the Prepare* record, broker 2 has not. Broker 1 must not write a marker and then be lost."""
    who = brokers.leader.producer()
    brokers.leader.add(who, A)
    brokers.partition.follows = False
    answers = brokers.leader.ask_end(who)
    brokers.partition.replicate(1)
    brokers.move(1)
    assert answers == [ErrorCode.NOT_COORDINATOR] and brokers.markers.written == []
    assert brokers.leader.state() == "COORDINATOR_LOAD_IN_PROGRESS"
    brokers.move(2)
    brokers.partition.replicate(0, 1)
    assert brokers.leader.state() == "Ongoing"
    assert brokers.leader.ask_end(who, commit=False) == []
    brokers.partition.replicate(0, 1)
    assert brokers.markers.of(A) == [False]


@pytest.mark.parametrize("error", LATE)
def test_a_coordinator_waits_until_its_followers_have_all(brokers: Brokers, error: ErrorCode) -> None:
    brokers.leader.producer()
    brokers.partition.follows = False
    brokers.leader.ask_init()
    brokers.partition.replicate(1)
    brokers.move(1)
    brokers.partition.fail(error)
    assert brokers.leader.state() == "COORDINATOR_LOAD_IN_PROGRESS"
    brokers.advance(100)
    assert brokers.leader.state() == "COORDINATOR_LOAD_IN_PROGRESS", "broker 2 is in the ISR and lacks it"
    brokers.partition.shrink(2)
    assert brokers.leader.state() == "Empty"


def test_a_leader_that_goes_on_in_a_new_epoch_keeps_its_state(brokers: Brokers) -> None:
    who = brokers.leader.producer()
    brokers.partition.follows = False
    answers = brokers.leader.ask_add(who, A)
    shard = brokers.leader.coordinator.shards.get(0)
    brokers.move(0)
    assert answers == [] and brokers.leader.coordinator.shards.get(0) is shard
    brokers.partition.replicate(1, 2)
    assert answers == [ErrorCode.NONE]
    brokers.partition.follows = True
    assert brokers.leader.end(who) is ErrorCode.NONE
    assert brokers.markers.written[0][1].coordinator_epoch == 1, "markers are written in the epoch that it leads in"


def test_a_marker_that_was_fenced_in_an_old_epoch_is_written_again_in_the_new_one(brokers: Brokers) -> None:
    who = brokers.leader.producer()
    brokers.leader.add(who, A)
    brokers.markers.newest[A] = 1
    brokers.partition.elect(0)
    brokers.partition.elect(0)
    write, wrote = brokers.markers.write, []

    def led_on_meanwhile(partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        wrote.append(marker.coordinator_epoch)
        brokers.leader.coordinator.shards.lead(0, 2)
        write(partition, marker, done)

    brokers.markers.write = led_on_meanwhile  # type: ignore[method-assign]
    assert brokers.leader.end(who) is ErrorCode.NONE
    assert brokers.leader.state() == "PrepareCommit"
    brokers.advance(1000)
    assert wrote == [0, 2] and brokers.leader.state() == "CompleteCommit"


@dataclass
class Client:
    """A producer with the transactional id. It has one request under way, and asks again after retriable errors."""

    version: int
    who: tuple[int, int] | None = None
    is_fenced: bool = False
    joined: set[TopicPartition] = field(default_factory=set)
    """The partitions of its open transaction: the coordinator has said so."""
    call: Callable[[], list[object]] | None = None
    """Asks the coordinator again."""
    done: Callable[[object], None] | None = None
    answers: list[object] = field(default_factory=list)
    asked_fenced: bool = False


def error_of(answer: object) -> ErrorCode:
    return answer if isinstance(answer, ErrorCode) else answer.error  # type: ignore[attr-defined,no-any-return]


class Moves:
    """Two producers with one transactional id, whose coordinator moves, lags and fails whenever it likes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.brokers = Brokers(min_in_sync=2)
        self.clients = [Client(FIRST_VERSION), Client(EPOCH_VERSION)]
        self.numbers = itertools.count()
        self.told: list[tuple[frozenset[TopicPartition], bool]] = []
        """Partitions of transactions, and how their producers were told that they ended."""

    def run(self, steps: int) -> None:
        choose, partition = self.random, self.brokers.partition
        partition.follows = False
        for _ in range(steps):
            number = choose.randrange(2) if choose.random() < 0.3 else 0
            client = self.clients[number]
            do = choose.random()
            if do < 0.4:
                if client.call is not None:
                    self.asks_again(number)
                elif client.who is None or choose.random() < 0.05:
                    self.begins(number)
                elif client.joined and choose.random() < 0.5:
                    self.ends(number, choose.random() < 0.6)
                else:
                    self.adds(number)
            elif do < 0.6:
                self.fetches(choose.randrange(3))
            elif do < 0.7:
                self.moves(choose.randrange(3), tells=choose.random() < 0.7)
            elif do < 0.78:
                self.are_told(choose.randrange(3))
            elif do < 0.82:
                self.leaves_the_isr(choose.randrange(3))
            elif do < 0.88:
                self.joins_the_isr(choose.randrange(3))
            elif do < 0.91:
                partition.follows = choose.random() < 0.3
            elif do < 0.94:
                self.appends_fail_late(choose.choice(LATE))
            elif do < 0.97:
                self.markers_take_long(choose.random() < 0.5)
            else:
                self.time_passes(choose.choice([100, 1_000, 20_000, 61_000]))
        self.check()

    # --- clients
    def ask(self, client: Client, call: Callable[[], list[object]], done: Callable[[object], None]) -> None:
        client.call, client.done, client.asked_fenced = call, done, client.is_fenced
        client.answers = call()
        self.listen()

    def listen(self) -> None:
        self.brokers.partition.settle()
        for client in self.clients:
            if client.call is None or client.done is None or not client.answers:
                continue
            (answer,), done = client.answers, client.done
            error = error_of(answer)
            client.answers = []
            if error in RETRIED:
                continue  # `asks_again`, or it gives up by another rule
            client.call = None
            if error:
                client.who, client.joined = None, set()
            else:
                assert not client.asked_fenced, "a zombie is heard"
                done(answer)

    def begins(self, number: int) -> None:
        client = self.clients[number]
        if client.call is not None:
            return

        def initialized(answer: object) -> None:
            client.who = (answer.producer_id, answer.producer_epoch)  # type: ignore[attr-defined]
            client.joined = set()
            for other in self.clients:
                other.is_fenced = other is not client

        client.who, client.is_fenced = None, False
        self.ask(client, lambda: self.brokers.leader.ask_init(), initialized)  # type: ignore[arg-type,return-value]

    def adds(self, number: int) -> None:
        client = self.clients[number]
        if client.call is not None or client.who is None:
            return
        at, who = TopicPartition("t", next(self.numbers)), client.who
        self.ask(
            client,
            lambda: self.brokers.leader.ask_add(who, at, version=client.version),  # type: ignore[arg-type,return-value]
            lambda _: client.joined.add(at),
        )

    def ends(self, number: int, commit: bool) -> None:
        client = self.clients[number]
        if client.call is not None or client.who is None or not client.joined:
            return
        joined, who = frozenset(client.joined), client.who

        def ended(answer: object) -> None:
            self.told.append((joined, commit))
            client.joined = set()
            if client.version == EPOCH_VERSION:
                client.who = (answer.producer_id, answer.producer_epoch)  # type: ignore[attr-defined]

        def ask() -> list[object]:
            leader = self.brokers.leader
            return leader.ask_bump(who, commit) if client.version == EPOCH_VERSION else leader.ask_end(who, commit)  # type: ignore[return-value]

        self.ask(client, ask, ended)

    def asks_again(self, number: int) -> None:
        client = self.clients[number]
        if client.call is not None and not client.answers:
            if self.brokers.partition.waiting:
                return  # its request may still wait
            client.asked_fenced = client.is_fenced and client.who is not None
            client.answers = client.call()
            self.listen()

    # --- the cluster
    def moves(self, choice: int, tells: bool) -> None:
        in_sync = sorted(self.brokers.partition.in_sync)
        self.brokers.move(in_sync[choice % len(in_sync)], tells=tells)
        self.listen()

    def are_told(self, node_id: int) -> None:
        self.brokers.tell(node_id)
        self.listen()

    def fetches(self, node_id: int) -> None:
        self.brokers.partition.replicate(node_id)
        self.listen()

    def leaves_the_isr(self, node_id: int) -> None:
        self.brokers.partition.shrink(node_id)
        self.listen()

    def joins_the_isr(self, node_id: int) -> None:
        self.brokers.partition.expand(node_id)
        self.listen()

    def appends_fail_late(self, error: ErrorCode) -> None:
        self.brokers.partition.fail(error)
        self.listen()

    def markers_take_long(self, hold: bool) -> None:
        self.brokers.markers.hold = hold
        if not hold:
            self.brokers.markers.release()
        self.listen()

    def time_passes(self, milliseconds: int) -> None:
        self.brokers.advance(milliseconds)
        self.listen()

    # --- what has to hold
    def check(self) -> None:
        """End all faults, let open transactions time out, and look at the markers of every partition."""
        partition, markers = self.brokers.partition, self.brokers.markers
        partition.follows, markers.hold = True, False
        for node_id in range(3):
            partition.expand(node_id)
            self.brokers.tell(node_id)
        for _ in range(8):
            markers.release()
            self.brokers.advance(61_000)
            self.listen()
        if self.brokers.leader.coordinator.shards.get(0) is not None:
            assert self.brokers.leader.state() in (
                "Empty",
                "CompleteCommit",
                "CompleteAbort",
                "TRANSACTIONAL_ID_NOT_FOUND",
            )
        for partitions, commit in self.told:
            for at in partitions:
                assert set(markers.of(at)) == {commit}, (at, commit)
        for at in {at for at, _ in markers.written}:
            assert len(set(markers.of(at))) == 1, (at, markers.of(at))


SEEDS, STEPS = 1200, 60


def test_no_transaction_ends_both_ways_and_none_is_lost_wherever_its_coordinator_moves() -> None:
    """Run the first seeds of many histories; run more of them by `moves.run` after a change."""
    counts: Counter[bool] = Counter()
    for seed in range(SEEDS):
        moves = Moves(seed)
        try:
            moves.run(STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts.update(commit for _, commit in moves.told)
    assert min(counts[True], counts[False]) > SEEDS / 10, "the histories have too few transactions"
