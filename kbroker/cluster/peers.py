"""Requests to the other brokers of the cluster, over connections that this broker makes.

`Peers` is the face, which the simulator has too. `PeerNetwork` is the real one: one thread, whose loop and connections
are those of the client (`client/network`). It hands out several `NetworkPeers`, each with connections of its own, so
that a request that waits long (a marker that waits for replicas) does not stand in front of the controller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from kbroker.client.config.network import NETWORK
from kbroker.client.config.parsing import parse_options
from kbroker.client.errors import ClientError, ConnectionFailed
from kbroker.client.network.backoff import Backoff
from kbroker.client.network.connecting import connect
from kbroker.client.network.connection import Connection
from kbroker.client.network.network import Network
from kbroker.client.network.thread import ClientThread
from kbroker.errors import KbrokerError, NotNow
from kbroker.model import Endpoint
from kbroker.protocol.messages import Message

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
"""Waits before a broker that was not reached is connected to again, doubled with each failure."""
STARTING_S = 5.0
"""How long a port that was never reached may refuse before its broker is taken for gone: Apache Kafka registers before
it listens."""
CLOSE_S = 5.0
CLOSED = "this broker's connections are closed"


class PeerError(NotNow):
    """Given in place of an answer that will not come."""

    def __init__(self, node_id: int, what: str, *, sent: bool = False, refused: bool = False):
        super().__init__(f"broker {node_id}: {what}")
        self.node_id = node_id
        self.sent = sent
        """Whether the broker may have carried out the request."""
        self.refused = refused
        """Whether nobody listens at the broker's address: its process is not there."""


Answered = Callable[[Message | PeerError], None]
AskAnswered = Callable[[Message | PeerError, int], None]


