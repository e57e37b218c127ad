"""DeleteRecords (key 21), versions 0 to 2: records below an offset are not served any more (KIP-107).

v2 flexible (KIP-482)

Offset -1 stands for the high watermark. Whole segments below the new log start go with the next round of retention.
Refused: internal topics, and topics that are only compacted. `timeout_ms` is not used: no follower is waited for.
"""

from __future__ import annotations

from kbroker._core.processor import Request
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import INTERNAL_TOPICS
from kbroker.protocol import messages as M
from kbroker.server.handlers.changes import tell_change
from kbroker.server.handlers.leader import leader_log
from kbroker.server.services import Services

HIGH_WATERMARK = -1

Asked = M.DeleteRecordsRequest.DeleteRecordsPartition
Deleted = M.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(services: Services, request: Request, message: M.DeleteRecordsRequest) -> M.DeleteRecordsResponse:
    last: dict[str, dict[int, Asked]] = {}
    for topic in message.topics:
        if topic.partitions:
            last.setdefault(topic.name, {}).update((part.partition_index, part) for part in topic.partitions)
    response = M.DeleteRecordsResponse(
        topics=[
            M.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=name, partitions=[_delete(services, name, part) for part in partitions.values()]
            )
            for name, partitions in last.items()
        ]
    )
    deleted = [
        f"{topic.name}-{part.partition_index} before {part.low_watermark}"
        for topic in response.topics
        for part in topic.partitions
        if not part.error_code
    ]
    tell_change(request, "records deleted:", deleted)
    return response


def _delete(services: Services, topic: str, part: Asked) -> Deleted:
    try:
        log = leader_log(services, topic, part.partition_index)
        if topic in INTERNAL_TOPICS:
            raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not log.options.deleted_by_retention:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION)
        offset = log.high_watermark if part.offset == HIGH_WATERMARK else part.offset
        if not 0 <= offset <= log.high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        low_watermark = log.delete_records_before(offset)
        return Deleted(partition_index=part.partition_index, low_watermark=low_watermark)
    except KbrokerError as error:
        return Deleted(partition_index=part.partition_index, low_watermark=-1, error_code=error.code)
