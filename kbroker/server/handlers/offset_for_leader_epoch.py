"""OffsetForLeaderEpoch, key 23, versions 0 to 4: the end offset of a leader epoch (KIP-101).

An epoch newer than all epochs of the log gets epoch -1 and offset -1, without an error. A client that asks for one gets
NOT_LEADER_OR_FOLLOWER first, until it is known that no other broker leads.
Leaves out: nothing.

v0  first
v1  the epoch that was found
v2  current leader epoch (KIP-320), throttle time
v3  replica id (KIP-392)
v4  flexible (KIP-482)
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.leader import leader_log
from kbroker.server.handlers.shared.services import Services

Asked = M.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Found = M.OffsetForLeaderEpochResponse.EpochEndOffset


def handle(
    services: Services, request: Request, message: M.OffsetForLeaderEpochRequest
) -> M.OffsetForLeaderEpochResponse:
    return M.OffsetForLeaderEpochResponse(
        topics=[
            M.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _answer(services, topic.topic, part, is_client=message.replica_id < 0) for part in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _answer(services: Services, topic: str, part: Asked, *, is_client: bool) -> Found:
    try:
        log = leader_log(services, topic, part.partition, part.current_leader_epoch)
        if is_client and part.leader_epoch > log.leader_epoch:
            code = log.state.know_no_more()
            if code != ErrorCode.OFFSET_OUT_OF_RANGE:
                return Found(partition=part.partition, error_code=code)
        leader_epoch, end_offset = log.end_offset_for_epoch(part.leader_epoch)
    except KbrokerError as error:
        return Found(partition=part.partition, error_code=error.code)
    return Found(partition=part.partition, leader_epoch=leader_epoch, end_offset=end_offset)
