"""Asks the broker that is the controller, wherever it is, for a member of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.cluster.image import Broker
from kbroker.cluster.peers import PeerError, Peers
from kbroker.model import Endpoint
from kbroker.protocol.messages import Message
from kbroker.replication.surroundings import Answered


class ControllerChannel:
    """A `replication.surroundings.AskController`. May be used by any thread; nothing here waits."""

    def __init__(self, peers: Peers, controller_id: Callable[[], int], timeout_ms: int):
        self._peers = peers
        self._controller_id = controller_id
        self._timeout_ms = timeout_ms

    def __call__(self, make: Callable[[int], Message], api_key: int, highest_version: int, answered: Answered) -> None:
        def take(answer: Message | PeerError, version: int) -> None:
            if isinstance(answer, PeerError):
                answered(None, -1)
            else:
                answered(answer, version)

        controller_id = self._controller_id()
        if controller_id < 0:
            answered(None, -1)
            return
        self._peers.ask(controller_id, make, api_key, highest_version, take, timeout_ms=self._timeout_ms)


def endpoints_on(listener: str, brokers: Mapping[int, Broker]) -> dict[int, Endpoint]:
    """Return the endpoint of each broker on the listener, by id; a broker without it is left out."""
    found = {}
    for node_id, broker in brokers.items():
        endpoint = next((each for each in broker.endpoints if each.listener == listener), None)
        if endpoint is not None:
            found[node_id] = endpoint
    return found
