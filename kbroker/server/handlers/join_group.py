"""JoinGroup, key 11, versions 0 to 9: a member asks to be in the group's next generation and waits until it begins.

Leaves out: quotas, which would set the throttle time.

v0  the rebalance timeout is the session timeout
v1  rebalance timeout (KIP-62)
v2  throttle time
v3  as v2; the throttle is applied after the response
v4  a new member without an id is given one, with MEMBER_ID_REQUIRED, and has to join again with it (KIP-394)
v5  group instance id: static members (KIP-345)
v6  flexible
v7  protocol type in the response, protocol name may be null (KIP-559)
v8  reason (KIP-800)
v9  skip assignment (KIP-814)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.protocol import messages as M
from kbroker.rules.group_member import JoinAnswer, Joining
from kbroker.server.handlers.shared.answering import answer

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

LOG = logging.getLogger(__name__)

REBALANCE_TIMEOUT_FROM = 1
MEMBER_ID_REQUIRED_FROM = 4
PROTOCOL_NAME_NULLABLE_FROM = 7
SKIP_ASSIGNMENT_FROM = 9


def handle(services: Services, request: Request, message: M.JoinGroupRequest) -> None:
    """Answer the request once the generation begins, or at once with an error."""
    version = request.api_version
    session_timeout_ms = message.session_timeout_ms
    joining = Joining(
        message.member_id,
        message.group_instance_id,
        request.client_id or "",
        f"/{request.connection.peer_host}",
        message.rebalance_timeout_ms if version >= REBALANCE_TIMEOUT_FROM else session_timeout_ms,
        session_timeout_ms,
        message.protocol_type,
        {protocol.name: protocol.metadata for protocol in message.protocols},
        version >= MEMBER_ID_REQUIRED_FROM,
        version >= SKIP_ASSIGNMENT_FROM,
    )
    if message.reason:
        LOG.debug("group %r, member %r joins: %s", message.group_id, message.member_id, message.reason)

    def joined(given: JoinAnswer) -> None:
        answer(request, response_of(given, version), given.error)

    services.groups.join(message.group_id, joining, joined)


def response_of(given: JoinAnswer, version: int) -> M.JoinGroupResponse:
    name = given.protocol_name
    return M.JoinGroupResponse(
        error_code=given.error,
        generation_id=given.generation,
        protocol_type=given.protocol_type,
        protocol_name=name if version >= PROTOCOL_NAME_NULLABLE_FROM else name or "",
        leader=given.leader,
        skip_assignment=given.skip_assignment,
        member_id=given.member_id,
        members=[
            M.JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in given.members
        ],
    )
