"""Samples of a member's metrics, made from values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kbroker._core.replica.followed import FollowedLag
from kbroker.cluster.controller import Elections
from kbroker.cluster.image import Broker, MetadataImage, Partition, Topic
from kbroker.model import TopicPartition
from kbroker.replication.hosted import Hosted, Role
from kbroker.replication.partitions import ReplicaCounts
from kbroker.server.member_measurements import MOST_LAGS, measure_member, replica_lags

ID = UUID(int=1)
OF_THE_CLUSTER = ("offline_partitions", "global_topics", "global_partitions", "preferred_replica_imbalance")


def lag(partition_id: int, behind: int) -> FollowedLag:
    return FollowedLag("t", partition_id, 7, behind, False)


def led(count: int, *isr: int) -> list[Hosted]:
    return [Hosted(Role.LEADER, ID, 1, 7, 7, (1, 2, 3), isr, (), ())] * count


def known(count: int, leader: int) -> list[Partition]:
    """Partitions of which broker 1 is the first replica."""
    return [Partition(number, leader, 7, (1, 2, 3), (1, 2, 3)) for number in range(count)]


def told(*, is_controller: bool) -> dict[str, Any]:
    """Return the samples of a member, each of which has another value. Broker 3 is dead."""
    follows = led(1, 1, 2, 3)[0]._replace(role=Role.FOLLOWER)
    hosted = [*led(50, 1, 2, 3), *led(21, 1, 2), *led(8, 1), follows]
    at = {TopicPartition("t", number): each for number, each in enumerate(hosted)}
    topics = {"a": known(40, 1), "b": known(17, 2), "c": known(5, 3)}
    image = MetadataImage("c", topics={name: Topic(name, ID, tuple(each), {}) for name, each in topics.items()})
    image.brokers = {each: Broker(each, (), None, 1) for each in (1, 2)}
    log = SimpleNamespace(options=SimpleNamespace(min_in_sync=2))
    cluster: Any = SimpleNamespace(image=image, is_controller=is_controller, leader_changes=101)
    controller: Any = SimpleNamespace(elections=Elections(held=102, seconds=1.5, unclean=103))
    partitions: Any = SimpleNamespace(
        all=lambda: at, counts=ReplicaCounts(expands=104, shrinks=105, failed=106, damaged=107)
    )
    of_logs = SimpleNamespace(lag=lambda: {0: lag(0, 108)}, truncations=109, beginnings=110)
    fetchers: Any = SimpleNamespace(fetchers=of_logs, bytes_in=111, failed=112, damaged=113)
    logs: Any = SimpleNamespace(get=lambda _: log)
    samples = list(measure_member(cluster, controller, partitions, fetchers, logs))
    assert len({each.name for each in samples}) == len(samples)
    return {each.name.removeprefix("kbroker_"): each.value for each in samples}


def test_each_number_of_a_member_has_its_own_name() -> None:
    assert told(is_controller=True) == {
        "active_controller": 1,
        "leader_partitions": 79,
        "under_replicated_partitions": 29,
        "under_min_isr_partitions": 8,
        "at_min_isr_partitions": 21,
        "offline_partitions": 5,
        "global_topics": 3,
        "global_partitions": 62,
        "preferred_replica_imbalance": 22,
        "leader_elections_total": 102,
        "leader_election_seconds_total": 1.5,
        "unclean_leader_elections_total": 103,
        "isr_shrinks_total": 105,
        "isr_expands_total": 104,
        "isr_changes_failed_total": 106,
        "leader_changes_total": 101,
        "replica_lag_max": 108,
        "replica_lag": 108,
        "replica_bytes_in_total": 111,
        "replica_fetches_failed_total": 112,
        "replica_damaged_answers_total": 113,
        "replica_damaged_logs_total": 107,
        "replica_truncations_total": 109,
        "replica_new_beginnings_total": 110,
    }


def test_numbers_of_the_cluster_are_told_by_the_controller_alone() -> None:
    by_others = told(is_controller=False)
    assert by_others == told(is_controller=True) | dict.fromkeys((*OF_THE_CLUSTER, "active_controller"), 0)


def test_a_replica_whose_leader_has_not_answered_yet_has_no_lag() -> None:
    samples = replica_lags([lag(0, -1), lag(1, -1)])
    assert [(each.name, each.value) for each in samples] == [("kbroker_replica_lag_max", 0)]


def test_the_replicas_that_are_behind_most_are_told_with_the_maximum() -> None:
    samples = list(replica_lags([lag(number, number) for number in range(MOST_LAGS + 2)]))
    assert (samples[0].name, samples[0].value) == ("kbroker_replica_lag_max", MOST_LAGS + 1)
    assert [(each.value, each.labels) for each in samples[1:]] == [
        (number, ("t", str(number))) for number in range(MOST_LAGS + 1, 1, -1)
    ]
