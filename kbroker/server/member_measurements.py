"""What `/metrics` tells of a member of a cluster, by Kafka's meaning of each number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kbroker.metrics.registry import Sample
from kbroker.rules.min_in_sync import needed_in_sync

if TYPE_CHECKING:
    from kbroker._core.replica.followed import FollowedLag
    from kbroker.cluster.controller import Controller
    from kbroker.cluster.shared_topics import SharedTopics
    from kbroker.replication.partitions import ReplicatedPartitions
    from kbroker.server.replica_fetchers import ReplicaFetchers
    from kbroker.storage.log_manager import LogManager

MOST_LAGS = 1000
"""Of how many replicas the lag is told; of the others, only the maximum."""


def measure_member(
    cluster: SharedTopics,
    controller: Controller,
    partitions: ReplicatedPartitions,
    fetchers: ReplicaFetchers,
    logs: LogManager,
) -> Iterator[Sample]:
    """Leaders, ISRs and followers of this broker; as the controller, the partitions of the cluster."""
    led = {at: hosted for at, hosted in partitions.all().items() if hosted.is_leader}
    under_min = at_min = 0
    for at, hosted in led.items():
        log = logs.get(at)
        if log is not None:
            needed = needed_in_sync(len(hosted.replicas), log.options.min_in_sync)
            under_min += len(hosted.isr) < needed
            at_min += len(hosted.isr) == needed
    image = cluster.image
    everywhere = (
        [partition for topic in image.topics.values() for partition in topic.partitions]
        if cluster.is_controller
        else []
    )
    counts = partitions.counts
    yield Sample("kbroker_active_controller", cluster.is_controller)
    yield Sample("kbroker_leader_partitions", len(led))
    yield Sample("kbroker_under_replicated_partitions", sum(each.is_under_replicated for each in led.values()))
    yield Sample("kbroker_under_min_isr_partitions", under_min)
    yield Sample("kbroker_at_min_isr_partitions", at_min)
    yield Sample("kbroker_offline_partitions", sum(each.leader not in image.brokers for each in everywhere))
    yield Sample("kbroker_global_topics", len(image.topics) if cluster.is_controller else 0)
    yield Sample("kbroker_global_partitions", len(everywhere))
    yield Sample(
        "kbroker_preferred_replica_imbalance", sum(each.leader != next(iter(each.replicas), -1) for each in everywhere)
    )
    elections = controller.elections
    yield Sample("kbroker_leader_elections_total", elections.held)
    yield Sample("kbroker_leader_election_seconds_total", elections.seconds)
    yield Sample("kbroker_unclean_leader_elections_total", elections.unclean)
    yield Sample("kbroker_isr_shrinks_total", counts.shrinks)
    yield Sample("kbroker_isr_expands_total", counts.expands)
    yield Sample("kbroker_isr_changes_failed_total", counts.failed)
    yield Sample("kbroker_leader_changes_total", cluster.leader_changes)
    yield from replica_lags(fetchers.fetchers.lag().values())
    yield Sample("kbroker_replica_bytes_in_total", fetchers.bytes_in)
    yield Sample("kbroker_replica_fetches_failed_total", fetchers.failed)
    yield Sample("kbroker_replica_damaged_answers_total", fetchers.damaged)
    yield Sample("kbroker_replica_damaged_logs_total", counts.damaged)
    yield Sample("kbroker_replica_truncations_total", fetchers.fetchers.truncations)
    yield Sample("kbroker_replica_new_beginnings_total", fetchers.fetchers.beginnings)


def replica_lags(lags: Iterable[FollowedLag]) -> Iterator[Sample]:
    """How far replicas here are behind their leaders. One whose leader has not answered yet counts as 0."""
    behind = sorted((each for each in lags if each.lag > 0), key=lambda each: -each.lag)
    yield Sample("kbroker_replica_lag_max", behind[0].lag if behind else 0)
    for each in behind[:MOST_LAGS]:
        yield Sample("kbroker_replica_lag", each.lag, (each.topic, str(each.partition_id)))
