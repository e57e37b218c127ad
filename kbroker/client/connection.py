"""One connection to a broker. It is connected, encrypted, negotiates versions and authenticates; then it takes calls.

Each step of `connect` is bounded in time: connecting (to all addresses of the name together) by
socket.connection.setup.timeout.ms, the TLS handshake by the same again, each request of the negotiation (KIP-35,
KIP-511) and of SASL (KIP-43, KIP-152) by request.timeout.ms. Where the broker limits how long an authentication holds
(KIP-368), the connection authenticates again before that time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kbroker import __version__
from kbroker._core.client.pump import PumpConnection
from kbroker.client import versions
from kbroker.client.config import Options
from kbroker.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionFailed,
    MalformedAnswer,
    TimedOut,
    error_of,
    raise_for,
)
from kbroker.client.resolver import addresses_of
from kbroker.client.sasl_tokens import authenticate_by_tokens, check_handshake
from kbroker.client.security import TlsTransport, sasl_exchange, ssl_context, uses_sasl, uses_tls
from kbroker.client.thread import ClientThread
from kbroker.errors import ErrorCode, KbrokerError, MalformedBytes, ProtocolError
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.headers import encode_request

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("kbroker.client")

API_VERSIONS_ASKED: Final = (3, 0)
RENEWED_AFTER: Final = (0.85, 0.95)  #: share of the time that an authentication holds, after which it is renewed

chance: Final = random.SystemRandom()
"""The random numbers of clients. Those of `random` itself belong to the program, which may have seeded them."""


class Network:
    """What all connections of a client share. For the client's thread."""

    def __init__(self, thread: ClientThread, options: Options):
        """Raises ValueError when the security options do not fit together."""
        self.thread = thread
        self.options = options
        self.client_id: str = options["client.id"]
        self.request_timeout_ms: int = options["request.timeout.ms"]
        self.setup_timeout_s = options.seconds("socket.connection.setup.timeout.ms")
        self.ssl_context: ssl.SSLContext | None = ssl_context(options) if uses_tls(options) else None
        self.features: dict[str, int] = {}
        """Levels of the cluster's finalized features, from the newest ApiVersions response (KIP-584)."""
        self._features_epoch = -1
        self.silent: set[str] = set()
        """Addresses of brokers that do not answer ApiVersions (see broker.version.fallback)."""
        self.uses_sasl = uses_sasl(options)
        if self.uses_sasl:
            sasl_exchange(options)

    def note_features(self, answer: M.ApiVersionsResponse) -> None:
        """Note the features of an ApiVersions response, unless it is from a broker that lags behind (older epoch)."""
        if answer.finalized_features_epoch >= max(self._features_epoch, 0):
            self._features_epoch = answer.finalized_features_epoch
            self.features = {each.name: each.max_version_level for each in answer.finalized_features}


