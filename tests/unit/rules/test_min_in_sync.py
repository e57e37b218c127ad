"""What is needed for acks=all, and of which topics is warned."""

from __future__ import annotations

import pytest

from kbroker.rules.min_in_sync import move_warning, needed_in_sync, replication_warning

LOST = "with 1 replica, records are lost with its broker"
ON_ONE = "a record that acks=all has acknowledged may be on one broker only"
REFUSED = "acks=all is refused while one of them is not in sync"


def test_no_more_than_all_replicas_are_needed() -> None:
    assert [needed_in_sync(3, wanted) for wanted in (1, 2, 3, 4)] == [1, 2, 3, 3]


@pytest.mark.parametrize("min_in_sync", [1, 2, 3])
def test_one_replica_is_enough_for_a_broker_alone_only(min_in_sync: int) -> None:
    assert replication_warning(1, min_in_sync, 1) is None
    assert replication_warning(1, min_in_sync, 2) == LOST


@pytest.mark.parametrize(
    ("replicas", "min_in_sync", "says"),
    [(2, 1, ON_ONE), (2, 2, REFUSED), (2, 3, REFUSED), (3, 1, ON_ONE), (3, 2, None), (3, 3, REFUSED), (4, 3, None)],
)
def test_a_topic_that_may_lose_records_or_be_refused_for_one_broker_is_told(
    replicas: int, min_in_sync: int, says: str | None
) -> None:
    given = f"with {replicas} replicas and min.insync.replicas={min_in_sync}, "
    assert replication_warning(replicas, min_in_sync, 3) == (says and given + says)


@pytest.mark.parametrize(
    ("now", "moving", "min_in_sync", "needs"),
    [
        (1, 3, 1, None),
        (1, 3, 2, "2, and there is 1"),
        (2, 3, 3, "3, and there are 2"),
        (2, 3, 5, "3, and there are 2"),
        (2, 4, 2, None),
        (2, 2, 3, None),
    ],
)
def test_a_move_that_stops_acks_of_all_is_told(now: int, moving: int, min_in_sync: int, needs: str | None) -> None:
    says = f"until the new replicas are in sync, acks=all is refused: it needs {needs}"
    assert move_warning(now, moving, min_in_sync) == (needs and says)
