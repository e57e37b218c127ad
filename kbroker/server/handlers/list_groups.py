"""ListGroups, key 16, versions 0 to 5: the groups that this broker coordinates.

Leaves out: share and streams groups, which this broker does not have.

v0  first
v1  throttle time
v2  as v1; the throttle is applied after the response
v3  flexible
v4  a filter by states, and states in the response (KIP-518)
v5  a filter by types, and types in the response (KIP-848)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.ListGroupsRequest) -> M.ListGroupsResponse:
    """Answer the request at once."""
    error, listed = services.groups.list_groups(message.states_filter, message.types_filter)
    groups = [
        M.ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.kind,
        )
        for group in listed
    ]
    return M.ListGroupsResponse(error_code=error, groups=groups)
