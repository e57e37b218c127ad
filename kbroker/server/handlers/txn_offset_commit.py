"""TxnOffsetCommit, key 28, versions 0 to 5: store offsets that count once the transaction is committed (KIP-98).

Leaves out: nothing.

v0  first
v1  the throttle is applied after the response
v2  leader epoch (KIP-320)
v3  flexible; generation, member id and group instance id (KIP-447): members of an old generation are refused
v4  TRANSACTION_ABORTABLE (KIP-890)
v5  adds the partition of the group's offsets to the transaction, without AddOffsetsToTxn (KIP-890)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.server.handlers.shared.answering import answer
from kbroker.state_log.state_partition import Producer

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

LOADING_KNOWN_FROM = 2  # producers before 2.0 do not know COORDINATOR_LOAD_IN_PROGRESS
ABORTABLE_KNOWN_FROM = 4
ADDING_FROM = 5


def handle(services: Services, request: Request, message: M.TxnOffsetCommitRequest) -> M.TxnOffsetCommitResponse | None:
    """Answer the request once the offsets are stored, or at once if none of the partitions exists."""
    version = request.api_version
    now_ms = services.clock.wall_ms()
    image = services.cluster.image
    unknown: list[TopicPartition] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in message.topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            if image.partition(at) is None:
                unknown.append(at)
            else:
                offsets[at] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                )
    if not offsets:
        return _response(unknown, {}, ErrorCode.NONE, frozenset())

    adds = version >= ADDING_FROM
    who = (message.transactional_id, message.producer_id, message.producer_epoch)

    def verify_or_add(partition: TopicPartition, asked: Callable[[ErrorCode], None]) -> None:
        ask = services.verifier.add if adds else services.verifier.verify
        ask(*who, [partition], lambda codes: asked(codes[partition]))

    def committed(error: ErrorCode, too_long: frozenset[TopicPartition]) -> None:
        code = _code_for_version(error, version)
        answer(request, _response(unknown, offsets, code, too_long), code)

    services.groups.offsets.commit_transactional(
        message.group_id,
        Producer(message.producer_id, message.producer_epoch),
        message.generation_id,
        message.member_id,
        message.group_instance_id,
        offsets,
        verify_or_add,
        committed,
        adds=adds,
        client_host=f"/{request.connection.peer_host}",
    )
    return None


def _code_for_version(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error code as clients of that version know it: `error` may be newer than the version."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_KNOWN_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_KNOWN_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


def _response(
    unknown: list[TopicPartition],
    offsets: dict[TopicPartition, CommittedOffset],
    error: ErrorCode,
    too_long: frozenset[TopicPartition],
) -> M.TxnOffsetCommitResponse:
    R = M.TxnOffsetCommitResponse
    coded = [(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for at in unknown]
    coded += [(at, ErrorCode.OFFSET_METADATA_TOO_LARGE if at in too_long else error) for at in offsets]
    topics: dict[str, list[M.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]] = {}
    for (name, partition_id), code in coded:
        partition = R.TxnOffsetCommitResponsePartition(partition_index=partition_id, error_code=code)
        topics.setdefault(name, []).append(partition)
    return R(topics=[R.TxnOffsetCommitResponseTopic(name=name, partitions=listed) for name, listed in topics.items()])
