"""A broker that answers as a test tells it to: rightly, wrongly, late or not at all."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_request, encode_response
from kbroker.protocol.messages import Message
from tests.kit.brokers import answers
from tests.kit.brokers.answers import ALL, Ranges

READ_TIMEOUT_S = 30


@dataclass(frozen=True)
class Asked:
    """A request that the broker received."""

    api_key: int
    version: int
    correlation_id: int
    frame: bytes

    @property
    def message(self) -> Message:
        return decode_request(self.frame)[1]


def asked_by(frame: bytes) -> Asked:
    return Asked(*struct.unpack(">hhi", frame[:8]), frame)


class Peer:
    """A client's connection, on the side of the scripted broker."""

    def __init__(self, connection: socket.socket):
        self.socket = connection
        connection.settimeout(READ_TIMEOUT_S)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def request(self) -> Asked:
        """Return the next request. EOFError if the client has closed the connection."""
        return asked_by(self.frame())

    def frame(self) -> bytes:
        """Return the bytes behind the next size field, whether they are a request or not."""
        return self.receive(int.from_bytes(self.receive(4)))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, correlation_id: int, body: bytes) -> None:
        """Send a response with a header of version 0."""
        self.send(struct.pack(">ii", len(body) + 4, correlation_id) + body)

    def respond(self, asked: Asked, message: Message) -> None:
        """Send the right response to a request."""
        self.send(encode_response(ApiKey(asked.api_key), asked.version, asked.correlation_id, message))

    def requests(self, ranges: Ranges = ALL) -> Iterator[Asked]:
        """Yield each request but those for ApiVersions, which are answered here. EOFError when the client is gone."""
        while True:
            asked = self.request()
            if asked.api_key == ApiKey.API_VERSIONS:
                self.respond(asked, answers.versions(ranges))
            else:
                yield asked

    def serve_versions(self, ranges: Ranges = ALL) -> Asked:
        """Answer ApiVersions, and return the first other request."""
        return next(self.requests(ranges))

    def wait_for_end(self) -> None:
        """Read until the client closes the connection."""
        with contextlib.suppress(OSError):
            while self.socket.recv(1 << 16):
                pass

    def reset(self) -> None:
        """Close the connection with RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class ScriptedBroker:
    """A context manager.

    `script(peer)` runs for each connection in its own thread; when it ends, the connection is closed.
    """

    def __init__(self, script: Callable[[Peer], None], port: int = 0):
        """`port`: 0 for any that is free."""
        self.script = script
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self.listener.getsockname()[1]
        self.accepted = 0
        self.failures: list[BaseException] = []
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []

    def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket."""
        connected = socket.create_connection(("127.0.0.1", self.port))
        connected.setblocking(False)
        return connected

    def __enter__(self) -> Self:
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(10)
        self.listener.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for peer in self._peers:
            peer.socket.close()
        if kind is None and self.failures:
            raise self.failures[0]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            peer = Peer(connection)
            self._peers.append(peer)
            thread = threading.Thread(target=self._serve, args=[peer], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: Peer) -> None:
        try:
            self.script(peer)
        except (EOFError, OSError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
            peer.socket.close()  # a client of a broker that lies comes back thousands of times
