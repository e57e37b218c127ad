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
    """One thread that fetches. `engine` is what it runs; `set_brokers` says where the leaders are."""

    def __init__(
        self,
        node_id: int,
        name: str,
        options: FetchOptions,
        network_options: Mapping[str, Any],
        throttle: Throttle | None = None,
    ):
        """`name` is the thread's, and the client id that leaders see. `network_options` are those of a client, for the
        inter-broker listener. Raises ValueError if one is bad.
        """
        # A batch may be larger than an answer is asked to be.
        largest = max(options.max_bytes, options.max_partition_bytes) + (128 << 20)
        given = {"client.id": name, "receive.message.max.bytes": min(largest, 1 << 30)}
        parsed = parse_options(NETWORK, given | dict(network_options), {}, "the replica fetcher")
        self.engine = ReplicaFetcher(
            node_id, client_id=name, min_bytes=options.min_bytes, max_wait_ms=options.max_wait_ms,
            max_bytes=options.max_bytes, max_partition_bytes=options.max_partition_bytes,
            backoff_ms=options.backoff_ms, request_timeout_ms=options.request_timeout_ms, throttle=throttle,
        )  # fmt: skip
        self._thread = ClientThread(name, parsed["receive.message.max.bytes"])
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._not_before: dict[int, float] = {}
        self._unreached: set[int] = set()
        """Leaders of which the log has said that they are not reached."""
        try:
            self._network = Network(self._thread, parsed)
            self._thread.call(self._begin(), SETUP_S)
        except BaseException:
            self._thread.stop()
            raise

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        """Replace the addresses of the leaders. Connections to one that is gone, or has moved, are closed."""
        self._thread.call_soon(self._set_brokers, {at: (it.host, it.port) for at, it in brokers.items()})

    def close(self) -> None:
        """Close the connections and end the thread. Idempotent."""
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
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _set_brokers(self, addresses: dict[int, tuple[str, int]]) -> None:
        before, self._addresses = self._addresses, addresses
        for node_id, address in before.items():
            if addresses.get(node_id) != address:
                self._backoffs.pop(node_id, None)
                self._not_before.pop(node_id, None)
                task = self._connecting.pop(node_id, None)
                if task is not None:
                    task.cancel()
                    self._thread.pump.give_up(node_id)
                if node_id in self._connections:
                    self._connections[node_id].close("the leader is gone or has another address")
        for node_id in addresses.keys() - before.keys():
            self._thread.pump.give_up(node_id)  # an engine that waits for it asks again

    def _want(self, node_id: int) -> None:
        if node_id not in self._connecting:
            self._connecting[node_id] = self._thread.loop.create_task(self._connect(node_id))

    async def _connect(self, node_id: int) -> None:
        """Make the connection to a leader that the engine has asked for. After a failure the engine asks again."""
        loop = self._thread.loop
        try:
            await asyncio.sleep(max(self._not_before.get(node_id, 0) - loop.time(), 0))
            address = self._addresses.get(node_id)
            if address is None:
                self._wait_longer(node_id)
                return
            try:
                connection = await connect(self._network, *address)
            except ClientError as error:
                self._wait_longer(node_id)
                if node_id not in self._unreached:
                    self._unreached.add(node_id)
                    log.warning("leader %d is not reached: %s", node_id, error)
                return
            if self._addresses.get(node_id) != address:
                connection.close("the leader has another address")
                return
            self._unreached.discard(node_id)
            self._connections[node_id] = connection
            since = loop.time()
            connection.on_closed = lambda closed, reason: self._closed(node_id, closed, since, reason)
            lowest, highest = connection.served.get(ApiKey.FETCH, (0, -1))
            version = min(highest, LARGEST_FETCH)
            with contextlib.suppress(ClientError):  # closed meanwhile: the engine asks again
                connection.open(node_id, {ApiKey.FETCH: version if version >= lowest else -1})
        finally:
            # Before the engine is told: it may ask for a connection at once.
            if self._connecting.get(node_id) is asyncio.current_task():
                del self._connecting[node_id]
            if node_id not in self._connections:
                self._thread.pump.give_up(node_id)

    def _closed(self, node_id: int, connection: Connection, since: float, reason: str) -> None:
        log.debug("the connection to leader %d is closed: %s", node_id, reason)
        if self._connections.get(node_id) is not connection:
            return
        del self._connections[node_id]
        # A connection that has lived is made again at once, one that breaks soon, again and again, with pauses.
        if self._thread.loop.time() - since >= LONGEST_WAIT_S:
            self._backoffs.pop(node_id, None)
        else:
            self._wait_longer(node_id)

    def _wait_longer(self, node_id: int) -> None:
        backoff = self._backoffs.setdefault(node_id, Backoff(FIRST_WAIT_S, LONGEST_WAIT_S))
        self._not_before[node_id] = self._thread.loop.time() + backoff.next_s()
