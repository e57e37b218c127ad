"""AlterConfigs, key 33, versions 0 to 2: replace all of a resource's own configs (KIP-133).

A config that the request does not name goes back to its default. IncrementalAlterConfigs changes single configs.
Leaves out: loggers, client metrics.

v0  first
v1  the throttle is applied after the response
v2  flexible
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.cluster.config_changes import Op, Wish
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.config_alteration import Alteration, alter
from kbroker.server.handlers.shared.config_resources import ResourceType
from kbroker.server.handlers.shared.services import Services

Result = M.AlterConfigsResponse.AlterConfigsResourceResponse


def handle(services: Services, request: Request, message: M.AlterConfigsRequest) -> M.AlterConfigsResponse:
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [Wish(config.name, Op.SET, config.value) for config in resource.configs],
        )
        for resource in message.resources
    ]
    return M.AlterConfigsResponse(
        responses=alter(
            services,
            request,
            alterations,
            Result,
            types=(ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP),
            keeps_others=False,
            validate_only=message.validate_only,
        )
    )
