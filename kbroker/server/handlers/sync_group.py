"""SyncGroup, key 14, versions 0 to 5: a member asks for its assignment; the leader brings the assignments of all.

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
from kbroker.server.handlers.shared.answering import answer

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

PROTOCOL_REQUIRED_FROM = 5


def handle(services: Services, request: Request, message: M.SyncGroupRequest) -> M.SyncGroupResponse | None:
    """Answer the request once the leader's assignment is stored, or at once with an error."""
    if request.api_version >= PROTOCOL_REQUIRED_FROM and (
        message.protocol_type is None or message.protocol_name is None
    ):
        return M.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def synced(given: SyncAnswer) -> None:
        response = M.SyncGroupResponse(
            error_code=given.error,
            protocol_type=given.protocol_type,
            protocol_name=given.protocol_name,
            assignment=given.assignment,
        )
        answer(request, response, given.error)

    services.groups.sync(
        message.group_id,
        message.generation_id,
        message.member_id,
        message.group_instance_id,
        message.protocol_type,
        message.protocol_name,
        {entry.member_id: entry.assignment for entry in message.assignments},
        synced,
    )
    return None