class Connection:
    """A connection that is ready for calls. For the client's thread."""

    def __init__(self, network: Network, address: str, pump_connection: PumpConnection):
        self.network = network
        self.address = address
        self.node_id = -1
        self.served: dict[int, tuple[int, int]] = {}
        self.on_closed: Callable[[Connection, str], object] | None = None
        self._pump = pump_connection
        self._loop = network.thread.loop
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        pump_connection.on_close = self._closed

    @property
    def is_closed(self) -> bool:
        return self._pump.is_closed

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered yet, including those of engines."""
        return self._pump.in_flight

    @property
    def traffic(self) -> int:
        """The number of bytes sent and received so far."""
        return self._pump.bytes_in + self._pump.bytes_out

    def version_of(self, api_key: ApiKey) -> int:
        """Return the version of `api_key` to use here. Raises BrokerError (UNSUPPORTED_VERSION) when there is none."""
        version = versions.choose(api_key, self.served)
        if version < 0:
            raise BrokerError(
                f"{self.address} serves no version of {api_key.label} that this client speaks",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return version

    def serves(self, api_key: ApiKey) -> bool:
        """Return whether the broker serves a version of `api_key` that this client speaks."""
        return versions.choose(api_key, self.served) >= 0

    async def call(
        self, message: M.Message, *, version: int | None = None, timeout_ms: int | None = None, silent: bool = False
    ) -> Any:
        """Send a request, and return the response, whose error codes are not looked at.

        `timeout_ms` replaces request.timeout.ms. `silent`: no response will come (acks=0), and None is returned once
        the request is sent. Raises ConnectionFailed when the connection breaks, TimedOut when no response comes in
        time, MalformedAnswer when it does not parse, and BrokerError when the broker serves no version that can carry
        the request.
        """
        api_key = ApiKey(message.API_KEY)  # type: ignore[arg-type]
        chosen = self.version_of(api_key) if version is None else version
        body = await self.exchange(api_key, chosen, message, timeout_ms=timeout_ms, silent=silent)
        return None if silent else self._decoded(api_key, chosen, body)

    async def exchange(
        self,
        api_key: ApiKey,
        version: int,
        message: M.Message,
        *,
        timeout_ms: int | None = None,
        silent: bool = False,
        ahead: bool = False,
    ) -> bytes:
        """Send a request as `call` does, and return the bytes of the response behind its header.

        `ahead`: send it also while the connection is held for an authentication.
        """
        try:
            frame = encode_request(api_key, version, 0, self.network.client_id, message)
        except ProtocolError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise BrokerError(
                f"{self.address} serves {api_key.label} up to version {version} only: {error}", code=error.code
            ) from None
        answer: asyncio.Future[bytes] = self._loop.create_future()
        limit_ms = self.network.request_timeout_ms if timeout_ms is None else timeout_ms

        def answered(body: bytes | None, reason: str | None) -> None:
            if answer.done():
                return
            if body is not None:
                answer.set_result(body)
            elif reason == "no answer in time":
                answer.set_exception(TimedOut(f"{self.address} did not answer {api_key.label} within {limit_ms} ms"))
            else:
                answer.set_exception(ConnectionFailed(f"{self.address}: {reason}"))

        try:
            self._pump.call(api_key, version, frame, limit_ms, answered, silent=silent, ahead=ahead)
        except ConnectionError as error:
            raise ConnectionFailed(f"{self.address}: {error}") from None
        return await answer

    def open(self, node_id: int) -> None:
        """Let engines use the connection for that node. Raises ConnectionFailed when it is closed."""
        self.node_id = node_id
        try:
            self._pump.open(node_id, versions.choose_all(self.served))
        except ConnectionError as error:
            raise ConnectionFailed(f"{self.address}: {error}") from None

    def close(self, reason: str = "it is not needed any more") -> None:
        """Close the connection at the end of the loop's turn. Calls that wait raise ConnectionFailed."""
        self._pump.close(reason)

    def _closed(self, reason: str) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        if self.on_closed is not None:
            self.on_closed(self, reason)

    def _decoded(self, api_key: ApiKey, version: int, body: bytes) -> Any:
        try:
            return response_class(api_key).decode_prefix(body, version)[0]
        except MalformedBytes as error:
            self.close(f"it sent a response to {api_key.label} that does not parse: {error}")
            raise MalformedAnswer(
                f"{self.address} answered {api_key.label} {version} with what does not parse: {error}"
            ) from None

    # --- setting up -----------------------------------------------------------------------------------------

    async def negotiate(self, timeout_ms: int | None = None) -> None:
        """Ask the broker which versions it serves. Raises what `call` raises."""
        for version in API_VERSIONS_ASKED:
            body = await self.exchange(ApiKey.API_VERSIONS, version, versions_request(version), timeout_ms=timeout_ms)
            # The body of a refusal has version 0, whichever version was asked for (KIP-511).
            refused = body[:2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2)
            answer = self._decoded(ApiKey.API_VERSIONS, 0 if refused else version, body)
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION:
                raise_for(answer.error_code, None, self.address)
                self.served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
                self.network.note_features(answer)
                return
        raise BrokerError(f"{self.address} does not answer ApiVersions", code=ErrorCode.UNSUPPORTED_VERSION)

    @property
    def is_authenticated_by_requests(self) -> bool:
        """Whether the broker serves SaslAuthenticate (Kafka 1.0 and later)."""
        return self.serves(ApiKey.SASL_AUTHENTICATE)

    async def authenticate(self, *, again: bool = False) -> None:
        """Authenticate by SaslHandshake 1 and SaslAuthenticate. `again`: the connection is in use already (KIP-368).

        Raises AuthenticationFailed when the broker refuses, and what `call` raises.
        """
        options = self.network.options
        mechanism = options["sasl.mechanism"]
        handshake = M.SaslHandshakeRequest(mechanism=mechanism)
        body = await self.exchange(ApiKey.SASL_HANDSHAKE, 1, handshake, ahead=again)
        check_handshake(self._decoded(ApiKey.SASL_HANDSHAKE, 1, body), mechanism, self.address)
        version = self.version_of(ApiKey.SASL_AUTHENTICATE)
        exchange = sasl_exchange(options)
        token = next(exchange)
        while True:
            sent = M.SaslAuthenticateRequest(auth_bytes=token)
            body = await self.exchange(ApiKey.SASL_AUTHENTICATE, version, sent, ahead=again)
            answer = self._decoded(ApiKey.SASL_AUTHENTICATE, version, body)
            if answer.error_code:
                code = error_of(answer.error_code)
                raise AuthenticationFailed(f"{self.address}: {answer.error_message or code.name}", code=code)
            try:
                token = exchange.send(answer.auth_bytes)
            except StopIteration:
                break
        lifetime_ms = getattr(answer, "session_lifetime_ms", 0)
        if lifetime_ms > 0:
            share = chance.uniform(*RENEWED_AFTER)
            self._renewal = self._loop.call_later(lifetime_ms / 1000 * share, self._begin_renewal)

    def _begin_renewal(self) -> None:
        self._renewing = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        """Authenticate again. Other requests are held back meanwhile, as KIP-368 demands."""
        self._pump.hold()
        try:
            await self.authenticate(again=True)
        except (KbrokerError, OSError) as error:
            self.close(f"its authentication could not be renewed: {error}")
        finally:
            self._pump.release()


