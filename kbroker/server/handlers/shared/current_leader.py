"""Who leads a partition and how a client reaches it, for answers to clients that asked another broker (KIP-951)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kbroker._core.server.peer import Connection
from kbroker.cluster.image import Topic
from kbroker.model import TopicPartition
from kbroker.replication.local_replica import LEADING
from kbroker.server.handlers.shared.reachable_brokers import reachable_brokers
from kbroker.server.handlers.shared.services import Services


class CurrentLeader(NamedTuple):
    """The leader of a partition; what `_core.server.fetch.sessions.FetchSessions` asks for."""

    node_id: int
    """-1: there is none."""
    leader_epoch: int
    host: str | None
    """None: the client cannot reach the leader, or it is not alive."""
    port: int
    rack: str | None


def current_leader(
    services: Services, connection: Connection, topic: str | None, topic_id: bytes | None, partition_id: int
) -> CurrentLeader | None:
    """Return the leader of a partition, of which either the topic's name or its id is given; None if it is not known.

    What this broker has been told of its role in a partition may be newer than the metadata.
    """
    image = services.cluster.image
    known: Topic | None
    if topic_id is not None:
        known = image.topic_by_id(UUID(bytes=topic_id))
    else:
        known = image.topic(topic) if topic is not None else None
    if known is None:
        return None
    at = TopicPartition(known.name, partition_id)
    log = services.logs.get(at)
    if log is not None and log.state.role in LEADING:
        node_id, leader_epoch = services.node_id, log.leader_epoch
    else:
        partition = image.partition(at)
        if partition is None:
            return None
        node_id, leader_epoch = partition.leader, partition.leader_epoch
        hosted = None if services.partitions is None else services.partitions.get(at)
        if hosted is not None and hosted.leader_epoch > leader_epoch:
            node_id, leader_epoch = hosted.leader, hosted.leader_epoch
    reachable = next((each for each in reachable_brokers(services, image, connection) if each.node_id == node_id), None)
    if reachable is None:
        return CurrentLeader(node_id, leader_epoch, None, -1, None)
    return CurrentLeader(node_id, leader_epoch, reachable.host, reachable.port, reachable.rack)
