"""The brokers of the cluster, with the endpoints that a client of one listener can reach."""

from __future__ import annotations

from typing import NamedTuple

from kbroker._core.server.peer import Connection
from kbroker.cluster.image import MetadataImage
from kbroker.server.handlers.shared.services import Services


class ReachableBroker(NamedTuple):
    """A broker and its endpoint for the client."""

    node_id: int
    host: str
    port: int
    rack: str | None


def reachable_brokers(services: Services, image: MetadataImage, connection: Connection) -> tuple[ReachableBroker, ...]:
    """Return the brokers that have a listener of the connection's name, in the order of their ids.

    This broker is always among them, with its advertised endpoint or else the one that the client connected to.
    """
    found = []
    for node_id, broker in sorted(image.brokers.items()):
        endpoint = (
            services.endpoints_for(connection)
            if node_id == services.node_id
            else next((each for each in broker.endpoints if each.listener == connection.listener), None)
        )
        if endpoint is not None:
            found.append(ReachableBroker(node_id, endpoint.host, endpoint.port, broker.rack))
    return tuple(found)
