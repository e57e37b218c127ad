"""Writes transaction markers to this broker's own logs; a `transactions.markers.MarkerWriter`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.cluster.image import NO_LEADER
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.replication.acks import ReplicationWaits
from kbroker.storage.log_manager import LogManager

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.server.on_demand import OnDemand
    from kbroker.transactions.markers import Marker

LOG = logging.getLogger(__name__)


class LocalMarkers:
    """Appends markers to this broker's logs, and tells the group coordinator of those in `__consumer_offsets`.

    May be used by any thread.
    """

    def __init__(
        self,
        topics: Cluster,
        logs: LogManager,
        waits: ReplicationWaits,
        groups: OnDemand[GroupCoordinator],
        timeout_ms: int = 30_000,
    ):
        """`timeout_ms`: how long a marker waits for the replicas of its partition, if there are any."""
        self._topics = topics
        self._logs = logs
        self._waits = waits
        self._groups = groups
        self._timeout_ms = timeout_ms

    def write(self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Append `marker` to `partition`; the contract is that of `MarkerWriter.write`."""
        log = self._logs.get(partition)
        if log is None:
            done(self._why_not_here(partition))
            return
        try:
            appended = log.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                commit=marker.commit,
                bumped=marker.bumped,
                wait=False,
            )
        except KbrokerError as error:
            done(error.code)
            return
        except Exception:
            LOG.exception("%s: a marker cannot be written", partition)
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
            return

        def durable(error: ErrorCode, offset: int) -> None:
            if partition.topic == GROUP_OFFSETS_TOPIC and not error:
                self._groups.get().offsets.end_transaction(
                    partition.partition_id, marker.producer_id, marker.commit, offset
                )
            done(error)

        self._waits.add(log, appended, self._timeout_ms, durable)

    def _why_not_here(self, partition: TopicPartition) -> ErrorCode:
        known = self._topics.image.partition(partition)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known.leader in (self._topics.node_id, NO_LEADER):
            return ErrorCode.KAFKA_STORAGE_ERROR  # its directory may be offline
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
