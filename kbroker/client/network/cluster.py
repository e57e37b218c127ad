"""What a client knows about the cluster, and its connections to the brokers. Everything is for the client's thread.

Metadata is asked for those topics that a part of the client has an interest in: when it turns out to be stale, and
every metadata.max.age.ms. There is one connection for each broker and purpose, because a request that may wait long (a
Fetch) must not stand in front of requests to a coordinator.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

from kbroker.client.config.option import Options
from kbroker.client.errors import (
    HINTS,
    STALE_METADATA,
    BrokerError,
    ClientError,
    ConnectionFailed,
    TimedOut,
    raise_for,
    raise_for_topic,
)
from kbroker.client.network.backoff import Backoff, chance, retry_backoff
from kbroker.client.network.cluster_view import ClusterView, Node, PartitionView, TopicView
from kbroker.client.network.connecting import connect
from kbroker.client.network.connection import Connection
from kbroker.client.network.network import Network
from kbroker.client.network.resolver import canonical
from kbroker.client.network.thread import ClientThread
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

T = TypeVar("T")

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""When the call of `Cluster.retried` that runs in a task has to be done."""
log = logging.getLogger("kbroker.client")

CANONICAL = "resolve_canonical_bootstrap_servers_only"
UNREACHED_S = 5.0  #: how long no broker, or no coordinator, is reached before the log says so
UNREACHED_AGAIN_S = 60.0  #: how long before the log says so again
NEVER_REACHED = "is a broker there, and bootstrap.servers right?"
DATA = "data"  #: the purpose of connections that engines use
COORDINATOR = "coordinator"
GROUP, TRANSACTION = 0, 1  #: kinds of coordinators
IDLE_LOOKS = 4  #: how often idle connections are looked for within connections.max.idle.ms


