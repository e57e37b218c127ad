"""Writes with a check of the controller's epoch, over the embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cluster.fenced_writes import FencedWrites, Moved
from kbroker.cluster.partition_nodes import PartitionNodes, encode_state
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.store import BadVersion, Create, Delete, NodeExists, NoNode, SetData, Store
from kbroker.model import TopicPartition
from kbroker.rules.controller.commands import WriteStates
from kbroker.rules.controller.values import PartitionState

T0 = TopicPartition("t", 0)
AT = paths.partition_state_path("t", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = EmbeddedStore(str(tmp_path / "store"))
    session = made.connect()
    session.create(paths.CONTROLLER_EPOCH, paths.encode_controller_epoch(0))
    session.create("/a", b"old")
    yield session
    made.stop()


def elect(store: Store, epoch: int) -> int:
    """Write an epoch as its controller does when it is elected. Returns the version that fences its writes."""
    return store.set(paths.CONTROLLER_EPOCH, paths.encode_controller_epoch(epoch)).version


def test_a_controller_writes_until_another_is_elected_and_nothing_then(store: Store) -> None:
    writes = FencedWrites(store, elect(store, 1))
    assert not isinstance(writes.one([SetData("/a", b"1")]), Exception)
    elect(store, 2)
    with pytest.raises(Moved):
        writes.one([SetData("/a", b"2")])
    with pytest.raises(Moved):
        writes.each([[Create("/b", b"")], [SetData("/a", b"2"), Create("/c", b"")], [Delete("/a")]])
    assert store.get("/a")[0] == b"1"
    assert store.exists("/b") is store.exists("/c") is None


def test_a_controller_does_not_write_in_an_epoch_that_is_still_to_come(store: Store) -> None:
    version = elect(store, 1)
    with pytest.raises(Moved):
        FencedWrites(store, version + 1).one([SetData("/a", b"1")])
    assert store.get("/a")[0] == b"old"


def test_without_the_node_of_the_epoch_nobody_writes(store: Store) -> None:
    writes = FencedWrites(store, elect(store, 1))
    store.delete(paths.CONTROLLER_EPOCH)
    with pytest.raises(Moved):
        writes.one([SetData("/a", b"1")])
    assert store.get("/a")[0] == b"old"


def test_other_refusals_are_outcomes_of_their_transactions(store: Store) -> None:
    writes = FencedWrites(store, elect(store, 1))
    outcomes = writes.each(
        [[SetData("/a", b"1", 7)], [SetData("/none", b"1")], [Create("/a", b"")], [SetData("/a", b"1", 0)]]
    )
    assert [type(each) for each in outcomes] == [BadVersion, NoNode, NodeExists, list]


@pytest.mark.parametrize(
    ("isr", "writes_since", "is_own"),
    [((1, 2), 0, False), ((1, 2), 1, True), ((1,), 1, False), ((1, 2), 2, False)],
)
def test_after_a_lost_answer_a_state_is_ones_own_only_as_one_has_written_it(
    store: Store, isr: tuple[int, ...], writes_since: int, is_own: bool
) -> None:
    """A state of another version, or with another content, was written by somebody else."""
    version = elect(store, 1)
    for path in (
        "/brokers",
        paths.TOPICS,
        paths.topic_path("t"),
        paths.partitions_path("t"),
        paths.partition_path("t", 0),
        AT,
    ):
        store.create(path, b"{}")
    wanted = PartitionState(1, 0, (1, 2), 1, 0, 0)
    for _ in range(writes_since):
        store.set(AT, encode_state(wanted._replace(isr=isr)))
    if writes_since == 0:
        store.set(AT, b"{}")  # the write is refused for its version
    writes = FencedWrites(store, version)
    writes.is_unsure = True
    written = PartitionNodes(store, writes).write(WriteStates({T0: wanted}))
    assert written == ({T0: wanted._replace(partition_epoch=1)} if is_own else {})
