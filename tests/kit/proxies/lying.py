"""A proxy between clients and a broker, which falsifies the broker's answers for as long as a test says."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable

from tests.kit.brokers.scripted import Peer, ScriptedBroker

SIZE = 4
HEADER = 8  #: size and correlation id


class Silence(Exception):
    """The proxy sends nothing more on this connection."""


def _another_id(frame: bytes) -> bytes:
    return frame[:SIZE] + struct.pack(">i", int.from_bytes(frame[SIZE:HEADER]) + 7) + frame[HEADER:]


def _with_size(size: int) -> Callable[[bytes], bytes]:
    return lambda frame: struct.pack(">i", size) + frame[SIZE:]


def _resized(body: bytes) -> Callable[[bytes], bytes]:
    """Return a lie: an answer with the right length and correlation id, and with `body` as its content."""
    return lambda frame: struct.pack(">i", SIZE + len(body)) + frame[SIZE:HEADER] + body


def _cut(frame: bytes) -> bytes:
    half = frame[HEADER : (HEADER + len(frame)) // 2]
    return _resized(half)(frame)


def _silent(frame: bytes) -> bytes:
    raise Silence


def _gone(frame: bytes) -> bytes:
    raise EOFError


LIES: dict[str, Callable[[bytes], bytes]] = {
    "another correlation id": _another_id,
    "a negative length": _with_size(-1),
    "a length of 2 GiB": _with_size((1 << 31) - 1),
    "a length that is too short": _with_size(5),
    "a length that is too long": lambda frame: _with_size(len(frame) + 50)(frame),
    "an answer cut in half": _cut,
    "an empty answer": _resized(b""),
    "rubbish": _resized(b"\xff" * 200),
    "zeros": _resized(b"\0" * 200),
    "a web server": lambda frame: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half an answer and the end": lambda frame: frame[: len(frame) // 2],
    "the end": _gone,
    "silence": _silent,
}
"""Name of a lie -> what it makes of a whole answer."""


class LyingProxy(ScriptedBroker):
    """A context manager. Clients come to the broker through `port`, if the broker advertises it.

    `lie` is a name of LIES, for the answers of `api_keys`, or None.
    """

    def __init__(self, target_port: int = 0):
        super().__init__(self.serve)
        self.target_port = target_port
        self.lie: str | None = None
        self.api_keys: frozenset[int] = frozenset()
        self.told = 0

    def serve(self, peer: Peer) -> None:
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.target_port))) as connection:
            server = Peer(connection)
            while True:
                asked = peer.request()
                server.send(struct.pack(">i", len(asked.frame)) + asked.frame)
                size = server.receive(SIZE)
                frame = size + server.receive(int.from_bytes(size))
                lie = self.lie
                if lie is None or asked.api_key not in self.api_keys:
                    peer.send(frame)
                    continue
                self.told += 1
                try:
                    peer.send(LIES[lie](frame))
                except Silence:
                    peer.wait_for_end()
                    return
                if lie == "half an answer and the end":
                    return
