"""A tiny blocking client, one connection: exact versions, raw bytes, no retries. For tests of handlers and oracles."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_response, encode_request
from kbroker.protocol.messages import Message


class ConnectionClosed(Exception):
    """The broker closed the connection (or reset it)."""


class WireClient:
    """`WireClient(host, port).call(ApiKey.METADATA, 12, M.MetadataRequest(...))` -> `M.MetadataResponse`.

    Every wait is bounded by `timeout_s` (TimeoutError). Requests may be pipelined with `send` and `receive`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str | None = "wire",
        timeout_s: float = 10,
        source: tuple[str, int] | None = None,
    ):
        self.client_id = client_id
        self.socket = socket.create_connection((host, port), timeout_s, source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0

    def call(self, api_key: ApiKey, version: int, message: Message) -> Any:
        """Send one request, wait for its response."""
        return self.receive(api_key, version, self.send(api_key, version, message))

    def send(self, api_key: ApiKey, version: int, message: Message) -> int:
        """Send without waiting; returns the correlation id."""
        self.correlation_id += 1
        self.send_raw(encode_request(api_key, version, self.correlation_id, self.client_id, message))
        return self.correlation_id

    def receive(self, api_key: ApiKey, version: int, correlation_id: int) -> Any:
        """Receive the next response, which must be the one to this request."""
        got, response = decode_response(api_key, version, self.read_frame())
        assert got == correlation_id, f"response to {got}, expected {correlation_id}"
        return response

    def send_raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionClosed(str(error)) from error

    def read_frame(self) -> bytes:
        """Return the next response without its size field: header and body."""
        return self._read(int.from_bytes(self._read(4), signed=True))

    def is_closed(self) -> bool:
        """Wait for the broker to close the connection. Return False if it sends something or `timeout_s` passes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise ConnectionClosed(str(error)) from error
            if not part:
                raise ConnectionClosed(f"closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)
