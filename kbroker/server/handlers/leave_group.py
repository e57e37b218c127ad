"""LeaveGroup, key 13, versions 0 to 5: members leave, or an administrator removes them.

Leaves out: nothing.

v0-v2  one member, whose error is the error of the response (throttle time from v1 on)
v3     several members, static ones by their instance id alone, each with its own error (KIP-345)
v4     flexible
v5     reason (KIP-800)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.protocol import messages as M
from kbroker.rules.group_member import Leaving

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

LOG = logging.getLogger(__name__)

SEVERAL_FROM = 3


def handle(services: Services, request: Request, message: M.LeaveGroupRequest) -> M.LeaveGroupResponse:
    """Answer the request at once."""
    if request.api_version < SEVERAL_FROM:
        error, errors = services.groups.leave(message.group_id, [Leaving(message.member_id)])
        return M.LeaveGroupResponse(error_code=error or errors[0])
    for member in message.members:
        if member.reason:
            LOG.debug("group %r, member %r leaves: %s", message.group_id, member.member_id, member.reason)
    leaving = [Leaving(member.member_id, member.group_instance_id) for member in message.members]
    error, errors = services.groups.leave(message.group_id, leaving)
    members = [
        M.LeaveGroupResponse.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=member_error)
        for (member_id, instance_id), member_error in zip(leaving, errors, strict=bool(errors))
    ]
    return M.LeaveGroupResponse(error_code=error, members=members)
