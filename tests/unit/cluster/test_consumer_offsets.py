"""Offsets in the nodes where ZooKeeper had them: durable, one group beside the other, whatever groups are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.cluster.consumer_offsets import ConsumerOffsets
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.store import Delete, Operation
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition
from tests.kit.kafka.zookeeper import nodes_of
from tests.kit.logs.home import ManualClock
from tests.kit.threads import run_all

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(str(tmp_path / "store"))
    store.connect().create(paths.CONSUMERS)
    yield store
    store.stop()


def test_what_is_committed_is_read_by_its_group_only(store: EmbeddedStore) -> None:
    offsets = ConsumerOffsets(store.connect())
    offsets.commit("g", {A: 5, B: -(2**63)})
    offsets.commit("g", {A: 2**63 - 1})
    assert [offsets.fetch("g", at) for at in (A, B)] == [2**63 - 1, -(2**63)]
    assert offsets.fetch("h", A) is None
    assert offsets.fetch("g", TopicPartition("t", 2)) is None


def test_the_nodes_are_those_of_zookeeper(store: EmbeddedStore) -> None:
    ConsumerOffsets(store.connect()).commit("g", {A: 5})
    ConsumerOffsets(store.connect()).commit("g", {A: 6})
    found = {path: (node.data, node.version) for path, node in nodes_of(store.connect()).items()}
    assert found.pop("/consumers/g/offsets/t/0") == (b"6", 1)
    above = ["/", "/consumers", "/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"]
    assert found == dict.fromkeys(above, (b"", 0))


def test_offsets_are_there_after_the_store_was_opened_again(tmp_path: Path, store: EmbeddedStore) -> None:
    ConsumerOffsets(store.connect()).commit("g", {A: 5})
    store.stop()
    again = EmbeddedStore(str(tmp_path / "store"))
    try:
        assert ConsumerOffsets(again.connect()).fetch("g", A) == 5
    finally:
        again.stop()


@pytest.mark.parametrize("group_id", ["a/b", "offsets", " ", "ü", "a" * 255, "/".join("a" * 8)])
def test_any_path_is_a_group(store: EmbeddedStore, group_id: str) -> None:
    offsets = ConsumerOffsets(store.connect())
    offsets.commit(group_id, {A: 5})
    assert offsets.fetch(group_id, A) == 5


@pytest.mark.parametrize(
    "group_id",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "../brokers",
        "a\0b",
        "a\tb",
        "\x80",
        "\uf000",
        "\U0001f600",
        "a" * 256,
        "ü" * 128,
        "/".join("a" * 9),
    ],
)
def test_what_is_in_no_path_or_too_long_is_refused_and_nothing_is_written(store: EmbeddedStore, group_id: str) -> None:
    offsets = ConsumerOffsets(store.connect())
    before = nodes_of(store.connect())
    with pytest.raises(ProtocolError) as refused:
        offsets.commit(group_id, {A: 5})
    assert refused.value.code == ErrorCode.INVALID_GROUP_ID
    with pytest.raises(ProtocolError):
        offsets.fetch(group_id, A)
    assert nodes_of(store.connect()) == before


def test_a_node_that_is_no_offset_is_named(store: EmbeddedStore) -> None:
    offsets = ConsumerOffsets(store.connect())
    offsets.commit("g/offsets/t/0", {A: 5})  # makes nodes without data on its way
    assert offsets.fetch("g", A) is None
    store.connect().set("/consumers/g/offsets/t/0", b"five")
    with pytest.raises(paths.StoreCorrupt, match="/consumers/g/offsets/t/0"):
        offsets.fetch("g", A)


def test_many_who_make_a_group_at_once_all_commit(store: EmbeddedStore) -> None:
    def commit(number: int) -> None:
        ConsumerOffsets(store.connect()).commit("g", {TopicPartition("t", number): number, A: 7})

    run_all(*(partial(commit, number) for number in range(1, 9)))
    offsets = ConsumerOffsets(store.connect())
    assert [offsets.fetch("g", TopicPartition("t", number)) for number in range(9)] == [7, *range(1, 9)]


def test_there_is_room_for_so_many_nodes_whoever_has_made_them(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    ConsumerOffsets(store.connect()).commit("before", {A: 1})
    offsets = ConsumerOffsets(store.connect(), most_nodes=10)
    offsets.commit("g", {A: 1, B: 1})
    for _ in range(2):
        with pytest.raises(ProtocolError) as refused:
            offsets.commit("h", {A: 1}, "another")
        assert refused.value.code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert "kbroker.zookeeper.offsets.max.nodes" in caplog.text and len(caplog.records) == 1
    assert len(nodes_of(store.connect())) == 2 + 9
    offsets.commit("g", {A: 2, B: 2})
    assert offsets.fetch("g", A) == 2


def test_offsets_go_when_their_group_has_committed_nothing_for_too_long(store: EmbeddedStore) -> None:
    clock = ManualClock()
    ConsumerOffsets(store.connect()).commit("found", {A: 1})
    offsets = ConsumerOffsets(store.connect(), clock, most_nodes=40, retention_ms=1000)
    offsets.commit("a", {A: 1, B: 1})
    offsets.commit("a/offsets/t", {A: 3})
    clock.now_ms += 600
    offsets.commit("a/offsets/t", {A: 4})
    offsets.expire()
    assert [offsets.fetch(group, A) for group in ("found", "a", "a/offsets/t")] == [1, 1, 4]
    clock.now_ms += 500
    offsets.expire()
    assert [offsets.fetch(group, A) for group in ("found", "a", "a/offsets/t")] == [None, None, 4]
    clock.now_ms += 600
    offsets.expire()
    assert set(nodes_of(store.connect())) == {"/", "/consumers"}
    offsets.commit("b", {TopicPartition("t", number): 1 for number in range(17)})
    assert len(nodes_of(store.connect())) == 2 + 20


def test_clients_of_one_host_make_half_of_the_nodes_and_get_them_back(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    ConsumerOffsets(store.connect()).commit("found", {A: 1})
    offsets = ConsumerOffsets(store.connect(), clock, most_nodes=40, retention_ms=1000)

    def commit(group_id: str, host: str, count: int) -> bool:
        try:
            offsets.commit(group_id, {TopicPartition("t", number): 1 for number in range(count)}, host)
        except ProtocolError as refused:
            assert refused.code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            return False
        return True

    for _ in range(2):
        assert commit("a", "greedy", 17)
        assert not commit("b", "greedy", 1) and not commit("a", "greedy", 18)
        assert commit("a", "greedy", 17) and commit("a", "modest", 18)
        assert commit("b", "modest", 7)
        clock.now_ms += 2000
        offsets.expire()
        assert offsets.fetch("a", A) is None
    assert "greedy" in caplog.text and "kbroker.zookeeper.offsets.max.nodes" in caplog.text


def test_what_is_committed_while_old_offsets_go_stays(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session, clock = store.connect(), ManualClock()
    offsets = ConsumerOffsets(session, clock, retention_ms=1000)
    offsets.commit("g", {A: 5, B: 5})
    clock.now_ms += 1000
    multi = session.multi
    late = [6]

    def interrupted(operations: Sequence[Operation]) -> Any:
        if isinstance(operations[0], Delete) and late:
            offsets.commit("g", {A: late.pop()})
        return multi(operations)

    monkeypatch.setattr(session, "multi", interrupted)
    offsets.expire()
    assert offsets.fetch("g", A) == 6
    clock.now_ms += 1000
    offsets.expire()
    assert (offsets.fetch("g", A), offsets.fetch("g", B)) == (None, None)
