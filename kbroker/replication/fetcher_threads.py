"""The threads that fetch for followers: each has a pump, a fetch engine on it, and its own connection to a leader.

There are num.replica.fetchers of them for each leader, with one Fetch under way each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker._core.base.throttle import Throttle
from kbroker._core.replica.fetcher import ReplicaFetcher
from kbroker.client.config.network import NETWORK
from kbroker.client.config.parsing import parse_options
from kbroker.client.errors import ClientError
from kbroker.client.network.backoff import Backoff
from kbroker.client.network.connecting import connect
from kbroker.client.network.connection import Connection
from kbroker.client.network.network import Network
from kbroker.client.network.thread import ClientThread
from kbroker.model import Endpoint
from kbroker.protocol.api import ApiKey

log = logging.getLogger("kbroker.replication")

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
"""Waits before a leader that was not reached is connected to again, doubled with each failure."""
LARGEST_FETCH = 17
SETUP_S = 10.0


class FetchOptions(NamedTuple):
    """Settings of each fetcher; the defaults are Kafka 3.9's."""

    max_partition_bytes: int = 1 << 20
    """replica.fetch.max.bytes"""
    max_bytes: int = 10 << 20
    """replica.fetch.response.max.bytes"""
    min_bytes: int = 1
    """replica.fetch.min.bytes"""
    max_wait_ms: int = 500
    """replica.fetch.wait.max.ms"""
    backoff_ms: int = 1000
    """replica.fetch.backoff.ms"""
    request_timeout_ms: int = 30_000
    """replica.socket.timeout.ms"""


class FetcherThread:
    """One thread that fetches from one leader. `engine` is what it runs; `set_address` says where the leader is."""

    def __init__(
        self,
        node_id: int,
        leader_id: int,
        number: int,
        options: FetchOptions,
        network_options: Mapping[str, Any],
        throttle: Throttle | None = None,
    ):
        """`number` tells the threads of one leader apart. `network_options` are those of a client, for the inter-broker
        listener. Raises ValueError if one is bad.
        """
        self.leader_id = leader_id
        self.name = f"fetcher-{leader_id}-{number}"
        client_id = f"broker-{node_id}-{self.name}"
        # A batch may be larger than an answer is asked to be.
        largest = max(options.max_bytes, options.max_partition_bytes) + (128 << 20)
        given = {"client.id": client_id, "receive.message.max.bytes": min(largest, 1 << 30)}
        parsed = parse_options(NETWORK, given | dict(network_options), {}, "the replica fetcher")
        self.engine = ReplicaFetcher(
            node_id, leader_id, client_id=client_id, min_bytes=options.min_bytes, max_wait_ms=options.max_wait_ms,
            max_bytes=options.max_bytes, max_partition_bytes=options.max_partition_bytes,
            backoff_ms=options.backoff_ms, request_timeout_ms=options.request_timeout_ms, throttle=throttle,
        )  # fmt: skip
        self._thread = ClientThread(client_id, parsed["receive.message.max.bytes"], self.name)
        self._address: tuple[str, int] | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        self._not_before = 0.0
        self._is_unreached = False
        """Whether the log has said that the leader is not reached."""
        try:
            self._network = Network(self._thread, parsed)
            self._thread.call(self._begin(), SETUP_S)
        except BaseException:
            self._thread.stop()
            raise

    @property
    def native_id(self) -> int | None:
        """The system's id of the thread."""
        return self._thread.native_id

    def set_address(self, endpoint: Endpoint | None) -> None:
        """Say where the leader is now; None: nobody knows. A connection to another address is closed."""
        self._thread.call_soon(self._set_address, None if endpoint is None else (endpoint.host, endpoint.port))

    def close(self) -> None:
        """Close the connection and end the thread. Idempotent."""
        if self._thread.is_running:
            with contextlib.suppress(ClientError):
                self._thread.call(self._end(), SETUP_S)
        self._thread.stop()

    # --- on the thread ------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._thread.pump.on_wanted = self._want
        self._thread.pump.add(self.engine)

    async def _end(self) -> None:
        self._thread.pump.on_wanted = None
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)

    def _set_address(self, address: tuple[str, int] | None) -> None:
        if address == self._address:
            return
        self._address = address
        self._backoff, self._not_before = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S), 0.0
        task, self._connecting = self._connecting, None
        if task is not None:
            task.cancel()
        self._thread.pump.give_up(self.leader_id)  # an engine that waits for a connection asks again
        if self._connection is not None:
            self._connection.close("the leader is gone or has another address")

    def _want(self, node_id: int) -> None:
        if self._connecting is None:
            self._connecting = self._thread.loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Make the connection that the engine has asked for. After a failure the engine asks again."""
        loop = self._thread.loop
        try:
            await asyncio.sleep(max(self._not_before - loop.time(), 0))
            address = self._address
            if address is None:
                self._wait_longer()
                return
            try:
                connection = await connect(self._network, *address)
            except ClientError as error:
                self._wait_longer()
                if not self._is_unreached:
                    self._is_unreached = True
                    log.warning("leader %d is not reached: %s", self.leader_id, error)
                return
            if self._address != address:
                connection.close("the leader has another address")
                return
            self._is_unreached = False
            self._connection = connection
            since = loop.time()
            connection.on_closed = lambda closed, reason: self._closed(closed, since, reason)
            lowest, highest = connection.served.get(ApiKey.FETCH, (0, -1))
            version = min(highest, LARGEST_FETCH)
            with contextlib.suppress(ClientError):  # closed meanwhile: the engine asks again
                connection.open(self.leader_id, {ApiKey.FETCH: version if version >= lowest else -1})
        finally:
            # Before the engine is told: it may ask for a connection at once.
            if self._connecting is asyncio.current_task():
                self._connecting = None
            if self._connection is None:
                self._thread.pump.give_up(self.leader_id)

    def _closed(self, connection: Connection, since: float, reason: str) -> None:
        log.debug("the connection to leader %d is closed: %s", self.leader_id, reason)
        if self._connection is not connection:
            return
        self._connection = None
        # A connection that has lived is made again at once, one that breaks soon, again and again, with pauses.
        if self._thread.loop.time() - since >= LONGEST_WAIT_S:
            self._backoff, self._not_before = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S), 0.0
        else:
            self._wait_longer()

    def _wait_longer(self) -> None:
        self._not_before = self._thread.loop.time() + self._backoff.next_s()