class Cluster:
    """The view of the cluster, the connections and the coordinators of one client."""

    def __init__(self, network: Network):
        options = network.options
        self.network = network
        self.view = ClusterView()
        self.on_view: list[Callable[[ClusterView], object]] = []
        """Functions that are called with each new view."""
        self.creates_topics = False
        """Whether brokers may create the topics that there is an interest in."""
        self.logs_missing = False
        """Whether the log says which of these topics do not exist."""
        self._missing: dict[str, bool] = {}  # topics missing at the last refresh; whether the log has said so
        self._loop = network.thread.loop
        self._bootstrap: tuple[tuple[str, int], ...] = options["bootstrap.servers"]
        self._bootstrap_keys: dict[tuple[str, int], int] = {}  # node ids below 0 for connections to bootstrap servers
        self._topics: dict[str, int] = {}  # by name, how many parts of the client have an interest in the topic
        self._everything = 0  # how many parts have an interest in all topics
        self._connections: dict[tuple[int, str], Connection] = {}
        self._pending: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._backoffs: dict[tuple[str, int], Backoff] = {}  # by address, while connecting to it fails
        self._not_before: dict[tuple[str, int], float] = {}
        self._unreached_since: float | None = None
        self._warn_at = 0.0
        self._lost_nodes: dict[int, float] = {}
        """Brokers that were not reached, and when (on the loop's clock) the log says so again."""
        self._coordinators: dict[tuple[str, int], int] = {}
        self._no_coordinator: dict[tuple[str, int], float] = {}
        """Coordinators that are looked for, and when (on the loop's clock) the log says so."""
        self._beginning: asyncio.Task[Connection] | None = None
        self._refreshing: asyncio.Task[ClusterView] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._aging: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._last_seen: dict[Connection, tuple[int, float]] = {}  # bytes carried by each, and since when no more
        network.thread.pump.on_wanted = self._want

    # --- metadata -------------------------------------------------------------------------------------------

    def add_topics(self, names: Iterable[str]) -> bool:
        """Note an interest in topics. Returns whether one of them is not in the view."""
        names = list(names)
        for name in names:
            self._topics[name] = self._topics.get(name, 0) + 1
        return any(name not in self.view.topics for name in names)

    def remove_topics(self, names: Iterable[str]) -> None:
        """Take back an interest that `add_topics` has noted."""
        for name in names:
            left = self._topics.get(name, 0) - 1
            if left > 0:
                self._topics[name] = left
            else:
                self._topics.pop(name, None)

    def add_everything(self) -> None:
        """Note an interest in all topics, which a consumer with a pattern has."""
        self._everything += 1

    def remove_everything(self) -> None:
        """Take back an interest that `add_everything` has noted."""
        self._everything -= 1

    async def refresh(self) -> ClusterView:
        """Return a view of all topics that there is an interest in, from metadata asked for after this call.

        Raises ClientError when no broker answers.
        """
        running = self._refreshing
        if running is not None and not running.done():
            # Its request may be older than what the caller has seen. All callers that wait now share the next one.
            await asyncio.wait([running])
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._loop.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    def refresh_soon(self) -> None:
        """Begin a `refresh`, and do not wait for it."""
        self._spawn(self.refresh())

    async def metadata(self, topics: Collection[str] | None, *, allow_auto_creation: bool = False) -> Any:
        """Ask for the metadata of topics (None: all), put them into the view, and return the response.

        Error codes of topics are in the response and are not looked at. Raises ClientError when no broker answers.
        """
        connection = await self.any_connection()
        version = connection.version_of(ApiKey.METADATA)
        # Brokers before Kafka 0.11 create every topic that they are asked for. So they are asked for all topics.
        asked = topics if allow_auto_creation or version >= 4 or not topics else None
        wanted: list[M.MetadataRequest.MetadataRequestTopic] | None
        if asked is None:
            wanted = None if version >= 1 else []
        else:
            wanted = [M.MetadataRequest.MetadataRequestTopic(name=name) for name in asked]
        request = M.MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_creation or version < 4)
        answer = await connection.call(request, version=version)
        if topics is not None and (asked is None or version == 0):
            found = {each.name: each for each in answer.topics}
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer.topics = [
                found.get(name) or M.MetadataResponse.MetadataResponseTopic(name=name, error_code=missing)
                for name in topics
            ]
        self._publish(self.view.with_answer(answer, None if topics is None else frozenset(topics)))
        return answer

    async def find_topics(self, topic_ids: Iterable[bytes]) -> None:
        """Put the topics with these ids into the view, as far as they exist (KIP-516)."""
        asked = [M.MetadataRequest.MetadataRequestTopic(topic_id=each, name=None) for each in topic_ids]
        connection = await self.any_connection()
        answer = await connection.call(M.MetadataRequest(topics=asked, allow_auto_topic_creation=False))
        self._publish(self.view.with_answer(answer, frozenset()))

    async def topic(self, name: str, *, timeout_s: float | None = None, allow_auto_creation: bool = False) -> TopicView:
        """Return a topic once all its partitions have leaders.

        Raises BrokerError when it is not there within `timeout_s` seconds; None: default.api.timeout.ms.
        """

        async def attempt() -> TopicView:
            await self.metadata([name], allow_auto_creation=allow_auto_creation)
            found = self.view.topics.get(name)
            if found is None:
                raise_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, f"topic {name!r}")
                raise AssertionError
            raise_for_topic(found.error_code, f"topic {name!r}")
            for partition in found.partitions.values():
                raise_for(partition.error_code, None, f"{name}-{partition.partition_id}")
            return found

        return await self.retried(attempt, timeout_s=timeout_s)

    def leader(self, topic: str, partition_id: int) -> PartitionView | None:
        """Return what is known about a partition; None while no leader of it is known."""
        found = self.view.partition(topic, partition_id)
        return found if found is not None and found.leader_id >= 0 else None

    def note_leader(
        self, topic: str, partition_id: int, leader_id: int, leader_epoch: int, nodes: Iterable[Node]
    ) -> bool:
        """Note the leader that a response names (KIP-951). Returns whether that was news."""
        view = self.view.with_leader(topic, partition_id, leader_id, leader_epoch, nodes)
        if view is self.view:
            return False
        self._publish(view)
        return True

    async def _refresh(self) -> ClusterView:
        topics = None if self._everything > 0 else list(self._topics)
        await self.metadata(topics, allow_auto_creation=self.creates_topics and topics is not None)
        if self.logs_missing:
            self._log_missing()
        if self._aging is not None:
            self._aging.cancel()
        self._aging = self._loop.call_later(self.network.options.seconds("metadata.max.age.ms"), self.refresh_soon)
        return self.view

    def _log_missing(self) -> None:
        """Log each topic that does not exist, once until it exists.

        A topic that brokers may create has time until the next refresh.
        """
        for name in self._topics:
            found = self.view.topics.get(name)
            if found is not None and found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._missing.pop(name, None)
            elif not self._missing.get(name):
                self._missing[name] = is_due = name in self._missing or not self.creates_topics
                if is_due:
                    log.warning("topic %r is not there: %s", name, HINTS[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])

    def _publish(self, view: ClusterView) -> None:
        if view is self.view:
            return
        self.view = view
        for heard in list(self.on_view):
            heard(view)

    # --- connections ----------------------------------------------------------------------------------------

    def begin_at(self, servers: Iterable[tuple[str, int]]) -> None:
        """Use these servers instead of bootstrap.servers when no known broker is reached."""
        self._bootstrap = tuple(servers)

    async def connection(self, node_id: int, purpose: str = DATA) -> Connection:
        """Return the connection to broker `node_id`; make it if there is none, after the backoff of the last failure.

        Raises BrokerError when the broker is not in the cluster, and what `connect` raises.
        """
        key = (node_id, purpose)
        found = self._connections.get(key)
        if found is not None and not found.is_closed:
            return found
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = self._loop.create_task(self._connect_node(node_id, purpose))
            pending.add_done_callback(lambda _: self._pending.pop(key, None))
            pending.add_done_callback(_look_at)
        return await asyncio.shield(pending)

    async def any_connection(self) -> Connection:
        """Return the least busy open connection, or a new one: to a known broker, else to a bootstrap server.

        Raises ClientError when no broker is reached.
        """
        live = [each for each in self._connections.values() if not each.is_closed]
        if live:
            return min(live, key=lambda each: each.in_flight)
        if self._beginning is None or self._beginning.done():
            self._beginning = self._loop.create_task(self._any_new())
            self._beginning.add_done_callback(_look_at)
        return await asyncio.shield(self._beginning)

    async def call(self, message: M.Message, node_id: int | None = None, purpose: str = DATA, **how: Any) -> Any:
        """Send a request to broker `node_id` (None: to any), and return the response. See `Connection.call`."""
        connection = await (self.any_connection() if node_id is None else self.connection(node_id, purpose))
        return await connection.call(message, **how)

    async def controller(self) -> Connection:
        """Return a connection to the controller, or to any broker while no controller is known."""
        if self.view.controller_id < 0:
            await self.refresh()
        controller_id = self.view.controller_id
        return await (self.connection(controller_id) if controller_id >= 0 else self.any_connection())

    async def close(self) -> None:
        """Cancel refreshes and pending connections, and close the open ones."""
        for timer in (self._aging, self._idle):
            if timer is not None:
                timer.cancel()
        for task in (*self._background, *self._pending.values(), self._beginning, self._refreshing):
            if task is not None:
                task.cancel()
        for connection in self._connections.values():
            connection.close("the client is closed")

    async def _connect_node(self, node_id: int, purpose: str) -> Connection:
        node = self.view.nodes.get(node_id)
        if node is None:
            await self.refresh()
            node = self.view.nodes.get(node_id)
        if node is None:
            raise BrokerError(f"broker {node_id} is not in the cluster", code=ErrorCode.BROKER_NOT_AVAILABLE)
        try:
            connection = await self._connect(node.host, node.port)
        except (ConnectionFailed, TimedOut) as error:
            error.message = f"broker {node_id} is not reached where it is advertised: {error.message}"
            raise
        self._keep(connection, node_id, purpose)
        return connection

    async def _any_new(self) -> Connection:
        try:
            found = await self._some_new()
        except ClientError as error:
            self._note_unreached(error)
            raise
        self._unreached_since = None
        return found

    def _note_unreached(self, error: ClientError) -> None:
        """Log that no broker is reached, once that has lasted UNREACHED_S.

        Polls and other calls just wait and try again, so that otherwise nobody would hear of it.
        """
        now = self._loop.time()
        if self._unreached_since is None:
            self._unreached_since = now
            self._warn_at = now + UNREACHED_S
        if now >= self._warn_at:
            log.warning("no broker has been reached for %.0f s: %s", now - self._unreached_since, error)
            self._warn_at = now + UNREACHED_AGAIN_S

    async def _some_new(self) -> Connection:
        """Connect to any broker: try each known one once, then each bootstrap server. Return the first connection."""
        problems: dict[str, ClientError] = {}
        nodes = list(self.view.nodes.values())
        chance.shuffle(nodes)
        for node in nodes:
            try:
                return await self.connection(node.node_id, DATA)
            except ClientError as error:
                problems[f"{node.host}:{node.port}"] = error
        bootstrap = self._bootstrap
        if self.network.options["client.dns.lookup"] == CANONICAL:
            bootstrap = await canonical(bootstrap, self.network.setup_timeout_s)
        for host, port in bootstrap:
            if f"{host}:{port}" in problems:
                continue
            key = (self._bootstrap_keys.setdefault((host, port), -1 - len(self._bootstrap_keys)), "bootstrap")
            found = self._connections.get(key)
            if found is not None and not found.is_closed:
                return found
            try:
                connection = await self._connect(host, port)
            except ClientError as error:
                problems[f"{host}:{port}"] = error
                continue
            self._keep(connection, *key)
            return connection
        if not problems:
            raise ConnectionFailed(
                "there is no broker to connect to", hint="set bootstrap.servers, or is one registered in ZooKeeper?"
            )
        last = list(problems.values())[-1]
        if len(problems) > 1 and any(error.retriable for error in problems.values()):
            last = ConnectionFailed("; ".join(error.message for error in problems.values()))
        if not nodes and self.network.options["bootstrap.servers"] and isinstance(last, ConnectionFailed):
            last.hint = last.hint or NEVER_REACHED
        raise last

    async def _connect(self, host: str, port: int) -> Connection:
        address = (host, port)
        wait_s = self._not_before.get(address, 0.0) - self._loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        try:
            connection = await connect(self.network, host, port)
        except ClientError:
            options = self.network.options
            backoff = self._backoffs.setdefault(
                address, Backoff(options.seconds("reconnect.backoff.ms"), options.seconds("reconnect.backoff.max.ms"))
            )
            self._not_before[address] = self._loop.time() + backoff.next_s()
            raise
        self._backoffs.pop(address, None)
        self._not_before.pop(address, None)
        return connection

    def _keep(self, connection: Connection, node_id: int, purpose: str) -> None:
        key = (node_id, purpose)
        self._connections[key] = connection
        connection.node_id = node_id

        def closed(connection: Connection, reason: str) -> None:
            if self._connections.get(key) is connection:
                del self._connections[key]
            log.debug("connection to %s closed: %s", connection.address, reason)

        connection.on_closed = closed
        if purpose == DATA:
            connection.open(node_id)
        if self._idle is None:
            self._look_for_idle()

    def _look_for_idle(self) -> None:
        """Close connections that have carried nothing for connections.max.idle.ms; repeat while there are any."""
        limit_s = self.network.options.seconds("connections.max.idle.ms")
        self._idle = None
        if limit_s < 0 or not self._connections:
            self._last_seen.clear()
            return
        now = self._loop.time()
        seen = self._last_seen
        self._last_seen = {}
        for connection in list(self._connections.values()):
            traffic, since = seen.get(connection, (-1, now))
            if connection.in_flight or connection.traffic != traffic:
                since = now
            self._last_seen[connection] = (connection.traffic, since)
            if now - since >= limit_s:
                connection.close(f"it has carried nothing for {limit_s:g} s")
        self._idle = self._loop.call_later(limit_s / IDLE_LOOKS, self._look_for_idle)

    def _want(self, node_id: int) -> None:
        """Make the connection to a node that an engine has asked for."""
        self._spawn(self._satisfy(node_id))

    async def _satisfy(self, node_id: int) -> None:
        try:
            await self.connection(node_id)
            self._lost_nodes.pop(node_id, None)
            return
        except ClientError as error:
            self._note_lost(node_id, error)
        self.network.thread.pump.give_up(node_id)
        self.refresh_soon()

    def _note_lost(self, node_id: int, error: ClientError) -> None:
        """Log that a broker is not reached, at most once in UNREACHED_AGAIN_S: engines ask for it each second."""
        now = self._loop.time()
        if now >= self._lost_nodes.get(node_id, now):
            log.warning("%s", error)
            self._lost_nodes[node_id] = now + UNREACHED_AGAIN_S

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_look_at)

    # --- coordinators and retries ---------------------------------------------------------------------------

    async def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Return the node id of the coordinator of a group or transactional id.

        Raises BrokerError while there is none.
        """
        found = self._coordinators.get((key, kind))
        if found is not None:
            return found
        what = f"group {key!r}" if kind == GROUP else f"transactional id {key!r}"
        connection = await self.any_connection()
        version = connection.version_of(ApiKey.FIND_COORDINATOR)
        if version >= 4:
            answer = await connection.call(M.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
            answer = next((each for each in answer.coordinators if each.key == key), None)
            if answer is None:
                raise BrokerError(f"{connection.address} said nothing of {what}", code=ErrorCode.UNKNOWN_SERVER_ERROR)
        elif version == 0 and kind != GROUP:
            raise BrokerError(f"{connection.address} has no transactions", code=ErrorCode.UNSUPPORTED_VERSION)
        else:
            answer = await connection.call(M.FindCoordinatorRequest(key=key, key_type=kind))
        try:
            raise_for(answer.error_code, answer.error_message, what)
        except BrokerError as error:
            self._note_no_coordinator((key, kind), error)
            raise
        self._no_coordinator.pop((key, kind), None)
        self._publish(self.view.with_node(Node(answer.node_id, answer.host, answer.port)))
        self._coordinators[key, kind] = int(answer.node_id)
        return int(answer.node_id)

    def _note_no_coordinator(self, wanted: tuple[str, int], error: BrokerError) -> None:
        """Log that no coordinator is found, once that has lasted UNREACHED_S: groups just go on looking for one.

        A broker may be unable to create the coordinator's topic.
        """
        now = self._loop.time()
        if now >= self._no_coordinator.setdefault(wanted, now + UNREACHED_S):
            log.warning("%s", error)
            self._no_coordinator[wanted] = now + UNREACHED_AGAIN_S

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Forget a coordinator that is not reached or denies to be it. The next call looks for it again."""
        self._coordinators.pop((key, kind), None)

    async def call_coordinator(self, message: M.Message, key: str, kind: int = GROUP, **how: Any) -> Any:
        """Send a request to a coordinator, on the connection for that purpose, and return the response."""
        try:
            return await self.call(message, await self.coordinator(key, kind), COORDINATOR, **how)
        except (ConnectionFailed, TimedOut):
            self.forget_coordinator(key, kind)
            raise

    async def retried(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
        also: Collection[ErrorCode] = (),
    ) -> T:
        """Call `attempt` until it succeeds, and return its result.

        It is called again while it raises a retriable ClientError, or one whose code is in `also`, and time is left:
        `timeout_s` seconds (infinity: for ever); None: default.api.timeout.ms. Raises TimedOut when the time is over
        during an attempt, with the error of the attempt before as its cause. Else raises the error of the last attempt.
        """
        limit_s = self.network.options.seconds("default.api.timeout.ms") if timeout_s is None else timeout_s
        deadline = self._loop.time() + limit_s
        before = _deadline.set(min(deadline, _deadline.get()))
        try:
            return await self._retried_until(deadline, limit_s, attempt, also)
        finally:
            _deadline.reset(before)

    async def _retried_until(
        self, deadline: float, limit_s: float, attempt: Callable[[], Awaitable[T]], also: Collection[ErrorCode]
    ) -> T:
        backoff = retry_backoff(self.network.options)
        last: ClientError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    return await attempt()
            except TimeoutError as error:
                if limit.expired():
                    because = f"; the last attempt: {last.message}" if last is not None else self._unanswered()
                    raise TimedOut(
                        f"not done within {limit_s:g} s{because}", hint=last.hint if last else None
                    ) from last
                if not isinstance(error, TimedOut):
                    raise
                last = error
            except ClientError as error:
                if not (error.retriable or error.code in also):
                    raise
                last = error
            wait_s = backoff.next_s()
            if self._loop.time() + wait_s > deadline:
                raise last
            await asyncio.sleep(wait_s)
            if last.code in STALE_METADATA:
                self.refresh_soon()

    def left_s(self) -> float:
        """Return how much of the time of the call of `retried` that runs here is left, in seconds."""
        return max(0.0, _deadline.get() - self._loop.time())

    def _unanswered(self) -> str:
        """Return which brokers are not reached, to stand behind another statement; empty if none is known."""
        connecting = {node_id for node_id, _ in self._pending}
        silent = sorted(
            node.node_id
            for node in self.view.nodes.values()
            if node.node_id in connecting or (node.host, node.port) in self._not_before
        )
        return f"; no answer from broker {', '.join(map(str, silent))}" if silent else ""


def begin(options: Options) -> Cluster:
    """Return the Cluster of a client on a new thread, which the caller has to stop.

    Raises ValueError when options contradict each other.
    """
    thread = ClientThread(options["client.id"], options["receive.message.max.bytes"])
    try:
        return Cluster(Network(thread, options))
    except BaseException:
        thread.stop()
        raise


def _look_at(task: asyncio.Task[Any]) -> None:
    """Read the exception of a task that is done, so that asyncio does not log that nobody retrieved it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("%s", error)
