"""Samples of a member's metrics, made from values."""

from __future__ import annotations

from kbroker._core.replica.followed import FollowedLag
from kbroker.server.member_measurements import MOST_LAGS, replica_lags


def lag(partition_id: int, behind: int) -> FollowedLag:
    return FollowedLag("t", partition_id, 7, behind, False)


def test_a_replica_whose_leader_has_not_answered_yet_has_no_lag() -> None:
    samples = replica_lags([lag(0, -1), lag(1, -1)])
    assert [(each.name, each.value) for each in samples] == [("kbroker_replica_lag_max", 0)]


def test_the_replicas_that_are_behind_most_are_told_with_the_maximum() -> None:
    samples = list(replica_lags([lag(number, number) for number in range(MOST_LAGS + 2)]))
    assert (samples[0].name, samples[0].value) == ("kbroker_replica_lag_max", MOST_LAGS + 1)
    assert [(each.value, each.labels) for each in samples[1:]] == [
        (number, ("t", str(number))) for number in range(MOST_LAGS + 1, 1, -1)
    ]
