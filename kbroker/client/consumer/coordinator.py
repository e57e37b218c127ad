"""Requests to a group's coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.client.errors import ConnectionFailed, TimedOut, raise_for
from kbroker.client.network.cluster import COORDINATOR, Cluster
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Coordinator:
    """The coordinator of one group. For the client's thread."""

    def __init__(self, cluster: Cluster, group_id: str):
        self.cluster = cluster
        self.group_id = group_id

    async def call(
        self,
        api_key: ApiKey,
        message: Callable[[int], Message],
        *,
        purpose: str = COORDINATOR,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send `message(version)`, and return the response, whose error codes are not looked at.

        Raises ConnectionFailed or TimedOut when the coordinator is not reached; the next call looks for it again.
        """
        try:
            node_id = await self.cluster.coordinator(self.group_id)
            connection = await self.cluster.connection(node_id, purpose)
            version = connection.version_of(api_key)
            return await connection.call(message(version), version=version, timeout_ms=timeout_ms)
        except (ConnectionFailed, TimedOut):
            self.forget()
            raise

    def check(self, error_code: int, what: str) -> None:
        """Raise BrokerError for any code but NONE. A broker that denies to be the coordinator is forgotten."""
        if error_code in MOVED:
            self.forget()
        raise_for(error_code, None, f"{what} of group {self.group_id!r}")

    def forget(self) -> None:
        self.cluster.forget_coordinator(self.group_id)
