"""What stand-ins of any kind answer alike: which versions they serve, and which nodes and leaders there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED

Ranges = Mapping[int, tuple[int, int]]
"""API -> lowest and highest version."""

ALL: dict[int, tuple[int, int]] = {key: (versions.min, versions.max) for key, versions in SERVED.items()}
"""All that kbroker serves."""

Topic = M.MetadataResponse.MetadataResponseTopic


def up_to(highest: Mapping[int, int]) -> Ranges:
    """Return `ALL`, where the APIs in `highest` (API -> version) are served up to that version only."""
    return {key: (low, min(high, highest.get(key, high))) for key, (low, high) in ALL.items()}


def versions(ranges: Ranges = ALL) -> M.ApiVersionsResponse:
    entry = M.ApiVersionsResponse.ApiVersion
    rows = [entry(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()]
    return M.ApiVersionsResponse(api_keys=rows)


def topic(
    name: str | None,
    leaders: Iterable[int],
    *,
    leader_epoch: int = -1,
    error_code: int = 0,
    topic_id: bytes = bytes(16),
) -> Topic:
    """Return a topic whose partition n is on the n-th of the nodes `leaders`; -1: it has no leader."""
    partitions = [
        M.MetadataResponse.MetadataResponsePartition(
            partition_index=at,
            leader_id=leader,
            leader_epoch=leader_epoch,
            replica_nodes=[leader] if leader >= 0 else [],
            isr_nodes=[leader] if leader >= 0 else [],
        )
        for at, leader in enumerate(leaders)
    ]
    return Topic(name=name, topic_id=topic_id, error_code=error_code, partitions=partitions)


def metadata(ports: Mapping[int, int], topics: Iterable[Topic]) -> M.MetadataResponse:
    """Return a cluster of the nodes `ports` (node id -> port on this machine); the first is the controller."""
    nodes = [
        M.MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
        for node, port in ports.items()
    ]
    return M.MetadataResponse(brokers=nodes, topics=list(topics), controller_id=next(iter(ports)), cluster_id="c")