def versions_request(version: int) -> M.ApiVersionsRequest:
    """Return an ApiVersions request. From version 3 on it names the client's software (KIP-511)."""
    if version < API_VERSIONS_ASKED[0]:
        return M.ApiVersionsRequest()
    return M.ApiVersionsRequest(client_software_name="kbroker", client_software_version=__version__)


async def connect(network: Network, host: str, port: int) -> Connection:
    """Return a connection that is ready for calls, but not opened for engines.

    Raises ClientError, which says what failed, with the address.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = await _negotiated(network, host, port, address, authenticated=False)
    if not network.uses_sasl:
        return connection
    if not connection.is_authenticated_by_requests:
        # Kafka before 1.0 answers tokens without response headers: a new connection begins with the authentication.
        connection.close("it is authenticated in another way")
        return await _negotiated(network, host, port, address, authenticated=True)
    try:
        await connection.authenticate()
    except BaseException:
        connection.close("it could not be authenticated")
        raise
    return connection


async def _negotiated(network: Network, host: str, port: int, address: str, *, authenticated: bool) -> Connection:
    """Return a connection that is connected and encrypted, and whose versions are known.

    `authenticated`: authenticate by tokens first, before any request.
    """
    connection = await _adopted(network, host, port, address, authenticated=authenticated)
    taken_for = network.options["broker.version.fallback"]
    if address in network.silent:
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
    network.silent.add(address)
    connection = await _adopted(network, host, port, address, authenticated=authenticated)
    connection.served.update(versions.BEFORE_API_VERSIONS[taken_for])
    return connection


async def _adopted(network: Network, host: str, port: int, address: str, *, authenticated: bool) -> Connection:
    sock = await _connected(network, host, port, address)
    transport = None
    try:
        if network.ssl_context is not None:
            transport = await _encrypted(network, sock, host, address)
        if authenticated:
            await authenticate_by_tokens(network, sock, transport, address)
    except BaseException:
        _forget(network, sock)
        raise
    network.thread.connecting.discard(sock)
    return Connection(network, address, network.thread.pump.adopt(sock.detach(), -1, transport))


def setup_hint(network: Network) -> str:
    """Return a hint why a broker may close a connection on its first request."""
    protocol = network.options["security.protocol"]
    return f"does its listener speak security.protocol={protocol}? Kafka before 0.10 needs broker.version.fallback"


async def _connected(network: Network, host: str, port: int, address: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + network.setup_timeout_s
    problems: list[str] = []
    if not 0 < port < 1 << 16:
        raise ConnectionFailed(f"cannot connect to {address}: there is no such port")
    try:
        async with asyncio.timeout_at(deadline):
            found = await addresses_of(host, port)
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
            _forget(network, sock)
        except BaseException:
            _forget(network, sock)
            raise
    raise ConnectionFailed(f"cannot connect to {address}: {', '.join(dict.fromkeys(problems)) or 'it has no address'}")


def _forget(network: Network, sock: socket.socket) -> None:
    network.thread.connecting.discard(sock)
    sock.close()


def _set_options(sock: socket.socket, options: Options) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, which in (("send.buffer.bytes", socket.SO_SNDBUF), ("receive.buffer.bytes", socket.SO_RCVBUF)):
        if options[name] >= 0:
            sock.setsockopt(socket.SOL_SOCKET, which, options[name])


async def _encrypted(network: Network, sock: socket.socket, host: str, address: str) -> TlsTransport:
    import ssl

    loop = asyncio.get_running_loop()
    assert network.ssl_context is not None
    transport = TlsTransport(network.ssl_context, host)
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
