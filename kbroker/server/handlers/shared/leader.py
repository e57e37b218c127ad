"""Finds the log of a partition that a request names, with the errors that the APIs of partitions have in common."""

from __future__ import annotations

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import NO_LEADER_EPOCH, TopicPartition
from kbroker.replication.local_replica import LEADING
from kbroker.server.handlers.shared.services import Services
from kbroker.storage.log import Log


def leader_log(
    services: Services,
    topic: str,
    partition_id: int,
    current_leader_epoch: int = NO_LEADER_EPOCH,
    *,
    or_follower: bool = False,
) -> Log:
    """Return the log of a partition that this broker leads or, with `or_follower`, follows.

    Raises ProtocolError if this broker does not have it, if its directory is offline, or if `current_leader_epoch` is
    not the log's: then the client has older or newer metadata than this broker (KIP-320).
    """
    log = services.logs.get(TopicPartition(topic, partition_id))
    if log is None or log.state.state == "deleted":
        if services.logs.partition_table.knows_elsewhere(topic, partition_id):
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if log.state.state == "offline":
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
    role = log.state.role
    if role == "stopped":
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if current_leader_epoch != NO_LEADER_EPOCH and current_leader_epoch != log.leader_epoch:
        older = current_leader_epoch < log.leader_epoch
        raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
    if role not in LEADING and not or_follower:
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return log
