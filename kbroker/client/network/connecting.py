"""Makes connections to brokers: connected, encrypted, authenticated, and their versions known.

Each step of `connect` is bounded in time: connecting (to all addresses of the name together) by
socket.connection.setup.timeout.ms, the TLS handshake by the same again, each request of the negotiation and of SASL by
request.timeout.ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from kbroker.client.config.option import Options
from kbroker.client.errors import AuthenticationFailed, ConnectionFailed, TimedOut
from kbroker.client.network import versions
from kbroker.client.network.connection import Connection
from kbroker.client.network.network import Network
from kbroker.client.network.resolver import addresses_of
from kbroker.client.security.sasl_tokens import authenticate_by_tokens
from kbroker.client.security.tls import TlsTransport
from kbroker.model import bracketed

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("kbroker.client")


class Address(NamedTuple):
    """A broker's host, a name or an IP address, and its port. As text: HOST:PORT, with an IPv6 address in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


async def connect(network: Network, host: str, port: int) -> Connection:
    """Return a connection that is ready for calls, but not opened for engines.

    Raises ClientError, which says what failed, with the address.
    """
    address = Address(host, port)
    connection = await _negotiated(network, address, authenticated=False)
    if not network.uses_sasl:
        return connection
    if not connection.is_authenticated_by_requests:
        # Kafka before 1.0 answers tokens without response headers: a new connection begins with the authentication.
        connection.close("it is authenticated in another way")
        return await _negotiated(network, address, authenticated=True)
    try:
        await connection.authenticate()
    except BaseException:
        connection.close("it could not be authenticated")
        raise
    return connection


async def _negotiated(network: Network, address: Address, *, authenticated: bool) -> Connection:
    """Return a connection that is encrypted where the options say so, and whose versions are known.

    `authenticated`: authenticate by tokens first, before any request.
    """
    connection = await _adopted(network, address, authenticated=authenticated)
    taken_for = network.options["broker.version.fallback"]
    if str(address) in network.silent:
        connection.served.update(versions.BEFORE_API_VERSIONS[taken_for])
        return connection
    try:
        await connection.negotiate(int(network.setup_timeout_s * 1000) if taken_for else None)
        return connection
    except BaseException as error:
        connection.close("it could not be set up")
        if not isinstance(error, ConnectionFailed | TimedOut):
            raise
        if not taken_for:
            error.hint = error.hint or setup_hint(network)
            raise
    log.info("%s does not say what it serves, and is taken for Kafka %s", address, taken_for)
    network.silent.add(str(address))
    connection = await _adopted(network, address, authenticated=authenticated)
    connection.served.update(versions.BEFORE_API_VERSIONS[taken_for])
    return connection


async def _adopted(network: Network, address: Address, *, authenticated: bool) -> Connection:
    sock = await _connected(network, address)
    transport = None
    try:
        if network.ssl_context is not None:
            transport = await _encrypted(network, sock, address)
        if authenticated:
            await authenticate_by_tokens(network.options, sock, transport, str(address))
    except BaseException:
        _forget(network, sock)
        raise
    network.thread.connecting.discard(sock)
    return Connection(network, str(address), network.thread.pump.adopt(sock.detach(), -1, transport))


def setup_hint(network: Network) -> str:
    """Return a hint why a broker may close a connection on its first request."""
    protocol = network.options["security.protocol"]
    return f"does its listener speak security.protocol={protocol}? Kafka before 0.10 needs broker.version.fallback"


async def _connected(network: Network, address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + network.setup_timeout_s
    problems: list[str] = []
    refusals = 0
    if not 0 < address.port < 1 << 16:
        raise ConnectionFailed(f"cannot connect to {address}: there is no such port")
    try:
        async with asyncio.timeout_at(deadline):
            found = await addresses_of(*address)
    except TimeoutError:
        raise ConnectionFailed(f"cannot connect to {address}: its name was not resolved in time") from None
    except OSError as error:
        raise ConnectionFailed(
            f"cannot connect to {address}: {error.strerror or error}", hint="is the name right, and known here?"
        ) from None
    for at, (family, target) in enumerate(found):
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        network.thread.connecting.add(sock)
        try:
            _set_options(sock, network.options)
            # Each address has its share of the time that is left, so that a silent one leaves time for the others.
            async with asyncio.timeout((deadline - loop.time()) / (len(found) - at)):
                await loop.sock_connect(sock, target)
            return sock
        except TimeoutError:
            problems.append("timed out")
            _forget(network, sock)
        except OSError as error:
            problems.append(os.strerror(error.errno).lower() if error.errno else str(error))
            refusals += error.errno == errno.ECONNREFUSED
            _forget(network, sock)
        except BaseException:
            _forget(network, sock)
            raise
    failure = ConnectionFailed(
        f"cannot connect to {address}: {', '.join(dict.fromkeys(problems)) or 'it has no address'}"
    )
    failure.refused = 0 < refusals == len(found)
    raise failure


def _forget(network: Network, sock: socket.socket) -> None:
    network.thread.connecting.discard(sock)
    sock.close()


def _set_options(sock: socket.socket, options: Options) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, which in (("send.buffer.bytes", socket.SO_SNDBUF), ("receive.buffer.bytes", socket.SO_RCVBUF)):
        if options[name] >= 0:
            sock.setsockopt(socket.SOL_SOCKET, which, options[name])


async def _encrypted(network: Network, sock: socket.socket, address: Address) -> TlsTransport:
    import ssl

    loop = asyncio.get_running_loop()
    assert network.ssl_context is not None
    transport = TlsTransport(network.ssl_context, address.host)
    received = b""
    try:
        async with asyncio.timeout(network.setup_timeout_s):
            while True:
                done, wire = transport.handshake(received)
                if wire:
                    await loop.sock_sendall(sock, wire)
                if done:
                    return transport
                received = await loop.sock_recv(sock, 1 << 16)
                if not received:
                    raise ConnectionFailed(
                        f"{address} closed the connection during the TLS handshake",
                        hint="is it a TLS listener, and does it ask for a certificate (ssl.certificate.location)?",
                    )
    except TimeoutError:
        raise ConnectionFailed(
            f"{address} did not finish the TLS handshake in time", hint="is it a TLS listener?"
        ) from None
    except ssl.SSLError as error:
        with contextlib.suppress(OSError):
            sock.send(transport.last_words())
        raise AuthenticationFailed(f"{address}: TLS: {_tls_reason(error)}", hint=_tls_hint(error)) from None
    except OSError as error:
        raise ConnectionFailed(f"{address} during the TLS handshake: {error.strerror or error}") from None


def _tls_reason(error: ssl.SSLError) -> str:
    return str(getattr(error, "verify_message", None) or error.reason or error)


def _tls_hint(error: ssl.SSLError) -> str:
    message = str(getattr(error, "verify_message", ""))
    if "mismatch" in message or "not valid for" in message:
        return "connect by a name that is in its certificate, or set ssl.endpoint.identification.algorithm=none"
    if message:
        return "set ssl.ca.location to the certificate that has signed the broker's"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "is it a TLS listener?"
    return "look at the ssl options: does the broker ask for a certificate (ssl.certificate.location)?"
