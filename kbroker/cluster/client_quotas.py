"""Finds the client quotas of Apache Kafka in the tree. kbroker does not enforce them yet, and says so.

Quotas limit the rates of clients by user, client id and address. They are configs of the nodes below ROOTS. Passwords
of users stand below /config/users too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kbroker.cluster.carried_nodes import Source, names_below
from kbroker.coordination import paths

log = logging.getLogger(__name__)

USERS = "/config/users"
ROOTS = ("/config/clients", USERS, "/config/ips")
QUOTAS = frozenset(
    {
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
        "connection_creation_rate",
    }
)
"""Kafka's names of quotas."""


def roots_with_quotas(nodes: Mapping[str, bytes]) -> list[str]:
    """Return those of ROOTS below which one of the nodes, data by path, sets a quota. Bad data sets none."""
    return [
        root for root in ROOTS if any(path.startswith(f"{root}/") and _sets_one(path, nodes[path]) for path in nodes)
    ]


def _sets_one(path: str, data: bytes) -> bool:
    try:
        return not QUOTAS.isdisjoint(paths.decode_config(path, data))
    except paths.StoreCorrupt:
        return False


class ClientQuotas:
    """Says in the log, once for each of ROOTS, that there are quotas below it. For one thread at a time."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def look(self, source: Source) -> None:
        """Look at all nodes with quotas. Raises StoreUnavailable if that fails."""
        nodes: dict[str, bytes] = {}
        for root in ROOTS:
            if root not in self._told:
                nodes |= _nodes_below(source, root)
        found = roots_with_quotas(nodes)
        if found:
            self._told |= frozenset(found)
            log.warning(
                "the cluster has client quotas (%s), which kbroker does not enforce yet: no client is throttled here",
                ", ".join(found),
            )

    def look_if_changed(self, source: Source, entity_paths: Iterable[str]) -> None:
        """Look if one of the changed configs may be a quota; `entity_paths` are their paths after "/config/"."""
        if any(f"/config/{path}".startswith(f"{root}/") for path in entity_paths for root in ROOTS):
            self.look(source)


def _nodes_below(source: Source, root: str) -> dict[str, bytes]:
    """Return the nodes below one of ROOTS, data by path. Quotas of a user's client stand below /config/users/USER."""
    entities = [f"{root}/{name}" for name in names_below(source, root)]
    nodes = _data_of(source, entities)
    if root == USERS:
        parents = _data_of(source, [f"{each}/clients" for each in entities])
        nodes |= _data_of(source, [f"{parent}/{name}" for parent in parents for name in names_below(source, parent)])
    return nodes


def _data_of(source: Source, node_paths: list[str]) -> dict[str, bytes]:
    """Return the data of those of the nodes that exist, by path."""
    found = zip(node_paths, source.get_many(node_paths), strict=True)
    return {path: node[0] for path, node in found if node is not None}