class Peers(Protocol):
    """Requests to brokers by their ids. Any thread may call it; nothing here waits.

    Requests to one broker are sent in the order of the calls, over one connection, and answered in that order.
    """

    def send(self, node_id: int, message: Message, version: int, answered: Answered, *, timeout_ms: int) -> None:
        """Send a request. `answered` is called once, on the peers' thread, which it must not block.

        Without an answer within `timeout_ms` the connection is closed, so that a late answer is never taken for
        another one.
        """
        ...

    def ask(
        self,
        node_id: int,
        make: Callable[[int], Message],
        api_key: int,
        highest_version: int,
        answered: AskAnswered,
        *,
        timeout_ms: int,
    ) -> None:
        """Send `make(version)` in the highest version that the broker serves, up to `highest_version`.

        `answered` also gets the version; -1 with a PeerError.
        """
        ...

    def served(self, node_id: int, api_key: int) -> int:
        """Return the highest version of an API that the broker has advertised; -1 if that is not known."""
        ...

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        """Replace the addresses. Requests to a broker that is gone, or that has moved, end with a PeerError."""
        ...

    def keep(self, node_ids: Collection[int]) -> None:
        """Keep connections to exactly these brokers open, also while there is nothing to send."""
        ...

    def on_refused(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with a broker's id when nobody listens at its address any more: the process is gone.

        It is called on the peers' thread, once until the broker is reached again. A broker that is kept or sent to is
        looked at as soon as a connection to it breaks. One that was not reached yet may still be starting: it is told
        only when its port has refused for STARTING_S.
        """
        ...


class _Request(NamedTuple):
    """What is to be sent. `message` of an `ask` is made once the broker's versions are known."""

    make: Callable[[int], Message]
    api_key: int
    version: int
    is_fixed: bool
    answered: AskAnswered
    timeout_ms: int
    deadline: float


class PeerNetwork:
    """The thread and the security of this broker's connections to others."""

    def __init__(self, node_id: int, options: Mapping[str, Any] | None = None):
        """`options` are those of a client, for the inter-broker listener. Raises ValueError if one is bad."""
        given = {"client.id": str(node_id), **(options or {})}
        parsed = parse_options(NETWORK, given, {}, "the inter-broker client")
        self._thread = ClientThread(f"broker-{node_id}", parsed["receive.message.max.bytes"])
        try:
            self._network = Network(self._thread, parsed)
        except BaseException:
            self._thread.stop()
            raise
        self._all: list[NetworkPeers] = []

    def peers(self) -> NetworkPeers:
        """Return peers with connections of their own."""
        made = NetworkPeers(self._network)
        self._all.append(made)
        return made

    def close(self) -> None:
        """Close the connections and end the thread. Requests without an answer end with a PeerError. Idempotent."""
        if self._thread.is_running:
            with contextlib.suppress(ClientError):
                self._thread.call(self._end(), CLOSE_S)
        self._thread.stop()

    async def _end(self) -> None:
        for each in self._all:
            each.end()
        # The cancelled tasks take their last step, and then what was to be called at their end is called.
        for _ in range(2):
            await asyncio.sleep(0)


class NetworkPeers:
    """Peers over TCP. `set_brokers`, `keep` and requests are carried out by the thread, in the order of the calls."""

    def __init__(self, network: Network):
        self._network = network
        self._nodes: dict[int, _Node] = {}
        self._kept: frozenset[int] = frozenset()
        self._served: dict[int, Mapping[int, tuple[int, int]]] = {}
        self._refused_callbacks: list[Callable[[int], None]] = []
        self._is_ended = False

    def send(self, node_id: int, message: Message, version: int, answered: Answered, *, timeout_ms: int) -> None:
        assert message.API_KEY is not None
        request = _Request(
            lambda _: message, message.API_KEY, version, True, lambda answer, _: answered(answer), timeout_ms,
            self._network.thread.loop.time() + timeout_ms / 1000,
        )  # fmt: skip
        self._hand_over(node_id, request)

    def ask(
        self,
        node_id: int,
        make: Callable[[int], Message],
        api_key: int,
        highest_version: int,
        answered: AskAnswered,
        *,
        timeout_ms: int,
    ) -> None:
        """Send a request in the best version that both know; the contract is that of `Peers.ask`."""
        deadline = self._network.thread.loop.time() + timeout_ms / 1000
        self._hand_over(node_id, _Request(make, api_key, highest_version, False, answered, timeout_ms, deadline))

    def served(self, node_id: int, api_key: int) -> int:
        return self._served.get(node_id, {}).get(api_key, (0, -1))[1]

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        self._network.thread.call_soon(self._set_brokers, dict(brokers))

    def keep(self, node_ids: Collection[int]) -> None:
        self._network.thread.call_soon(self._keep, frozenset(node_ids))

    def on_refused(self, callback: Callable[[int], None]) -> None:
        self._refused_callbacks.append(callback)

    # --- on the thread ------------------------------------------------------------------------------------------------

    def _hand_over(self, node_id: int, request: _Request) -> None:
        if not self._network.thread.call_soon(self._add, node_id, request):
            _fail(request, PeerError(node_id, CLOSED))

    def _add(self, node_id: int, request: _Request) -> None:
        node = self._nodes.get(node_id)
        if node is None:
            _fail(request, PeerError(node_id, CLOSED if self._is_ended else "its address is not known"))
        else:
            node.add(request)

    def _set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        if self._is_ended:
            return
        for node_id, node in list(self._nodes.items()):
            endpoint = brokers.get(node_id)
            if endpoint is None or (endpoint.host, endpoint.port) != node.address:
                del self._nodes[node_id]
                self._served.pop(node_id, None)
                node.end("it is gone" if endpoint is None else "it has another address now")
        for node_id, endpoint in brokers.items():
            if node_id not in self._nodes:
                self._nodes[node_id] = _Node(
                    self._network, node_id, (endpoint.host, endpoint.port), self._note_served, self._note_refused
                )
        self._keep(self._kept)

    def _keep(self, node_ids: frozenset[int]) -> None:
        self._kept = node_ids
        for node_id, node in self._nodes.items():
            node.keep(node_id in node_ids)

    def _note_served(self, node_id: int, served: Mapping[int, tuple[int, int]]) -> None:
        self._served = {**self._served, node_id: dict(served)}

    def _note_refused(self, node_id: int) -> None:
        for callback in self._refused_callbacks:
            try:
                callback(node_id)
            except Exception:
                log.exception("a listener for brokers that are gone")

    def end(self) -> None:
        """Close the connections for good; for the thread."""
        self._is_ended = True
        for node in self._nodes.values():
            node.end(CLOSED)
        self._nodes.clear()


class _Node:
    """One broker at one address: its connection, and the requests that wait for it. For the thread."""

    def __init__(
        self,
        network: Network,
        node_id: int,
        address: tuple[str, int],
        note_served: Callable[[int, Mapping[int, tuple[int, int]]], None],
        note_refused: Callable[[int], None],
    ):
        self.address = address
        self._network = network
        self._node_id = node_id
        self._note_served = note_served
        self._note_refused = note_refused
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self._waiting: deque[_Request] = deque()
        self._is_kept = False
        self._is_looked_at = False
        """Whether one more attempt to connect is to be made although nothing asks for it."""
        self._is_ended = False
        self._is_told_refused = False
        self._is_reached = False
        """Whether there was ever a connection."""
        self._refuses_since: float | None = None
        self._backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        self._not_before = 0.0
        self._connected_at = 0.0

    def add(self, request: _Request) -> None:
        if self._connection is not None and not self._connection.is_closed:
            self._begin(self._connection, request)
            return
        self._waiting.append(request)
        self._network.thread.loop.call_at(request.deadline, self._expire)
        self._connect_soon()

    def keep(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        if is_kept and self._connection is None:
            self._connect_soon()

    def end(self, reason: str) -> None:
        self._is_ended = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close(reason)
            self._connection = None
        for task in self._exchanges:
            task.cancel()
        self._fail_waiting(PeerError(self._node_id, reason))

    # --- the connection -----------------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._connecting is None and not self._is_ended:
            self._connecting = self._network.thread.loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Connect, again and again while there is a reason to. What waits is told after each failure."""
        loop = self._network.thread.loop
        try:
            while not self._is_ended and (self._waiting or self._is_kept or self._is_looked_at):
                self._is_looked_at = False
                await asyncio.sleep(max(self._not_before - loop.time(), 0))
                try:
                    connection = await connect(self._network, *self.address)
                except ClientError as error:
                    self._not_before = loop.time() + self._backoff.next_s()
                    self._failed(error)
                    continue
                if self._is_ended:
                    connection.close("it is not needed any more")
                    return
                self._connected(connection)
                return
        finally:
            self._connecting = None

    def _failed(self, error: ClientError) -> None:
        refused = isinstance(error, ConnectionFailed) and error.refused
        if refused:
            self._refused(self._network.thread.loop.time())
        else:
            self._refuses_since = None
        self._fail_waiting(PeerError(self._node_id, str(error), refused=refused))

    def _refused(self, now: float) -> None:
        """Tell once that the process is gone, unless it may be one that does not listen yet."""
        if self._refuses_since is None:
            self._refuses_since = now
        is_gone = self._is_reached or now - self._refuses_since >= STARTING_S
        if is_gone and not self._is_told_refused:
            self._is_told_refused = True
            self._note_refused(self._node_id)

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        self._is_reached = True
        self._refuses_since = None
        self._connected_at = self._network.thread.loop.time()
        self._is_told_refused = False
        connection.on_closed = self._closed
        self._note_served(self._node_id, connection.served)
        while self._waiting:
            self._begin(connection, self._waiting.popleft())

    def _closed(self, connection: Connection, reason: str) -> None:
        if connection is not self._connection:
            return
        log.debug("the connection to broker %d is closed: %s", self._node_id, reason)
        self._connection = None
        now = self._network.thread.loop.time()
        if now - self._connected_at >= LONGEST_WAIT_S:
            self._backoff.failures = 0
        # A connection that has lived is made again at once: a port that refuses says that the process is gone. One that
        # breaks soon, again and again, is made with pauses.
        self._not_before = now + (self._backoff.next_s() if self._backoff.failures else 0)
        self._backoff.failures = max(self._backoff.failures, 1)
        self._is_looked_at = bool(self._exchanges)
        if self._is_kept or self._is_looked_at:
            self._connect_soon()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _fail_waiting(self, error: PeerError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            _fail(request, error)

    def _expire(self) -> None:
        now = self._network.thread.loop.time()
        late = [request for request in self._waiting if request.deadline <= now]
        self._waiting = deque(request for request in self._waiting if request.deadline > now)
        for request in late:
            _fail(request, PeerError(self._node_id, f"not connected within {request.timeout_ms} ms"))

    def _begin(self, connection: Connection, request: _Request) -> None:
        """Send a request. Tasks take their first step in the order in which they are made, so requests leave in it."""
        task = self._network.thread.loop.create_task(self._exchange(connection, request))
        self._exchanges.add(task)
        task.add_done_callback(lambda ended: self._exchanged(ended, request))

    def _exchanged(self, task: asyncio.Task[None], request: _Request) -> None:
        """Answer the request of a task that was cancelled before its first step: nothing of `_exchange` has run."""
        self._exchanges.discard(task)
        if task.cancelled():
            _fail(request, PeerError(self._node_id, "the connection is closed"))

    async def _exchange(self, connection: Connection, request: _Request) -> None:
        error: PeerError
        sent = False
        try:
            version = request.version
            if not request.is_fixed:
                lowest, highest = connection.served.get(request.api_key, (0, -1))
                version = min(version, highest)
                if version < lowest:
                    raise ConnectionFailed(f"it does not serve API {request.api_key}")
            left_ms = int((request.deadline - self._network.thread.loop.time()) * 1000)
            message = request.make(version)
            sent = True
            answer = await connection.call(message, version=version, timeout_ms=max(left_ms, 1))
        except asyncio.CancelledError:
            error = PeerError(self._node_id, "the connection is closed", sent=sent)
        except KbrokerError as failure:
            error = PeerError(self._node_id, str(failure), sent=sent)
            if sent:
                connection.close(f"a request got no answer: {failure}")
        except Exception as failure:
            log.exception("a request to broker %d", self._node_id)
            error = PeerError(self._node_id, repr(failure), sent=sent)
        else:
            _answer(request, answer, version)
            return
        _fail(request, error)


def _fail(request: _Request, error: PeerError) -> None:
    _answer(request, error, -1)


def _answer(request: _Request, answer: Message | PeerError, version: int) -> None:
    try:
        request.answered(answer, version)
    except Exception:
        log.exception("an answer of a broker")
