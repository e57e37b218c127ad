"""DeleteRecords, key 21, versions 0 to 2: stop serving the records below an offset (KIP-107).

Offset -1 means the high watermark. Segments that are wholly below the new log start offset are deleted by the next
retention check. Internal topics are refused, and so are topics that are only compacted. Each log directory writes one
checkpoint for the whole request. The answer comes when all live replicas have deleted the records too, or after
`timeout_ms`.
Leaves out: nothing.

v0  first
v1  the throttle is applied after the response
v2  flexible (KIP-482)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import INTERNAL_TOPICS, number_key
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.changes import log_change
from kbroker.server.handlers.shared.leader import leader_log
from kbroker.server.handlers.shared.services import Services
from kbroker.storage.log import Log

HIGH_WATERMARK = -1

Asked = M.DeleteRecordsRequest.DeleteRecordsPartition
Deleted = M.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(services: Services, request: Request, message: M.DeleteRecordsRequest) -> M.DeleteRecordsResponse | None:
    last: dict[str, dict[bytes, Asked]] = {}
    for topic in message.topics:
        if topic.partitions:
            by_number = ((number_key(part.partition_index), part) for part in topic.partitions)
            last.setdefault(topic.name, {}).update(by_number)
    checked = {name: [_checked(services, name, part) for part in parts.values()] for name, parts in last.items()}
    offsets = {one.log: one.offset for each in checked.values() for one in each if one.log is not None}
    outcomes = services.logs.delete_records_before(offsets)
    late = [log for log, offset in offsets.items() if isinstance(outcomes[log], int) and _is_late(log, offset)]
    if not late:
        return _response(request, checked, outcomes)
    left = set(late)

    def reached(log: Log, error: ErrorCode) -> None:
        # One thread makes all these calls.
        left.discard(log)
        if error:
            outcomes[log] = ProtocolError(error)
        if not left:
            answer(request, _response(request, checked, outcomes))

    for log in late:
        services.waits.await_low_watermark(log, offsets[log], message.timeout_ms, partial(reached, log))
    return None


def _is_late(log: Log, offset: int) -> bool:
    """Whether a live follower has records below `offset`."""
    return log.state.role == "leader" and log.state.low_watermark < offset


def _response(
    request: Request, checked: Mapping[str, Sequence[_Checked]], outcomes: Mapping[Log, int | KbrokerError]
) -> M.DeleteRecordsResponse:
    response = M.DeleteRecordsResponse(
        topics=[
            M.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=name, partitions=[_answer(one, outcomes) for one in each]
            )
            for name, each in checked.items()
        ]
    )
    deleted = [
        f"{topic.name}-{part.partition_index} before {part.low_watermark}"
        for topic in response.topics
        for part in topic.partitions
        if not part.error_code
    ]
    log_change(request, "records deleted:", deleted)
    return response


class _Checked(NamedTuple):
    partition_id: int
    log: Log | None
    """None if the partition is refused."""
    offset: int = -1
    error_code: ErrorCode = ErrorCode.NONE


def _checked(services: Services, topic: str, part: Asked) -> _Checked:
    try:
        log = leader_log(services, topic, part.partition_index)
        if topic in INTERNAL_TOPICS:
            raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not log.options.deleted_by_retention:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION)
        offset = log.high_watermark if part.offset == HIGH_WATERMARK else part.offset
        if not 0 <= offset <= log.high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return _Checked(part.partition_index, log, offset)
    except KbrokerError as error:
        return _Checked(part.partition_index, None, error_code=error.code)


def _answer(one: _Checked, outcomes: Mapping[Log, int | KbrokerError]) -> Deleted:
    error = one.error_code
    if one.log is not None:
        outcome = outcomes[one.log]
        error = outcome.code if isinstance(outcome, KbrokerError) else ErrorCode.NONE
    if one.log is None or error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
        return Deleted(partition_index=one.partition_id, low_watermark=-1, error_code=error)
    return Deleted(partition_index=one.partition_id, low_watermark=one.log.state.low_watermark, error_code=error)
