"""Many threads at once, with the thread of the deadlines and a log that commits on a thread of its own."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from kbroker.clock import SystemClock
from kbroker.errors import ErrorCode
from kbroker.groups.coordinator import GroupCoordinator
from kbroker.groups.options import GroupOptions
from kbroker.groups.shard import GroupShard
from kbroker.model import TopicPartition
from kbroker.protocol.records import ControlType
from kbroker.rules.group import Group
from kbroker.rules.group_member import JoinAnswer, Joining, Leaving, SyncAnswer
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.state_log.replica import Committed
from kbroker.state_log.state_partition import Producer
from tests.kit.parts.replica import MemoryOffsetsTopic, MemoryReplica
from tests.kit.parts.shards import await_loaded
from tests.kit.threads import run_all
from tests.kit.wire.batches import encode_control_batch

THREADS, STEPS, GROUPS, PRODUCERS = 6, 250, ["a", "b", "c"], 3


class LateReplica(MemoryReplica):
    """Commits some appends before it returns, some on its own thread, and refuses some."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(1)
        self.queue: queue.SimpleQueue[tuple[Committed, ErrorCode, int] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = 0) -> None:
        chance = self.random.random()
        if chance < 0.1:
            self.queue.put((committed, ErrorCode.NOT_ENOUGH_REPLICAS, -1))
        elif chance < 0.6:
            self.queue.put((committed, ErrorCode.NONE, self.put(batch)))
        else:
            super().append(batch, leader_epoch, committed, guard)

    def run(self) -> None:
        while (entry := self.queue.get()) is not None:
            committed, error, base_offset = entry
            committed(error, base_offset)

    def end(self) -> None:
        self.queue.put(None)
        self.thread.join()


class Answers:
    """Counts requests and answers; no request may be answered twice."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: set[int] = set()
        self.twice: list[int] = []
        self.number = 0

    def expect(self) -> int:
        with self.lock:
            self.number += 1
            self.open.add(self.number)
            return self.number

    def came(self, number: int) -> None:
        with self.lock:
            if number not in self.open:
                self.twice.append(number)
            self.open.discard(number)


def shard_of(coordinator: GroupCoordinator) -> GroupShard:
    shard = coordinator.shards.get(0)
    assert shard is not None
    return shard


def watch_the_lock(monkeypatch: pytest.MonkeyPatch, coordinator: GroupCoordinator) -> list[str]:
    """Check that every call of a state machine holds its shard's lock; return the names of calls that did not."""
    unguarded: list[str] = []

    def watched(name: str) -> None:
        call = getattr(Group, name)

        def checked(self: Group, *arguments: object) -> object:
            if not shard_of(coordinator).lock._is_owned():  # type: ignore[attr-defined]
                unguarded.append(name)
            return call(self, *arguments)

        monkeypatch.setattr(Group, name, checked)

    for name in ("join", "sync", "heartbeat", "leave", "advance", "stored", "committed", "take_answers", "take_stores"):
        watched(name)
    return unguarded


def verify(_: TopicPartition, asked: Callable[[ErrorCode], None]) -> None:
    asked(ErrorCode.NONE)


def end_transaction(coordinator: GroupCoordinator, replica: MemoryReplica, producer_id: int, commit: bool) -> None:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    marker = encode_control_batch(kind, 1, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0)
    with shard_of(coordinator).lock:  # the replica has no lock of its own
        offset = replica.put(marker)
    coordinator.offsets.end_transaction(0, producer_id, commit, offset)


@pytest.mark.usefixtures("quick_switches")
def test_everybody_is_answered_once_whatever_happens_at_the_same_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = MemoryOffsetsTopic(1)
    replica = topic.replicas[0] = LateReplica()
    options = GroupOptions(min_session_timeout_ms=1, max_size=8)
    coordinator = GroupCoordinator(topic, options, SystemClock())
    coordinator.start()
    await_loaded(coordinator.shards)
    unguarded = watch_the_lock(monkeypatch, coordinator)
    answers = Answers()
    members: dict[str, list[tuple[str, int]]] = {group_id: [] for group_id in GROUPS}

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(STEPS):
            group_id = choose.choice(GROUPS)
            known = members[group_id]
            member_id, generation = choose.choice(known) if known and choose.random() < 0.8 else ("", -1)
            number = answers.expect()
            kind = choose.randrange(8)
            if kind <= 1:
                instance_id = choose.choice([None, None, "s"])
                protocols = {"range": choose.choice([b"1", b"2"])}
                joining = Joining(
                    member_id, instance_id, "c", "/h", 60, 40, "consumer", protocols, choose.random() < 0.3
                )

                def joined(answer: JoinAnswer, number: int = number, known: list[tuple[str, int]] = known) -> None:
                    answers.came(number)
                    if answer.member_id:
                        known.append((answer.member_id, answer.generation))

                coordinator.join(group_id, joining, joined)
            elif kind == 2:

                def synced(answer: SyncAnswer, number: int = number) -> None:
                    answers.came(number)

                given = {each: b"a" for each, _ in known[-5:]}
                coordinator.sync(group_id, generation, member_id, None, None, None, given, synced)
            elif kind == 3:
                coordinator.heartbeat(group_id, generation, member_id, None)
                answers.came(number)
            elif kind == 4:
                offsets = {TopicPartition("t", seed): CommittedOffset(number, -1, "", 1)}

                def committed(error: ErrorCode, _: object, number: int = number) -> None:
                    answers.came(number)

                coordinator.offsets.commit(group_id, generation, member_id, None, offsets, committed)
            elif kind == 5:
                offsets = {TopicPartition("t", seed): CommittedOffset(number, -1, "", 1)}

                def pending(error: ErrorCode, _: object, number: int = number) -> None:
                    answers.came(number)

                producer = Producer(seed % PRODUCERS, 0)
                coordinator.offsets.commit_transactional(group_id, producer, -1, "", None, offsets, verify, pending)
            elif kind == 6:
                end_transaction(coordinator, replica, seed % PRODUCERS, choose.random() < 0.5)
                answers.came(number)
            else:
                if choose.random() < 0.2:
                    coordinator.leave(group_id, [Leaving(member_id)])
                elif choose.random() < 0.1:
                    coordinator.delete_group(group_id)
                else:
                    coordinator.describe(group_id)
                    coordinator.offsets.fetch(group_id, None, require_stable=True)
                answers.came(number)

    run_all(*(partial(work, seed) for seed in range(THREADS)))
    finished = threading.Event()
    for _ in range(1000):  # sessions and rebalances end within 60 ms of each other
        if not answers.open or finished.wait(0.01):
            break
    replica.end()
    for producer_id in range(PRODUCERS):
        end_transaction(coordinator, replica, producer_id, True)
    shard = shard_of(coordinator)
    assert shard._in_transaction == {} and not any(served.offsets.is_busy for served in shard.groups.values())
    assert answers.open == set() and answers.twice == [] and unguarded == []
    coordinator.stop()
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text
