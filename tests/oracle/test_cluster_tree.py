"""One history leaves in ZooKeeper, and in the logs, the same on three Apache Kafkas and on clusters with kbrokers."""

from __future__ import annotations

import functools

import pytest

from kbroker.protocol.api import SERVED, ApiKey
from tests.oracle.listed import assert_same_but_for
from tests.oracle.tree_history import Left, left_by

CAN_BE_MEMBER = ApiKey.LEADER_AND_ISR in SERVED
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
    if "kbroker" in kinds and not CAN_BE_MEMBER:
        pytest.skip("this kbroker cannot be a member of a cluster")
    left = left_by(kinds)
    assert_same_but_for((), left_by_kafka().nodes, left.nodes)
    assert left.logs == left_by_kafka().logs
