"""The acceptor: one thread that takes new connections of all listeners and gives each to a processor in turn."""

from __future__ import annotations

import errno
import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker._core.server.processor import Processor
from kbroker.model import Endpoint
from kbroker.net.endpoints import bound_endpoint, listen
from kbroker.net.pacing import pace, stop_pacing

logger = logging.getLogger(__name__)

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_S = 0.1  # how long the acceptor waits when closing the reserve descriptor did not free one
LOG_EVERY_S = 10.0
ACCEPTED_AT_ONCE = 1024
"""Most connections taken from one listener in one turn: its queue is emptied, and other listeners wait some 50 ms."""
MANY_CONNECTIONS = 10_000


class ConnectionLimits(NamedTuple):
    """How many connections may be open, and the settings of their sockets. -1 leaves a buffer size to the system."""

    max_connections: Callable[[], int] = lambda: 2**31 - 1
    max_connections_per_ip: Callable[[str], int] = lambda host: 2**31 - 1
    send_buffer_size: int = -1
    receive_buffer_size: int = -1
    backlog: int = 4096


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit. Logs one line if that is too low for MANY_CONNECTIONS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # the old limit stays
    if soft != resource.RLIM_INFINITY and soft < MANY_CONNECTIONS + 1000:
        logger.warning("at most %d open files are allowed (ulimit -n): not enough for 10,000 connections", soft)


class Acceptor:
    """Binds every listener when it is made, and accepts connections from `start` to `stop`.

    Raises ConfigError, which names the listener, if one cannot be bound.
    """

    def __init__(self, endpoints: Sequence[Endpoint], processors: Sequence[Processor], limits: ConnectionLimits):
        self._processors = processors
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._pacing = b""
        self._next = 0
        # A token is a number for one peer address that has open connections. Processors give it back, once for each
        # connection that has closed.
        self._next_token = 0
        self._hosts: dict[int, str] = {}
        self._tokens: dict[str, int] = {}
        self._open_by_host: Counter[str] = Counter()
        self._reserve = _open_reserve()
        self._last_logged = -LOG_EVERY_S
        self._wake, self._woken = socket.socketpair()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)
        self.accepted: Counter[str] = Counter()
        """Connections accepted, by listener; refused ones are counted too."""
        self.refused: Counter[str] = Counter()
        bound = []
        try:
            for index, endpoint in enumerate(endpoints):
                sock = listen(endpoint, limits.backlog, limits.receive_buffer_size)
                self._sockets.append(sock)
                self._pacing = stop_pacing(sock)
                bound.append(bound_endpoint(endpoint, sock))
                self._selector.register(sock, selectors.EVENT_READ, (index, endpoint.listener))
        except BaseException:
            self._close()
            raise
        self.endpoints = tuple(bound)
        """The bound listeners, each with its real port where port 0 was asked for."""
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting. The ports are free when this returns."""
        self._is_stopping = True
        self._wake.send(b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        self._close()

    def _close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _run(self) -> None:
        while not self._is_stopping:
            for key, _ in self._selector.select():
                if key.data is not None and isinstance(key.fileobj, socket.socket):
                    index, listener = key.data
                    self._accept_some(key.fileobj, index, listener)

    def _accept_some(self, sock: socket.socket, index: int, listener: str) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._turn_away(sock, listener, error)
                    return
                continue  # ECONNABORTED and the like: that connection is gone already
            self.accepted[listener] += 1
            try:
                self._adopt(connection, address[0], index, listener)
            except OSError:
                connection.close()  # it broke while its options were set
            except Exception:
                logger.exception("a connection from %s on %s could not be taken", address[0], listener)
                connection.close()

    def _adopt(self, connection: socket.socket, host: str, index: int, listener: str) -> None:
        self._forget_closed()
        if host.startswith("::ffff:"):
            host = host.removeprefix("::ffff:")
        problem = self._limit_reached(host)
        if problem is not None:
            self.refused[listener] += 1
            self._log_sometimes("connection of %s on %s refused: %s", host, listener, problem)
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._limits.send_buffer_size > 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_size)
        pace(connection, self._pacing)
        if host not in self._tokens:
            self._tokens[host] = self._next_token
            self._hosts[self._next_token] = host
            self._next_token += 1
        self._open_by_host[host] += 1
        processor = self._processors[self._next]
        self._next = (self._next + 1) % len(self._processors)
        processor.adopt(connection.detach(), index, self._tokens[host])

    def _limit_reached(self, host: str) -> str | None:
        allowed = self._limits.max_connections()
        if sum(processor.connection_count for processor in self._processors) >= allowed:
            return f"{allowed} connections are open (max.connections)"
        allowed = self._limits.max_connections_per_ip(host)
        if self._open_by_host[host] >= allowed:
            return f"{allowed} connections of that address are open (max.connections.per.ip)"
        return None

    def _forget_closed(self) -> None:
        for processor in self._processors:
            for token in processor.take_closed():
                host = self._hosts[token]
                self._open_by_host[host] -= 1
                if self._open_by_host[host] == 0:
                    del self._open_by_host[host], self._hosts[token], self._tokens[host]

    def _turn_away(self, sock: socket.socket, listener: str, error: OSError) -> None:
        """Refuse one connection when no descriptor is free: give up the reserve, accept, and close.

        A connection left in the queue would wake the selector again at once.
        """
        self._log_sometimes("no connection on %s can be accepted: %s", listener, error.strerror)
        self.accepted[listener] += 1
        self.refused[listener] += 1
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        try:
            sock.accept()[0].close()
        except OSError:
            self._pause()
        self._reserve = _open_reserve()

    def _pause(self) -> None:
        """Wait for others to close a descriptor; ends early when the acceptor is told to stop."""
        self._woken.settimeout(PAUSE_S)
        try:
            self._woken.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            pass

    def _log_sometimes(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._last_logged >= LOG_EVERY_S:
            self._last_logged = now
            logger.warning(message, *arguments)


class AddressLimits:
    """The limits of connections per address: max.connections.per.ip (`default`) and its overrides.

    Both may change at any time. May be used by any thread.
    """

    def __init__(self, default: Callable[[], int]):
        self._default = default
        self._overrides: Mapping[str, int] = {}
        self._by_address: Mapping[str, int] = {}

    def override(self, overrides: Mapping[str, int]) -> None:
        """Replace the overrides (host -> limit) for new connections. Does nothing if they are the same as before.

        Host names are resolved here, once. A name that cannot be resolved is logged and left out.
        """
        if overrides == self._overrides:
            return
        by_address: dict[str, int] = {}
        for host, count in overrides.items():
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):  # UnicodeError: a label of the name is too long
                logger.warning("max.connections.per.ip.overrides: %s cannot be resolved", host)
                continue
            by_address |= {str(address[4][0]): count for address in found}
        self._overrides, self._by_address = overrides, by_address

    def limit_for(self, host: str) -> int:
        """The limit of one numeric address."""
        return self._by_address.get(host, self._default())


def _open_reserve() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
