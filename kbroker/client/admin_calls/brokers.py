"""The cluster and its brokers."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.client.admin_calls.items import of_each
from kbroker.client.admin_results import Broker, ClusterDescription, Features, LogDirDescription, ReplicaSize
from kbroker.client.cluster import Cluster
from kbroker.client.connection import versions_request
from kbroker.client.errors import BrokerError, ClientError, raise_for, refusal
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

FEATURES_SINCE = 3  #: ApiVersions


async def describe(cluster: Cluster) -> ClusterDescription:
    await cluster.retried(cluster.refresh)
    view = cluster.view
    brokers = tuple(Broker(node.node_id, node.host, node.port, node.rack) for node in view.nodes.values())
    return ClusterDescription(view.cluster_id, view.controller_id, brokers)


async def features(cluster: Cluster) -> Features:
    async def ask() -> Features:
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

    return await cluster.retried(ask)


async def log_dirs(cluster: Cluster, node_ids: Collection[int] | None) -> dict[int, tuple[LogDirDescription, ...]]:
    if node_ids is None:
        node_ids = list((await cluster.retried(cluster.refresh)).nodes)

    async def ask(left: list[int]) -> dict[int, tuple[LogDirDescription, ...] | ClientError]:
        found: dict[int, tuple[LogDirDescription, ...] | ClientError] = {}
        for node_id in left:
            answer = await cluster.call(M.DescribeLogDirsRequest(topics=None), node_id)
            if answer.error_code:
                found[node_id] = refusal(answer.error_code, None, f"log directories of broker {node_id}")
                continue
            found[node_id] = tuple(
                LogDirDescription(
                    each.log_dir,
                    refusal(each.error_code, None, each.log_dir) if each.error_code else None,
                    {
                        TopicPartition(topic.name, one.partition_index): ReplicaSize(
                            one.partition_size, one.offset_lag, bool(one.is_future_key)
                        )
                        for topic in each.topics
                        for one in topic.partitions
                    },
                    each.total_bytes,
                    each.usable_bytes,
                )
                for each in answer.results
            )
        return found

    return await of_each(cluster, node_ids, ask)
