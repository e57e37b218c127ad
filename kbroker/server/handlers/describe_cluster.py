"""DescribeCluster, key 60, versions 0 to 1: the cluster's id, its brokers and its controller (KIP-700).

Leaves out: nothing.

v0  first
v1  whether brokers or controllers are asked for (KIP-919). Asking for controllers is answered with
    MISMATCHED_ENDPOINT_TYPE, as by a broker of Kafka: this broker has no controller listener.
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared import authorized_operations
from kbroker.server.handlers.shared.reachable_brokers import reachable_brokers
from kbroker.server.handlers.shared.services import Services

BROKERS, CONTROLLERS = 1, 2


def handle(services: Services, request: Request, message: M.DescribeClusterRequest) -> M.DescribeClusterResponse:
    if message.endpoint_type == CONTROLLERS:
        raise ProtocolError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if message.endpoint_type != BROKERS:
        raise ProtocolError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {message.endpoint_type}")
    image = services.cluster.image
    response = M.DescribeClusterResponse(cluster_id=image.cluster_id, controller_id=image.controller_id)
    response.brokers = [
        response.DescribeClusterBroker(broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in reachable_brokers(services, image, request.connection)
    ]
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations.ON_CLUSTER
    return response
