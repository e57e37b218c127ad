"""DeleteGroups, key 42, versions 0 to 2: delete groups that have no members, with their offsets (KIP-229).

Leaves out: nothing.

v0  first
v1  the throttle is applied after the response
v2  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.naming import each_once

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.DeleteGroupsRequest) -> M.DeleteGroupsResponse:
    """Answer the request at once."""
    results = [
        M.DeleteGroupsResponse.DeletableGroupResult(
            group_id=group_id, error_code=services.groups.delete_group(group_id)
        )
        for group_id in each_once(message.groups_names)
    ]
    return M.DeleteGroupsResponse(results=results)
