"""Which replica a consumer is to fetch from."""

from __future__ import annotations

import pytest

from kbroker.rules.read_replica import NO_REPLICA, ReadReplica, nearest_in_rack

NEAR = ReadReplica(2, "a", 10, 100)


@pytest.mark.parametrize(
    ("rack", "leader_rack", "others", "wanted"),
    [
        ("a", "b", [NEAR], 2),
        ("a", None, [NEAR], 2),
        ("a", "a", [NEAR], NO_REPLICA),
        ("c", "b", [NEAR], NO_REPLICA),
        ("", "b", [NEAR, NEAR._replace(rack="")], NO_REPLICA),
        ("a", "b", [NEAR._replace(rack=None)], NO_REPLICA),
        ("a", "b", [], NO_REPLICA),
        ("a", "b", [NEAR, ReadReplica(1, "a", 11, 0), ReadReplica(9, "b", 99, 999)], 1),
        ("a", "b", [NEAR, ReadReplica(1, "a", 10, 101)], 1),
        ("a", "b", [NEAR, ReadReplica(3, "a", 10, 100)], 3),
    ],
)
def test_the_replica_of_the_rack_that_has_most_is_read(
    rack: str, leader_rack: str | None, others: list[ReadReplica], wanted: int
) -> None:
    assert nearest_in_rack(rack, leader_rack, others) == wanted
