"""AlterReplicaLogDirs, key 34, versions 0 to 2: move replicas of this broker to other log directories (KIP-113).

The move has begun when the request is answered; DescribeLogDirs shows the copy until it is done. A partition that has
no replica here is answered REPLICA_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION if it does not exist; if a replica
comes, it is made in that directory.
Leaves out: nothing.

v0  first
v1  the throttle is applied after the response (KIP-219)
v2  flexible (KIP-482)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.changes import log_change

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.AlterReplicaLogDirsResponse


def handle(
    services: Services, request: Request, message: M.AlterReplicaLogDirsRequest
) -> M.AlterReplicaLogDirsResponse:
    wanted = {
        TopicPartition(topic.name, partition_id): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for partition_id in topic.partitions
    }
    by_topic: dict[str, _Response.AlterReplicaLogDirTopicResult] = {}
    moved = []
    for each, path in wanted.items():
        error = _move(services, each, path)
        if not error:
            moved.append(f"{each} ({path})")
        topic = by_topic.setdefault(each.topic, _Response.AlterReplicaLogDirTopicResult(topic_name=each.topic))
        topic.partitions.append(
            _Response.AlterReplicaLogDirPartitionResult(partition_index=each.partition_id, error_code=error)
        )
    log_change(request, "replicas move to other log directories:", moved)
    return _Response(results=list(by_topic.values()))


def _move(services: Services, topic_partition: TopicPartition, path: str) -> ErrorCode:
    log = services.logs.get(topic_partition)
    if log is not None and log.state.state == "deleted":
        log = None
    try:
        services.logs.moves.move(topic_partition, log, path)
    except KbrokerError as error:
        return error.code
    if log is not None:
        return ErrorCode.NONE
    topic = services.cluster.image.topic(topic_partition.topic)
    is_known = topic is not None and 0 <= topic_partition.partition_id < len(topic.partitions)
    return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
