"""IncrementalAlterConfigs, key 44, versions 0 to 1: set, delete, append to and subtract from configs (KIP-339).

Each resource is changed whole or not at all.
Leaves out: client metrics.

v0  first
v1  flexible
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.cluster.config_changes import Wish
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.config_alteration import Alteration, alter
from kbroker.server.handlers.shared.config_resources import ResourceType
from kbroker.server.handlers.shared.services import Services

Result = M.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


def handle(
    services: Services, request: Request, message: M.IncrementalAlterConfigsRequest
) -> M.IncrementalAlterConfigsResponse:
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [Wish(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in message.resources
    ]
    return M.IncrementalAlterConfigsResponse(
        responses=alter(
            services,
            request,
            alterations,
            Result,
            types=tuple(ResourceType),
            keeps_others=True,
            validate_only=message.validate_only,
        )
    )
