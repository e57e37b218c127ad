"""A port of this machine that stays one test's own while nobody listens on it."""

from __future__ import annotations

import socket


class ReservedPort:
    """Bound, not listened on: a connection is refused, the system gives the port to nobody else, and whoever asks for
    it by its number with SO_REUSEADDR, as the broker does, can listen on it."""

    def __init__(self, host: str):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(address)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
