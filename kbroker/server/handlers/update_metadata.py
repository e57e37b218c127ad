"""UpdateMetadata, key 6, versions 0 to 8: the controller tells this broker of brokers and partitions of the cluster.

A broker that is alone answers CLUSTER_AUTHORIZATION_FAILED.
Leaves out: what only a KRaft controller sends (KIP-866).

v0  first
v1  several endpoints for each broker, by security protocol
v2  racks (KIP-36)
v3  endpoints by listener (KIP-103)
v4  offline replicas (KIP-112)
v5  broker epoch; partitions by topic (KIP-380)
v6  flexible
v7  topic ids (KIP-516)
v8  tells whether the controller is of KRaft, and the type of the request (KIP-866); neither is looked at
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.server.handlers.shared.between_brokers import partitions_of

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.protocol import messages as M
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.UpdateMetadataRequest) -> M.UpdateMetadataResponse:
    return partitions_of(services).update_metadata(message)
