"""One history leaves in ZooKeeper, and in the logs, the same on three Apache Kafkas and on clusters with kbrokers."""

from __future__ import annotations

import functools
import operator
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
    for name, epochs in kafka.coordinator_epochs.items():
        assert all(map(operator.ge, left.coordinator_epochs[name], epochs)), f"{name}: {left.coordinator_epochs[name]}"


def shown(left: Left) -> dict[str, Any]:
    """Return nodes and batches by their names."""
    batches = {f"{name}: batch {at}": one for name, log in left.logs.items() for at, one in enumerate(log)}
    return {**left.nodes, **batches}
