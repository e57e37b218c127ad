"""A partition as a state machine: replayed, then written, under one leader epoch."""

from __future__ import annotations

import threading

import pytest

from kbroker.errors import ErrorCode, StorageFailed
from kbroker.model import TopicPartition
from kbroker.protocol.records import Batch
from kbroker.state_log.loader import Loader
from kbroker.state_log.state_partition import Phase, StatePartition
from tests.kit.logs.home import ManualClock
from tests.kit.parts.replica import MemoryReplica


@pytest.fixture
def replica() -> MemoryReplica:
    return MemoryReplica()


def partition_of(replica: MemoryReplica) -> StatePartition:
    return StatePartition(TopicPartition("states", 0), replica, ManualClock())


def test_what_was_appended_is_replayed_in_order(replica: MemoryReplica) -> None:
    first = partition_of(replica)
    first.activate()
    ended: list[tuple[ErrorCode, int]] = []
    first.append([(b"a", b"1"), (b"b", None)], lambda error, offset: ended.append((error, offset)))
    first.append([(b"c", b"")], lambda error, offset: ended.append((error, offset)))
    assert ended == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 2)]
    seen: list[tuple[bytes | None, bytes | None]] = []
    second = partition_of(replica)
    assert second.replay(lambda batch: seen.extend((r.key, r.value) for r in batch.records()), 1 << 20) == 3
    assert seen == [(b"a", b"1"), (b"b", None), (b"c", b"")]


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.ENDED])
def test_nothing_is_appended_before_it_is_loaded_nor_after_its_end(replica: MemoryReplica, phase: Phase) -> None:
    partition = partition_of(replica)
    if phase is Phase.ENDED:
        partition.activate()
        partition.end()
    ended: list[ErrorCode] = []
    partition.append([(b"a", b"1")], lambda error, _: ended.append(error))
    assert ended == [ErrorCode.NOT_LEADER_OR_FOLLOWER] and replica.batches == []


def test_an_ended_partition_is_not_activated_any_more(replica: MemoryReplica) -> None:
    partition = partition_of(replica)
    partition.end()
    partition.activate()
    assert partition.phase is Phase.ENDED


def test_appends_of_an_older_leader_epoch_are_fenced(replica: MemoryReplica) -> None:
    partition = partition_of(replica)
    partition.activate()
    replica.lead_again(1)
    ended: list[ErrorCode] = []
    partition.append([(b"a", b"1")], lambda error, _: ended.append(error))
    assert ended == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_an_append_that_raises_is_told_like_one_that_is_refused(
    replica: MemoryReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*_: object) -> None:
        raise StorageFailed("gone")

    monkeypatch.setattr(replica, "append", append)
    partition = partition_of(replica)
    partition.activate()
    ended: list[ErrorCode] = []
    partition.append([(b"a", b"1")], lambda error, _: ended.append(error))
    assert ended == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_replay_ends_with_its_partition(replica: MemoryReplica) -> None:
    writer = partition_of(replica)
    writer.activate()
    for _ in range(5):
        writer.append([(b"a", b"1")], lambda error, offset: None)
    partition = partition_of(replica)
    seen: list[Batch] = []

    def take(batch: Batch) -> None:
        seen.append(batch)
        partition.end()

    partition.replay(take, 1)
    assert len(seen) == 1


def test_a_replay_ends_where_no_batch_can_be_made_out(replica: MemoryReplica, caplog: pytest.LogCaptureFixture) -> None:
    writer = partition_of(replica)
    writer.activate()
    for _ in range(3):
        writer.append([(b"a", b"1")], lambda error, offset: None)
    torn = bytearray(replica.batches[1])
    torn[16] = 9  # magic
    partition = partition_of(replica)
    good = replica.batches[0]
    replica.read = lambda offset, size: good if offset == 0 else bytes(torn)  # type: ignore[method-assign]
    assert partition.replay(lambda batch: None, 1 << 20) == 1
    assert "nothing can be read from offset 1 on" in caplog.text


def test_loads_run_one_after_the_other_and_the_thread_ends_with_them(caplog: pytest.LogCaptureFixture) -> None:
    loader, order, done = Loader("test-loader"), [], threading.Event()
    loader.submit(lambda: order.append(1))
    loader.submit(lambda: 1 // 0)
    loader.submit(lambda: (order.append(2), done.set()))
    assert done.wait(10) and order == [1, 2]
    loader.stop()
    assert "a load failed" in caplog.text
    assert not any(thread.name == "test-loader" for thread in threading.enumerate())
    loader.submit(lambda: order.append(3))
    assert order == [1, 2], "nothing is loaded after the stop"
