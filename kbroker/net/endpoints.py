"""Listening sockets, and the addresses that clients are told to connect to."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence

from kbroker.errors import ConfigError
from kbroker.model import Endpoint

EVERY_IPV4 = frozenset({"", "0.0.0.0"})
EVERY_INTERFACE = "::"


def listen(endpoint: Endpoint, backlog: int, receive_buffer_size: int = -1) -> socket.socket:
    """Return a non-blocking listening socket.

    The hosts "" and 0.0.0.0 mean every IPv4 interface, :: every interface of both families. Accepted connections
    inherit `receive_buffer_size`, in bytes; -1 leaves it to the system. Raises ConfigError, which names the listener.
    """
    try:
        family, address = _resolve(endpoint)
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, endpoint.host != EVERY_INTERFACE)
            if receive_buffer_size > 0:
                # Before listen: the window scale is agreed on when a connection is made.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_size)
            sock.bind(address)
            sock.listen(backlog)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(f"listeners: {endpoint}: {_reason(error)}") from error
    return sock


def _resolve(endpoint: Endpoint) -> tuple[int, tuple[object, ...]]:
    if endpoint.host in EVERY_IPV4:
        return socket.AF_INET, ("0.0.0.0", endpoint.port)
    # Bytes go to the resolver as they are; text goes through the IDNA codec, whose tables are large.
    host = endpoint.host.encode() if endpoint.host.isascii() else endpoint.host
    found = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, address


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; is another broker running?"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no interface of this machine has that address"
    if error.errno == errno.EACCES:
        return "no permission for that port"
    if isinstance(error, socket.gaierror):
        return f"the name cannot be resolved ({error.strerror})"
    return os.strerror(error.errno) if error.errno else str(error)


def bound_endpoint(endpoint: Endpoint, sock: socket.socket) -> Endpoint:
    """Return `endpoint` with the port that its socket got."""
    return Endpoint(endpoint.listener, endpoint.security_protocol, endpoint.host, sock.getsockname()[1])


class AdvertisedEndpoints:
    """Decides which address a client is told to connect to.

    It is the address that advertised.listeners has for the listener that the client used, else the address that the
    client connected to. So a broker without that setting works over loopback, over a network, and with port 0.
    """

    def __init__(self, bound: Sequence[Endpoint], advertised: Sequence[Endpoint]):
        self._bound = {endpoint.listener: endpoint for endpoint in bound}
        self._advertised = {
            endpoint.listener: endpoint if endpoint.port else self._with_bound_port(endpoint) for endpoint in advertised
        }

    def _with_bound_port(self, endpoint: Endpoint) -> Endpoint:
        bound = self._bound.get(endpoint.listener)
        port = bound.port if bound is not None else endpoint.port
        return Endpoint(endpoint.listener, endpoint.security_protocol, endpoint.host, port)

    def endpoint_for(self, listener: str, local_host: str, local_port: int) -> Endpoint:
        """Return the endpoint for a client that is connected to `local_host`:`local_port` of `listener`."""
        advertised = self._advertised.get(listener)
        if advertised is not None:
            return advertised
        return Endpoint(listener, self._bound[listener].security_protocol, local_host, local_port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a socket that is bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
