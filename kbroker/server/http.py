"""The HTTP server for /metrics, /health and /ready, on its own port: one thread, one request per connection.

Not for the open network: it has no authentication and no TLS. A connection has one deadline for its request and one for
its response, and none waits for another. When MOST_CONNECTIONS are open, a new one closes the oldest of those that have
not sent their request yet, or the oldest of all.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.errors import ConfigError
from kbroker.metrics.registry import Registry
from kbroker.model import bracketed

if TYPE_CHECKING:
    from kbroker.metrics.exposition import Exposition

LOG = logging.getLogger(__name__)

DEADLINE_S = 2.0  # for a connection's request, and again for its response; making an answer does not count
RETRY_S = 0.1
MOST_CONNECTIONS = 64
BACKLOG = 256
LARGEST_HEAD = 8192
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Server Error",
    503: "Unavailable",
}


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], Answer]
"""Called with the request's Accept header."""


def problems_route(problems: Callable[[], list[str]]) -> Route:
    """A route that answers 200 and "ok" if there are no problems, else 503 and one problem per line."""

    def route(_accept: str) -> Answer:
        found = problems()
        return Answer(503, "".join(f"{problem}\n" for problem in found).encode()) if found else Answer(200, b"ok\n")

    return route


def metrics_route(registry: Registry) -> Route:
    """A route that answers with the registry's metrics in Prometheus' text format.

    The renderer is imported at the first request.
    """
    exposition: Exposition | None = None

    def route(accept: str) -> Answer:
        nonlocal exposition
        if exposition is None:
            from kbroker.metrics.exposition import Exposition

            exposition = Exposition(registry)
        content_type, text = exposition.render(accept)
        return Answer(200, text, content_type)

    return route


class HttpServer:
    """Serves `routes` (path -> Route) from `start` to `stop`. `start` raises ConfigError if it cannot listen."""

    def __init__(self, host: str, port: int, routes: dict[str, Route], deadline_s: float = DEADLINE_S):
        self._host, self._port = host, port
        self._routes = routes
        self._deadline_s = deadline_s
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector
        self._peers: dict[int, _Peer] = {}
        """Connections by descriptor; only the server's thread uses it."""

    @property
    def address(self) -> tuple[str, int]:
        """The address that it listens on, with the real port."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return host, port

    def start(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._socket = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ConfigError(f"kbroker.http.address: cannot listen on {self._host}:{self._port}: {reason}") from error
        LOG.info("%s on http://%s:%d", ", ".join(self._routes), bracketed(self._host), self.address[1])
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._socket is None or self._thread is None:
            return
        self._stopping.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with self._selector:
            try:
                while not self._stopping.is_set():
                    self._turn()
            finally:
                for peer in list(self._peers.values()):
                    self._close(peer)

    def _turn(self) -> None:
        """Wait for events or the next deadline, and serve what is ready."""
        due = min((peer.deadline for peer in self._peers.values()), default=None)
        ready = self._selector.select(None if due is None else max(due - time.monotonic(), 0.0))
        began = time.monotonic()
        for key, _ in ready:
            if key.fileobj is self._socket:
                self._accept()
            elif (peer := self._peers.get(key.fd)) is not None and self._serve(peer):
                self._close(peer)
        now = time.monotonic()
        for peer in list(self._peers.values()):
            if peer.deadline <= began:
                self._close(peer)
            peer.deadline += now - began  # this turn made answers for others; a peer gets that time back

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return  # gone already
        except OSError:
            self._stopping.wait(RETRY_S)  # no descriptor is left, or the server stops
            return
        connection.setblocking(False)
        if len(self._peers) >= MOST_CONNECTIONS:
            silent = (peer for peer in self._peers.values() if not peer.unsent)
            self._close(next(silent, next(iter(self._peers.values()))))
        self._peers[connection.fileno()] = _Peer(connection, time.monotonic() + self._deadline_s)
        self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, peer: _Peer) -> None:
        del self._peers[peer.connection.fileno()]
        self._selector.unregister(peer.connection)
        peer.connection.close()

    def _serve(self, peer: _Peer) -> bool:
        """Receive from a connection, or send to it. Returns whether it can be closed."""
        try:
            if not peer.unsent:
                if not self._receive(peer):
                    return False
                peer.deadline = time.monotonic() + self._deadline_s
                self._selector.modify(peer.connection, selectors.EVENT_WRITE)
            peer.unsent = peer.unsent[peer.connection.send(peer.unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            return True  # the peer is gone
        return not peer.unsent

    def _receive(self, peer: _Peer) -> bool:
        """Receive more of a request. Returns whether it is complete or refused; the response is in `unsent` then."""
        part = peer.connection.recv(LARGEST_HEAD)
        peer.head += part
        head = peer.head
        if b"\r\n\r\n" not in head and b"\n\n" not in head:
            if part and len(head) <= LARGEST_HEAD:
                return False
            peer.unsent = _encoded(Answer(400, b"not a request\n"), True)
            return True
        lines = head.decode("latin-1").splitlines()
        method, _, target = lines[0].partition(" ")
        if method not in ("GET", "HEAD"):
            peer.unsent = _encoded(Answer(405, b"only GET and HEAD\n"), True)
            return True
        accept = next((line[7:].strip() for line in lines[1:] if line[:7].lower() == "accept:"), "")
        peer.unsent = _encoded(self._answer(target.split(" ")[0].split("?")[0], accept), method == "GET")
        return True

    def _answer(self, path: str, accept: str) -> Answer:
        route = self._routes.get(path)
        if route is None:
            return Answer(404, f"there is {', '.join(self._routes)}\n".encode())
        try:
            return route(accept)
        except Exception:
            LOG.exception("%s failed", path)
            return Answer(500, b"see the log\n")


class _Peer:
    """A connection: the bytes that it has sent so far, and the bytes that are still to be sent to it."""

    __slots__ = ("connection", "deadline", "head", "unsent")

    def __init__(self, connection: socket.socket, deadline: float):
        self.connection = connection
        self.deadline = deadline
        self.head = b""
        self.unsent = memoryview(b"")


def _encoded(answer: Answer, with_body: bool) -> memoryview:
    head = (
        f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    )
    return memoryview(head.encode() + (answer.body if with_body else b""))
