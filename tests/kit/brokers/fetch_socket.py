"""The socket of a stand-in that serves Fetch to one client in the caller's thread: a request in, its response out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from kbroker._core.client.pump import Pump, PumpConnection
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_request, encode_response
from kbroker.protocol.messages import RequestHeader


class FetchSocket:
    """One end of a socket pair; the client's pump has the other. `version` is the version of Fetch that is served."""

    def __init__(self, version: int):
        self.version = version
        self.requests: list[Any] = []  # decoded, oldest first
        self.mangle: Callable[[bytes], bytes] | None = None  # what becomes of the next response behind its header
        self.socket: socket.socket | None = None
        self.connection: PumpConnection | None = None
        self.received = b""

    def connect_to(self, pump: Pump, node_id: int) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.socket, self.received = ours, b""
        self.connection = pump.adopt(theirs.detach(), node_id)
        self.connection.open(node_id, {ApiKey.FETCH: self.version})

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def take_request(self) -> tuple[RequestHeader, Any] | None:
        """Return the next request if one has come."""
        if self.socket is None:
            return None
        try:
            self.received += self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return None
        if len(self.received) < 4 or len(self.received) < 4 + int.from_bytes(self.received[:4]):
            return None
        size = int.from_bytes(self.received[:4])
        header, message = decode_request(self.received[4 : 4 + size])
        self.received = self.received[4 + size :]
        self.requests.append(message)
        return header, message

    def encode(self, header: RequestHeader, answer: Any) -> bytes:
        """Return the response's frame; `mangle` has been applied, once."""
        version = header.request_api_version
        response = encode_response(ApiKey.FETCH, version, header.correlation_id, answer)
        if self.mangle is not None:
            head = 8 + (version >= 12)
            body = self.mangle(response[head:])
            response = (head - 4 + len(body)).to_bytes(4) + response[4:head] + body
            self.mangle = None
        return response
