"""A TCP port that stays reserved for a test, also while nobody listens on it."""

from __future__ import annotations

import socket


class ReservedPort:
    """A socket that is bound to a port but does not listen.

    Connections are refused, and the kernel gives the port to nobody else. A process that binds the port by its number
    with SO_REUSEADDR, as the broker does, can listen on it.
    """

    def __init__(self, host: str):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(address)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Close the socket: the kernel may give the port to others."""
        self._socket.close()
