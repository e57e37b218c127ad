"""ListConfigResources, key 74, versions 0 to 1: the resources that may have configs of their own.

Leaves out: subscriptions to clients' metrics, of which this broker has none.

v0  as ListClientMetricsResources (KIP-714): subscriptions to clients' metrics
v1  topics, brokers, their loggers and groups too (KIP-1142); a request without types asks for all of them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.config_resources import ResourceType
from kbroker.server.handlers.shared.naming import each_once

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.cluster.image import MetadataImage
    from kbroker.server.handlers.shared.services import Services

FIRST_VERSION_WITH_TYPES = 1


def handle(
    services: Services, request: Request, message: M.ListConfigResourcesRequest
) -> M.ListConfigResourcesResponse:
    """Answer the request with the resources of each type; a type named twice is listed once."""
    names = _names_of(services.cluster.image)
    wanted: Collection[int] = ()
    if request.api_version >= FIRST_VERSION_WITH_TYPES:
        wanted = each_once(message.resource_types) or names
    if not all(kind in names for kind in wanted):
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "no resources of such a type")
    return M.ListConfigResourcesResponse(
        config_resources=[
            M.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind in wanted
            for name in names[kind]
        ]
    )


def _names_of(image: MetadataImage) -> Mapping[int, Collection[str]]:
    """The names of all resources, by their type."""
    brokers = [str(node_id) for node_id in image.brokers]
    return {
        ResourceType.TOPIC: image.topics,
        ResourceType.BROKER: brokers,
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.CLIENT_METRICS: (),
        ResourceType.GROUP: image.group_configs,
    }
