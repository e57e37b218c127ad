"""The controller gives the lead back to preferred leaders by itself: when, of which brokers, and when not."""

from __future__ import annotations

import pytest

from kbroker.cluster.controller import ControllerConfig
from tests.kit.parts.control_cluster import ControlCluster

INTERVAL_S = 300


def started(*, percentage: int = 10, is_enabled: bool = True) -> ControlCluster:
    """Three brokers, of which the first is the controller."""
    cluster = ControlCluster(
        ControllerConfig(
            auto_leader_rebalance_enable=is_enabled,
            leader_imbalance_per_broker_percentage=percentage,
            leader_imbalance_check_interval_s=INTERVAL_S,
        )
    )
    for node_id in (1, 2, 3):
        cluster.start(node_id)
        cluster.settle()
    return cluster


def give_ten(cluster: ControlCluster, broker_id: int, *, away: int) -> None:
    """Make ten partitions whose preferred leader is a broker, in sync on broker 1 too, which leads the first `away`."""
    topic = f"of-{broker_id}"
    cluster.create(topic, *[(broker_id, 1)] * away)
    cluster.lose(broker_id)
    cluster.start(broker_id)
    cluster.settle()
    for partition_id in range(away):
        cluster.join_isr(topic, partition_id, broker_id)
    cluster.create(f"rest-of-{broker_id}", *[(broker_id, 1)] * (10 - away))
    assert led_away(cluster, broker_id) == away


def led_away(cluster: ControlCluster, broker_id: int) -> int:
    """Return how many of a broker's ten partitions another broker leads."""
    leaders = [
        cluster.leader(topic, partition_id)
        for topic in (f"of-{broker_id}", f"rest-of-{broker_id}")
        for partition_id in cluster.assignment(topic).replicas
    ]
    assert len(leaders) == 10
    return sum(each != broker_id for each in leaders)


def pass_interval(cluster: ControlCluster) -> None:
    cluster.clock.now_ms += INTERVAL_S * 1000 + 1000
    cluster.settle()


def test_leaders_are_given_back_to_whom_they_belong_after_a_while() -> None:
    cluster = started()
    cluster.create("t", (2, 3))
    cluster.lose(2)
    cluster.start(2)
    cluster.settle()
    cluster.join_isr("t", 0, 2)
    assert cluster.leader("t") == 3
    pass_interval(cluster)
    assert cluster.leader("t") == 2


@pytest.mark.parametrize(
    ("percentage", "away", "left"), [(10, 1, 1), (10, 2, 0), (0, 1, 0), (49, 5, 0), (50, 5, 5), (99, 9, 9)]
)
def test_leaders_are_given_back_when_more_than_the_percentage_of_a_brokers_partitions_are_led_by_others(
    percentage: int, away: int, left: int
) -> None:
    cluster = started(percentage=percentage)
    give_ten(cluster, 2, away=away)
    pass_interval(cluster)
    assert led_away(cluster, 2) == left


def test_the_percentage_is_that_of_each_broker_alone() -> None:
    """The two brokers together lack 15 % of their partitions."""
    cluster = started()
    give_ten(cluster, 2, away=1)
    give_ten(cluster, 3, away=2)
    pass_interval(cluster)
    assert (led_away(cluster, 2), led_away(cluster, 3)) == (1, 0)


def test_leaders_are_given_back_by_nobody_if_that_is_switched_off() -> None:
    cluster = started(percentage=0, is_enabled=False)
    give_ten(cluster, 2, away=9)
    pass_interval(cluster)
    pass_interval(cluster)
    assert led_away(cluster, 2) == 9
