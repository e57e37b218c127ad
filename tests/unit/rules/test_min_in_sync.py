"""What is needed for acks=all, and of which topics is warned."""

from __future__ import annotations

import pytest

from kbroker.rules.min_in_sync import needed_in_sync, replication_warning

LOST = "1 replica: records are lost with its broker"
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
    given = f"{replicas} replicas and min.insync.replicas={min_in_sync}: "
    assert replication_warning(replicas, min_in_sync, 3) == (says and given + says)
