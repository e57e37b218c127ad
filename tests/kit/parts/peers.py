"""Other brokers as requests to them see them: the test answers each request, in any order it likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.cluster.peers import AskAnswered, PeerError
from kbroker.errors import KbrokerError
from kbroker.protocol.api import ApiKey, request_class, response_class


@dataclass
class Sent:
    """A request that has no answer yet, as the other broker decodes it."""

    node_id: int
    message: Any
    version: int
    answered: AskAnswered

    def answer(self, message: Any) -> None:
        """Answer with what the asking broker decodes from `message`."""
        api_key = type(self.message).API_KEY
        self.answered(response_class(ApiKey(api_key)).decode(message.encode(self.version), self.version), self.version)

    def fail(self) -> None:
        self.answered(PeerError(self.node_id, "the connection is closed", sent=True), -1)


class StandInPeers:
    """A `cluster.peers.Peers` whose requests wait in `sent`. `versions`: what every broker serves, by API key."""

    def __init__(self, **_: Any) -> None:
        self.sent: list[Sent] = []
        self.versions: dict[int, int] = {}

    def take(self) -> Sent:
        """Take the oldest request that has no answer."""
        return self.sent.pop(0)

    def ask(
        self,
        node_id: int,
        make: Callable[[int], Any],
        api_key: int,
        highest_version: int,
        answered: AskAnswered,
        *,
        timeout_ms: int,
    ) -> None:
        version = min(highest_version, self.served(node_id, api_key))
        try:
            message = make(version)
        except KbrokerError as error:
            answered(PeerError(node_id, str(error)), -1)
            return
        self._add(node_id, message, version, answered)

    def _add(self, node_id: int, message: Any, version: int, answered: AskAnswered) -> None:
        decoded = request_class(ApiKey(type(message).API_KEY)).decode(message.encode(version), version)
        self.sent.append(Sent(node_id, decoded, version, answered))

    def served(self, node_id: int, api_key: int) -> int:
        return self.versions.get(api_key, 5)
