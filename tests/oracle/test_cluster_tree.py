"""One history leaves in ZooKeeper, and in the logs, the same on three Apache Kafkas and on clusters with kbrokers."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.oracle.listed import assert_same_but_for
from tests.oracle.tree_history import Left, left_by

KAFKAS = ("kafka", "kafka", "kafka")


@functools.cache
def left_by_kafka() -> Left:
    return left_by(KAFKAS)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "kinds",
    [
        KAFKAS,
        ("kbroker", "kbroker", "kbroker"),
        ("kbroker", "kafka", "kafka"),
        ("kafka", "kbroker", "kbroker"),
    ],
    ids="-".join,
)
def test_a_history_leaves_the_same_nodes_and_the_same_bytes(kinds: tuple[str, ...]) -> None:
    left, kafka = left_by(kinds), left_by_kafka()
    assert_same_but_for((), shown(kafka), shown(left))
    assert left.logs == kafka.logs


def shown(left: Left) -> dict[str, Any]:
    """Return the nodes without that of producer ids: kbroker asks for some when it starts, Kafka when it needs them."""
    return {path: node for path, node in left.nodes.items() if path != "/latest_producer_id_block"}
