"""The cluster and its brokers."""

from __future__ import annotations

from kbroker.client.admin.results import Broker, ClusterDescription, Features
from kbroker.client.errors import BrokerError, raise_for
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.connection import versions_request
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey

FEATURES_SINCE = 3  #: the version of ApiVersions


async def describe(cluster: Cluster) -> ClusterDescription:
    await cluster.retried(cluster.refresh)
    view = cluster.view
    brokers = tuple(Broker(node.node_id, node.host, node.port, node.rack) for node in view.nodes.values())
    return ClusterDescription(view.cluster_id, view.controller_id, brokers)


async def features(cluster: Cluster) -> Features:
    async def attempt() -> Features:
        connection = await cluster.any_connection()
        version = connection.version_of(ApiKey.API_VERSIONS)
        if version < FEATURES_SINCE:
            raise BrokerError(
                f"{connection.address} serves ApiVersions up to version {version} only, and tells no features",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        answer = await connection.call(versions_request(version))
        raise_for(answer.error_code, None, connection.address)
        return Features(
            {each.name: (each.min_version, each.max_version) for each in answer.supported_features},
            {each.name: each.max_version_level for each in answer.finalized_features},
            answer.finalized_features_epoch,
        )

    return await cluster.retried(attempt)
