"""Many threads at once, with that of the deadlines, and one on which appends and markers are done later."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from kbroker.clock import SystemClock
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import Transaction, TransactionState
from kbroker.state_log.replica import Committed
from kbroker.transactions.answers import InitializedProducer
from kbroker.transactions.coordinator import TransactionCoordinator
from kbroker.transactions.markers import Marker
from kbroker.transactions.options import TransactionOptions
from kbroker.transactions.records import decode_value
from tests.kit.parts.replica import MemoryOffsetsTopic, MemoryReplica
from tests.kit.parts.shards import await_loaded
from tests.kit.threads import run_all

THREADS, STEPS, NAMES = 6, 300, ["a", "b", "c"]
PARTITIONS = [TopicPartition("t", number) for number in range(4)]


class Later:
    """Calls what it is given on a thread of its own."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while (call := self.queue.get()) is not None:
            call()

    def end(self) -> None:
        self.queue.put(None)
        self.thread.join()


class LateReplica(MemoryReplica):
    """Commits some appends before it returns, some later, and refuses some."""

    def __init__(self, later: Later) -> None:
        super().__init__()
        self.random = random.Random(1)
        self.later = later
        self.faults = True

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = 0) -> None:
        chance = self.random.random() if self.faults else 1.0
        if chance < 0.1:
            self.later.queue.put(partial(committed, ErrorCode.NOT_ENOUGH_REPLICAS, -1))
        elif chance < 0.2:
            committed(ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        elif chance < 0.6:
            self.later.queue.put(partial(committed, ErrorCode.NONE, self.put(batch)))
        else:
            super().append(batch, leader_epoch, committed, guard)


class LateMarkers:
    """Writes some markers before it returns, some later; every fifth has to be tried again."""

    def __init__(self, later: Later) -> None:
        self.later = later
        self.random = random.Random(2)
        self.lock = threading.Lock()
        self.written: list[tuple[TopicPartition, Marker]] = []

    def write(self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        with self.lock:
            chance = self.random.random()
            if chance >= 0.2:
                self.written.append((partition, marker))
        if chance < 0.2:
            done(ErrorCode.KAFKA_STORAGE_ERROR)
        elif chance < 0.6:
            self.later.queue.put(partial(done, ErrorCode.NONE))
        else:
            done(ErrorCode.NONE)


@pytest.mark.usefixtures("quick_switches")
def test_everybody_is_answered_once_and_the_log_knows_what_was_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later()
    topic = MemoryOffsetsTopic(1)
    replica = topic.replicas[0] = LateReplica(later)
    markers = LateMarkers(later)
    ids = iter(range(10**6))
    lock = threading.Lock()

    def next_id() -> int:
        with lock:
            return next(ids)

    options = TransactionOptions(abort_interval_ms=5, marker_retry_ms=1)
    coordinator = TransactionCoordinator(topic, options, SystemClock(), markers, next_id)
    coordinator.start()
    await_loaded(coordinator.shards)
    unguarded: list[str] = []
    shard_lock = coordinator.shards._shards[0].lock
    for name in ("init_producer_id", "add_partitions", "end", "verify", "fence", "complete", "stored", "not_stored"):

        def watched(self: Transaction, *given: object, name: str = name, call: object = getattr(Transaction, name)):  # type: ignore[no-untyped-def]
            if not shard_lock._is_owned():
                unguarded.append(name)
            return call(self, *given)  # type: ignore[operator]

        monkeypatch.setattr(Transaction, name, watched)
    open_answers: set[int] = set()
    twice: list[int] = []
    numbers = iter(range(10**6))
    owners: dict[str, tuple[int, int]] = {}

    def expect() -> int:
        with lock:
            number = next(numbers)
            open_answers.add(number)
            return number

    def came(number: int) -> None:
        with lock:
            if number not in open_answers:
                twice.append(number)
            open_answers.discard(number)

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(STEPS):
            name, number = choose.choice(NAMES), expect()
            who = owners.get(name, (0, 0))
            kind = choose.randrange(10)
            if kind < 1:

                def initialized(answer: InitializedProducer, number: int = number, name: str = name) -> None:
                    came(number)
                    if not answer.error:
                        owners[name] = answer.producer_id, answer.producer_epoch

                coordinator.init_producer_id(name, choose.choice([1, 60_000]), choose.choice([None, who]), initialized)
            elif kind < 5:
                added = choose.sample(PARTITIONS, choose.randrange(3))
                coordinator.add_partitions(name, *who, added, lambda _, number=number: came(number))  # type: ignore[misc]
            elif kind < 9:
                coordinator.end(name, *who, choose.random() < 0.5, lambda _, number=number: came(number))  # type: ignore[misc]
            else:
                coordinator.verify(name, *who, PARTITIONS)
                coordinator.describe(name)
                coordinator.list_transactions()
                coordinator.markers_waiting()
                came(number)

    run_all(*(partial(work, seed) for seed in range(THREADS)))
    replica.faults = False
    finished = threading.Event()
    for name in NAMES:  # a last transaction each, which nobody disturbs
        done = False
        for _ in range(1000):
            answers: list[InitializedProducer] = []
            coordinator.init_producer_id(name, 60_000, None, answers.append)
            errors: list[ErrorCode] = []
            if answers and not answers[0].error:
                last = answers[0].producer_id, answers[0].producer_epoch
                coordinator.add_partitions(name, *last, PARTITIONS, errors.append)
                coordinator.end(name, *last, True, errors.append)
                done = errors == [ErrorCode.NONE] * 2
            if done or finished.wait(0.01):
                break
        assert done, name
    for _ in range(1000):
        complete = all(coordinator.describe(name).state == "CompleteCommit" for name in NAMES)
        if (complete and not open_answers and not coordinator.markers_waiting()) or finished.wait(0.01):
            break
    described = {name: coordinator.describe(name) for name in NAMES}
    coordinator.stop()
    later.end()
    assert open_answers == set() and twice == [] and unguarded == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text
    decided = {
        (value.producer_id, value.producer_epoch, value.state is TransactionState.PREPARE_COMMIT)
        for key, data in replica.records()
        if (value := decode_value("", data or b"")).is_prepared
    }
    told = {(each.producer_id, each.producer_epoch, each.commit) for _, each in markers.written}
    assert told and told <= decided, "nothing is told that was not decided"
    again = TransactionCoordinator(topic, options, SystemClock(), LateMarkers(later), next_id)
    monkeypatch.setattr(again, "_abort_timed_out", lambda: None)
    again.start()
    await_loaded(again.shards)
    assert {name: again.describe(name) for name in NAMES} == described, "what was answered is in the log"
    again.stop()
