"""DescribeGroups, key 15, versions 0 to 5: state and members of groups.

Leaves out: an authorizer; authorized operations are always all operations.

v0  first
v1  throttle time
v2  as v1; the throttle is applied after the response
v3  authorized operations (KIP-430)
v4  group instance id (KIP-345)
v5  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.wire.codec import lazily
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.authorized_operations import NOT_ASKED_FOR, ON_GROUP
from kbroker.server.handlers.shared.naming import each_once

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.DescribeGroupsRequest) -> M.DescribeGroupsResponse:
    """Answer the request at once."""
    operations = ON_GROUP if message.include_authorized_operations else NOT_ASKED_FOR
    once = each_once(message.groups)
    groups = (_describe(services.groups, group_id, operations) for group_id in once)
    return M.DescribeGroupsResponse(groups=lazily(len(once), groups))


def _describe(groups: GroupCoordinator, group_id: str, operations: int) -> M.DescribeGroupsResponse.DescribedGroup:
    described = groups.describe(group_id)
    return M.DescribeGroupsResponse.DescribedGroup(
        error_code=described.error,
        group_id=group_id,
        group_state=described.state,
        protocol_type=described.protocol_type,
        protocol_data=described.protocol_name,
        authorized_operations=operations if not described.error else NOT_ASKED_FOR,
        members=[
            M.DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in described.members
        ],
    )
