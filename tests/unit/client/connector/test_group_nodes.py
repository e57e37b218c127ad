"""A group's nodes in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.client.config.parsing import parse_options
from kbroker.client.config.zookeeper import ZOOKEEPER
from kbroker.client.connector.group_nodes import GroupNodes, StillOwned
from kbroker.client.connector.subscription import STATIC, Subscription
from kbroker.client.zookeeper.session import Session
from kbroker.coordination.parcels import MAX_OPERATIONS
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import TopicPartition

MANY = {TopicPartition("t", number): "g_me-0" for number in range(2 * MAX_OPERATIONS + 50)}
"""More than one transaction takes."""


@pytest.fixture
def nodes(address: str, tree: ZooKeeperStore) -> Iterator[GroupNodes]:
    session = Session(parse_options(ZOOKEEPER, None, {"zookeeper_connect": address}))
    made = GroupNodes(session, "g", "g_me")
    made.register(Subscription(STATIC, {"t": 1}), 0, lambda _: None)
    yield made
    session.close()


def test_all_partitions_are_claimed_or_none(nodes: GroupNodes, tree: ZooKeeperStore) -> None:
    nodes.claim(MANY)
    assert len(tree.children("/consumers/g/owners/t")) == len(MANY)
    assert tree.get("/consumers/g/owners/t/0")[0] == b"g_me-0"
    nodes.release(MANY)
    assert tree.children("/consumers/g/owners/t") == []
    last = len(MANY) - 1
    tree.create(f"/consumers/g/owners/t/{last}", b"other-0")
    with pytest.raises(StillOwned, match=f"t-{last} is owned by other-0"):
        nodes.claim(MANY)
    assert tree.children("/consumers/g/owners/t") == [str(last)]


def test_what_is_claimed_already_is_claimed_again(nodes: GroupNodes, tree: ZooKeeperStore) -> None:
    """The answer to an earlier attempt may have been lost."""
    some = dict(list(MANY.items())[:3])
    nodes.claim(some)
    nodes.claim(dict(list(MANY.items())[:5]))
    assert len(tree.children("/consumers/g/owners/t")) == 5


def test_offsets_of_many_partitions(nodes: GroupNodes, tree: ZooKeeperStore) -> None:
    assert nodes.offsets(MANY.keys()) == {}
    first = dict.fromkeys(list(MANY)[:150], 7)
    nodes.commit(first)
    assert nodes.offsets(MANY.keys()) == first
    every = dict.fromkeys(MANY, 1 << 40)
    nodes.commit(every)
    assert nodes.offsets(MANY.keys()) == every
    tree.set("/consumers/g/offsets/t/0", b"-1")  # Java's for none
    assert TopicPartition("t", 0) not in nodes.offsets(MANY.keys())


def test_what_has_gone_is_released_all_the_same(nodes: GroupNodes, tree: ZooKeeperStore) -> None:
    nodes.claim(MANY)
    tree.delete("/consumers/g/owners/t/3")
    nodes.release(MANY)
    assert tree.children("/consumers/g/owners/t") == []
