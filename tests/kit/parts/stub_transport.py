"""A transport that only changes the bytes, without encryption: it shows that nothing depends on sendfile."""

from __future__ import annotations

import socket

from tests.kit.clients.wire import WireClient

KEY = 0x5A
_TABLE = bytes(byte ^ KEY for byte in range(256))


def scramble(data: bytes) -> bytes:
    return data.translate(_TABLE)


class XorTransport:
    """The transport on the broker's side."""

    largest_piece = 0

    def decrypt(self, data: bytes) -> bytes:
        return scramble(data)

    def encrypt(self, data: bytes) -> bytes:
        XorTransport.largest_piece = max(XorTransport.largest_piece, len(data))
        return scramble(data)


class BrokenTransport:
    """A transport that refuses everything."""

    def decrypt(self, data: bytes) -> bytes:
        raise ValueError("not what was agreed on")

    def encrypt(self, data: bytes) -> bytes:
        raise ValueError("not what was agreed on")


class XorSocket:
    """The client's side: as much of a socket as `WireClient` uses."""

    def __init__(self, plain: socket.socket):
        self.plain = plain

    def sendall(self, data: bytes) -> None:
        self.plain.sendall(scramble(data))

    def recv(self, size: int) -> bytes:
        return scramble(self.plain.recv(size))

    def close(self) -> None:
        self.plain.close()


def scrambled(client: WireClient) -> WireClient:
    """Have `client` speak through the stub from now on."""
    client.socket = XorSocket(client.socket)  # type: ignore[assignment]
    return client
