"""Heartbeat, key 12, versions 0 to 4: a member says that it is alive, and is told whether it has to join again.

Leaves out: nothing.

v0  first
v1  throttle time
v2  as v1; the throttle is applied after the response
v3  group instance id (KIP-345)
v4  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.HeartbeatRequest) -> M.HeartbeatResponse:
    """Answer the request at once."""
    error = services.groups.heartbeat(
        message.group_id, message.generation_id, message.member_id, message.group_instance_id
    )
    return M.HeartbeatResponse(error_code=error)
