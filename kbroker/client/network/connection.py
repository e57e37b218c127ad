"""One connection to a broker: it negotiates versions and authenticates; then it takes calls.

`connecting.py` makes it. Each request of the negotiation (KIP-35, KIP-511) and of SASL (KIP-43, KIP-152) is bounded in
time by request.timeout.ms. Where the broker limits how long an authentication holds (KIP-368), the connection
authenticates again before that time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from kbroker import __version__
from kbroker._core.client.pump import PumpConnection
from kbroker.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionFailed,
    MalformedAnswer,
    TimedOut,
    error_of,
    raise_for,
)
from kbroker.client.network import versions
from kbroker.client.network.backoff import chance
from kbroker.client.network.network import Network
from kbroker.client.security.sasl import check_handshake, sasl_exchange
from kbroker.errors import ErrorCode, KbrokerError, MalformedBytes, ProtocolError
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.headers import encode_request

API_VERSIONS_ASKED: Final = (3, 0)
RENEWED_AFTER: Final = (0.85, 0.95)  #: share of the time that an authentication holds, after which it is renewed


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

    def open(self, node_id: int, chosen: Mapping[int, int] | None = None) -> None:
        """Let engines use the connection for that node. Raises ConnectionFailed when it is closed.

        `chosen`: the versions to use, by API key; None: the best that the broker and a client know.
        """
        self.node_id = node_id
        try:
            self._pump.open(node_id, versions.choose_all(self.served) if chosen is None else chosen)
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
        """Authenticate again. Other requests are held back until that is done, as KIP-368 demands."""
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
