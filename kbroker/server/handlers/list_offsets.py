"""ListOffsets, key 2, versions 0 to 9: the offset for a timestamp, or the first or last offset of a log.

Leaves out: tiered storage. Nothing is tiered: -4 is the same as -2, and -5 finds nothing (offset -1, epoch -1).

v0  a list of offsets, newest first: the starts of segments and the log's end
v1  one offset and its timestamp (KIP-79): -1 latest, -2 earliest, else the first record with that timestamp or later
v2  isolation level (KIP-98)
v3  as v2; the throttle is applied after the response
v4  current leader epoch in, leader epoch out (KIP-320)
v5  OFFSET_NOT_AVAILABLE while a new leader's high watermark is below its epoch's start (KIP-207)
v6  flexible (KIP-482)
v7  -3: the record with the largest timestamp (KIP-734)
v8  -4: earliest local (KIP-405)
v9  -5: latest tiered (KIP-1005)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kbroker._core.server.request import Request
from kbroker._core.wire.codec import lazily
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    partition_key,
)
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.leader import leader_log
from kbroker.server.handlers.shared.services import Services
from kbroker.storage.file_names import LOG
from kbroker.storage.log import Log
from kbroker.storage.segment import changed_ms

CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
"""Whoever names this id may ask a follower too."""
FIRST_WITH_NOT_AVAILABLE = 5
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

FIRST_VERSION_OF = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}

Asked = M.ListOffsetsRequest.ListOffsetsPartition
Found = M.ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(services: Services, request: Request, message: M.ListOffsetsRequest) -> M.ListOffsetsResponse:
    asked_for = Counter(
        partition_key(topic.name, part.partition_index) for topic in message.topics for part in topic.partitions
    )
    twice = {named for named, count in asked_for.items() if count > 1}

    def answers(topic: str, parts: Sequence[Asked]) -> Iterator[Found]:
        for part in parts:
            if twice and partition_key(topic, part.partition_index) in twice:
                yield _refused(part, ErrorCode.INVALID_REQUEST)
            else:
                yield _answer(services, request.api_version, message, topic, part)

    topics = (
        M.ListOffsetsResponse.ListOffsetsTopicResponse(
            name=topic.name, partitions=lazily(len(topic.partitions), answers(topic.name, topic.partitions))
        )
        for topic in message.topics
    )
    return M.ListOffsetsResponse(topics=lazily(len(message.topics), topics))


def _answer(services: Services, version: int, message: M.ListOffsetsRequest, topic: str, part: Asked) -> Found:
    try:
        if part.timestamp < 0 and version < FIRST_VERSION_OF.get(part.timestamp, version + 1):
            return _refused(part, ErrorCode.UNSUPPORTED_VERSION)
        log = leader_log(
            services, topic, part.partition_index, part.current_leader_epoch,
            or_follower=message.replica_id == DEBUGGING_REPLICA_ID,
        )  # fmt: skip
        end = _readable_end(log, message)
        is_behind = message.replica_id == CONSUMER_REPLICA_ID and _is_behind(log)
        if version == 0:
            return Found(
                partition_index=part.partition_index,
                old_style_offsets=_old_style_offsets(log, part.timestamp, part.max_num_offsets, end, services),
            )
        timestamp, offset, leader_epoch = _look_up(log, part.timestamp, end, is_behind=is_behind)
        return Found(
            partition_index=part.partition_index,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=leader_epoch if version >= 4 else NO_LEADER_EPOCH,
        )
    except KbrokerError as error:
        if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and version < FIRST_WITH_NOT_AVAILABLE:
            return _refused(part, ErrorCode.LEADER_NOT_AVAILABLE)
        return _refused(part, error.code)


def _is_behind(log: Log) -> bool:
    """Whether this leader does not know yet what was committed before its epoch began."""
    return log.state.role == "leader" and log.state.epoch_start_offset > log.high_watermark


def _refused(part: Asked, error: ErrorCode) -> Found:
    return Found(partition_index=part.partition_index, error_code=error)


def _readable_end(log: Log, message: M.ListOffsetsRequest) -> int:
    """Return the end of what the client may see: for a consumer what it can read, for others the log end offset.

    Raises ProtocolError for an isolation level that does not exist.
    """
    if message.replica_id != CONSUMER_REPLICA_ID:
        return log.log_end_offset
    if message.isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
        return log.visible_end(committed=message.isolation_level == READ_COMMITTED)
    raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, f"isolation level {message.isolation_level}")


def _look_up(log: Log, timestamp: int, end: int, *, is_behind: bool) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch for `timestamp`; (-1, -1, -1) if there is no such record below `end`.

    Raises ProtocolError (OFFSET_NOT_AVAILABLE) if the leader is behind, and `end` is not the whole truth.
    """
    if timestamp == LATEST_TIMESTAMP:
        if is_behind:
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return -1, end, log.leader_epoch
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return -1, log.log_start_offset, log.epoch_at(log.log_start_offset)
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return -1, -1, -1
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        if is_behind:
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return -1, -1, -1
    return found.timestamp, found.offset, found.leader_epoch


def _old_style_offsets(log: Log, timestamp: int, max_count: int, end: int, services: Services) -> list[int]:
    """Up to `max_count` offsets, newest first: the starts of the segments last changed at `timestamp` or before, and
    the log's end unless `timestamp` is in the past.

    The earliest and the latest timestamp (-2 and -1) ask for the first of these offsets and for all of them. Raises
    ProtocolError if `max_count` is negative.
    """
    if max_count < 0:
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{max_count} offsets")
    segments = log.state.segments()
    starts = [max(at.base_offset, log.log_start_offset) for at in segments]
    if not segments or segments[-1].size > 0:
        starts.append(log.log_end_offset)
    if timestamp == EARLIEST_TIMESTAMP:
        starts = starts[:1]
    elif timestamp != LATEST_TIMESTAMP:
        if len(starts) > len(segments) and services.clock.wall_ms() > timestamp:
            starts.pop()
        while 0 < len(starts) <= len(segments) and _changed_after(
            log, segments[len(starts) - 1].base_offset, timestamp
        ):
            starts.pop()
    offsets = starts[: -max_count - 1 : -1]
    if offsets and offsets[0] > end:
        offsets = [end] + [offset for offset in offsets if offset <= end]
    return offsets


def _changed_after(log: Log, base_offset: int, timestamp: int) -> bool:
    """Whether a segment was last changed after `timestamp`, or is deleted."""
    try:
        return changed_ms(log.path_of(base_offset, LOG)) > timestamp
    except FileNotFoundError:
        return True  # retention has deleted it since
