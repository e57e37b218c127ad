"""OffsetDelete, key 47, version 0: delete a group's offsets of topics that no member is subscribed to (KIP-496).

Leaves out: nothing.

v0  first
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.OffsetDeleteRequest) -> M.OffsetDeleteResponse:
    """Answer the request at once."""
    image = services.cluster.image
    unknown: list[TopicPartition] = []
    known: dict[TopicPartition, None] = {}
    for topic in message.topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if image.partition(topic_partition) is None:
                unknown.append(topic_partition)
            else:
                known[topic_partition] = None
    error, errors = services.groups.offsets.delete(message.group_id, known)
    if error:
        return M.OffsetDeleteResponse(error_code=error)
    R = M.OffsetDeleteResponse
    topics: dict[str, list[M.OffsetDeleteResponse.OffsetDeleteResponsePartition]] = {}
    refused = ((at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for at in unknown)
    for (name, partition_id), code in chain(refused, errors.items()):
        result = R.OffsetDeleteResponsePartition(partition_index=partition_id, error_code=code)
        topics.setdefault(name, []).append(result)
    return R(topics=[R.OffsetDeleteResponseTopic(name=name, partitions=listed) for name, listed in topics.items()])
