"""ConsumerGroupHeartbeat, key 68, versions 0 to 1: a member joins a consumer group, stays in it, leaves it (KIP-848).

Leaves out: nothing.

v0  first
v1  subscription by a pattern; a member chooses its own id (KIP-1082)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.groups.consumer_groups import NOT_SERVED
from kbroker.protocol import messages as M
from kbroker.rules.consumer_group_member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    UNCHANGED,
    Beat,
    BeatAnswer,
    Claimed,
    EpochsByPartition,
)
from kbroker.server.handlers.shared.answering import answer

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

MEMBER_MAKES_ID_FROM = 1


def handle(
    services: Services, request: Request, message: M.ConsumerGroupHeartbeatRequest
) -> M.ConsumerGroupHeartbeatResponse | None:
    """Answer the request once the changes are in the log, or at once if nothing changes."""
    if not services.features.consumer_groups:
        return _response(BeatAnswer(ErrorCode.UNSUPPORTED_VERSION, NOT_SERVED))
    if not services.groups.options.consumer_enabled:
        return _response(BeatAnswer(ErrorCode.UNSUPPORTED_VERSION))
    try:
        _check(message, request.api_version, services.groups.options.consumer.assignors)
    except ProtocolError as error:
        return _response(BeatAnswer(error.code, error.message))
    topics = message.subscribed_topic_names
    beat = Beat(
        message.member_id,
        message.member_epoch,
        request.client_id or "",
        f"/{request.connection.peer_host}",
        message.instance_id,
        message.rack_id,
        message.rebalance_timeout_ms,
        None if topics is None else tuple(sorted(set(topics))),
        message.subscribed_topic_regex,
        message.server_assignor,
        _owned(message),
    )

    def beaten(given: BeatAnswer) -> None:
        answer(request, _response(given), given.error)

    services.groups.consumers.heartbeat(message.group_id, beat, beaten)
    return None


def _check(message: M.ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    epoch = message.member_epoch
    if (version >= MEMBER_MAKES_ID_FROM or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH) and not (
        message.member_id.strip()
    ):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    for text, name in ((message.group_id, "GroupId"), (message.instance_id, "InstanceId"), (message.rack_id, "RackId")):
        if text is not None and not text.strip():
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if epoch == JOINING_EPOCH:
        if message.rebalance_timeout_ms == UNCHANGED:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
        if message.topic_partitions is None or message.topic_partitions:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
        if message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
    elif epoch == LEAVING_STATIC_EPOCH:
        if message.instance_id is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < LEAVING_STATIC_EPOCH:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if message.server_assignor is not None and message.server_assignor not in assignors:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {message.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _owned(message: M.ConsumerGroupHeartbeatRequest) -> Claimed | None:
    if message.topic_partitions is None:
        return None
    owned: dict[bytes, list[int]] = {}
    for topic in message.topic_partitions:
        owned.setdefault(bytes(topic.topic_id), []).extend(topic.partitions)
    return owned


def _response(given: BeatAnswer) -> M.ConsumerGroupHeartbeatResponse:
    R = M.ConsumerGroupHeartbeatResponse
    return R(
        error_code=given.error,
        error_message=given.message,
        member_id=given.member_id,
        member_epoch=given.member_epoch,
        heartbeat_interval_ms=given.heartbeat_interval_ms,
        assignment=None if given.assignment is None else R.Assignment(topic_partitions=_partitions(given.assignment)),
    )


def _partitions(assigned: EpochsByPartition) -> list[M.ConsumerGroupHeartbeatResponse.TopicPartitions]:
    T = M.ConsumerGroupHeartbeatResponse.TopicPartitions
    return [T(topic_id=topic_id, partitions=sorted(partitions)) for topic_id, partitions in assigned.items()]
