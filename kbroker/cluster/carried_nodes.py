"""Reads the nodes that are carried from Kafka's ZooKeeper to a single broker's store, and back.

Configs of groups are carried too, though Kafka with ZooKeeper has none. Not carried: live brokers and the controller
(/brokers/ids, /controller), notifications of changes, ACLs, and delegation tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kbroker.coordination import paths
from kbroker.coordination.store import NoNode, Stat
from kbroker.errors import KbrokerError

AS_THEY_ARE = ("/config/brokers", "/config/clients", "/config/users", "/config/ips", paths.GROUP_CONFIGS)
"""Trees of configs that are carried whole."""
SINGLE = (paths.CLUSTER_ID, paths.CONTROLLER_EPOCH, paths.PRODUCER_ID_BLOCK)
REASSIGNMENTS = "/admin/reassign_partitions"
ACLS = ("/kafka-acl", "/kafka-acl-extended")

_OFFSET = re.compile(re.escape(paths.CONSUMERS) + r"/.+/offsets/[^/]+/\d+")

Nodes = dict[str, bytes]


class CannotCarry(KbrokerError):
    """The transfer is refused because of what a store holds; nothing was changed."""


class Source(Protocol):
    """The calls of both kinds of store that reading whole trees needs."""

    def children(self, path: str) -> list[str]: ...
    def get_many(self, paths: Sequence[str], /) -> Sequence[tuple[bytes, Stat] | None]: ...


@dataclass(slots=True)
class CarriedNodes:
    """The nodes of a store that can be carried, and what decides whether they may be."""

    nodes: Nodes = field(default_factory=dict)
    live_brokers: list[str] = field(default_factory=list)
    is_reassigning: bool = False
    is_migrating: bool = False
    acl_count: int = 0

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id; None if the store holds no cluster yet."""
        data = self.nodes.get(paths.CLUSTER_ID)
        return None if data is None else paths.decode_cluster_id(paths.CLUSTER_ID, data)

    @property
    def controller_epoch(self) -> int:
        data = self.nodes.get(paths.CONTROLLER_EPOCH, b"0")
        if not data.isdigit():
            raise paths.StoreCorrupt(paths.CONTROLLER_EPOCH, "no number")
        return int(data)

    @property
    def producer_ids(self) -> paths.ProducerIdBlock | None:
        """The block of producer ids that was given out last, if any."""
        data = self.nodes.get(paths.PRODUCER_ID_BLOCK)
        return paths.decode_producer_id_block(paths.PRODUCER_ID_BLOCK, data) if data else None

    def topics(self) -> dict[str, paths.TopicAssignment]:
        prefix = paths.TOPICS + "/"
        return {
            path.removeprefix(prefix): paths.decode_topic(path, data)
            for path, data in self.nodes.items()
            if path.startswith(prefix) and "/" not in path.removeprefix(prefix)
        }

    def below(self, root: str) -> Nodes:
        """The nodes under `root`."""
        return {path: data for path, data in self.nodes.items() if path.startswith(root + "/")}


def read_carried(source: Source) -> CarriedNodes:
    """Read all nodes that can be carried. Raises StoreUnavailable or StoreCorrupt if that fails."""
    found = CarriedNodes(live_brokers=names_below(source, paths.BROKER_IDS))
    wanted = [*SINGLE, *_topic_paths(source)]
    for root in AS_THEY_ARE:
        wanted += paths_below(source, root)
    wanted += [path for path in paths_below(source, paths.CONSUMERS) if _OFFSET.fullmatch(path)]
    wanted += [paths.delete_topic_path(name) for name in names_below(source, paths.DELETE_TOPICS)]
    nodes = zip(wanted, source.get_many(wanted), strict=True)
    found.nodes = {path: node[0] for path, node in nodes if node is not None and not node[1].owner}
    for topic in found.topics().values():
        found.is_reassigning |= bool(topic.adding or topic.removing)
    found.is_reassigning |= bool(source.get_many([REASSIGNMENTS])[0])
    found.is_migrating = bool(source.get_many([paths.MIGRATION])[0])
    found.acl_count = sum(
        len(names_below(source, f"{root}/{kind}")) for root in ACLS for kind in names_below(source, root)
    )
    return found


def names_below(source: Source, path: str) -> list[str]:
    """The names of a node's children; empty if the node does not exist."""
    try:
        return source.children(path)
    except NoNode:
        return []


def _topic_paths(source: Source) -> list[str]:
    names = names_below(source, paths.TOPICS)
    topic_paths = [paths.topic_path(name) for name in names]
    wanted = [*topic_paths, *(paths.topic_config_path(name) for name in names_below(source, paths.TOPIC_CONFIGS))]
    for name, path, found in zip(names, topic_paths, source.get_many(topic_paths), strict=True):
        if found is not None:
            ids = paths.decode_topic(path, found[0]).replicas
            wanted += [paths.partitions_path(name), *(paths.partition_path(name, each) for each in ids)]
            wanted += [paths.partition_state_path(name, each) for each in ids]
    return wanted


def paths_below(source: Source, root: str) -> list[str]:
    """The paths of all nodes below `root`, each after its parent."""
    found: list[str] = []
    waiting = [root]
    while waiting:
        path = waiting.pop()
        below = [f"{path}/{name}" for name in names_below(source, path)]
        found += below
        waiting += below
    return found


def differing(wanted: Mapping[str, bytes], there: Mapping[str, bytes]) -> list[str]:
    """The paths in `wanted` that are missing in `there` or have other data, sorted, so that parents come first."""
    return sorted(path for path, data in wanted.items() if there.get(path) != data)
