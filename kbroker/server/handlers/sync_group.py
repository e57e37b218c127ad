"""SyncGroup, key 14, versions 0 to 5: a member asks for its assignment; the leader's request brings everybody's.

Leaves out: nothing.

v0  first
v1  throttle time
v2  as v1; the throttle is applied after the response
v3  group instance id (KIP-345)
v4  flexible
v5  protocol type and name, which must be those of the generation (KIP-559)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.rules.group_member import SyncAnswer

if TYPE_CHECKING:
    from kbroker._core.request import Request
    from kbroker.server.services import Services

PROTOCOL_REQUIRED_FROM = 5


def handle(services: Services, request: Request, message: M.SyncGroupRequest) -> M.SyncGroupResponse | None:
    """Answers when the leader's assignment is stored, or at once with what is wrong."""
    version = request.api_version
    if version >= PROTOCOL_REQUIRED_FROM and (message.protocol_type is None or message.protocol_name is None):
        return M.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def answer(synced: SyncAnswer) -> None:
        if synced.error:
            request.count_error(synced.error)
        request.respond(encode(synced, version))

    services.groups.sync(
        message.group_id,
        message.generation_id,
        message.member_id,
        message.group_instance_id,
        message.protocol_type,
        message.protocol_name,
        {entry.member_id: entry.assignment for entry in message.assignments},
        answer,
    )
    return None


def encode(answer: SyncAnswer, version: int) -> bytes:
    """The body of the response."""
    response = M.SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
    return response.encode(version)
