"""SASL with Kafka 0.10 and 0.11: SaslHandshake 0, then bare tokens, each with its size in front (KIP-43).

A broker that refuses a token closes the connection without an answer.
"""

from __future__ import annotations

import asyncio
import socket

from kbroker.client.config.option import Options
from kbroker.client.errors import AuthenticationFailed, ConnectionFailed, MalformedAnswer, TimedOut
from kbroker.client.security.sasl import check_handshake, sasl_exchange
from kbroker.client.security.tls import TlsTransport
from kbroker.errors import MalformedBytes
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_response, encode_request

MAX_TOKEN_SIZE = 1 << 20
READ_SIZE = 1 << 16


async def authenticate_by_tokens(
    options: Options, sock: socket.socket, transport: TlsTransport | None, address: str
) -> None:
    """Authenticate on a connection on which nothing was sent yet, within request.timeout.ms.

    Raises AuthenticationFailed when the broker refuses, TimedOut, ConnectionFailed, and MalformedAnswer when an answer
    does not parse.
    """
    frames = _Frames(sock, transport, address)
    mechanism, timeout_ms = options["sasl.mechanism"], options["request.timeout.ms"]
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            asked = M.SaslHandshakeRequest(mechanism=mechanism)
            await frames.send(encode_request(ApiKey.SASL_HANDSHAKE, 0, 0, options["client.id"], asked)[4:])
            try:
                _, answer = decode_response(ApiKey.SASL_HANDSHAKE, 0, await frames.receive())
            except MalformedBytes as error:
                raise MalformedAnswer(f"{address} answered SaslHandshake with what does not parse: {error}") from None
            check_handshake(answer, mechanism, address)
            exchange = sasl_exchange(options)
            token = next(exchange)
            while True:
                await frames.send(token)
                try:
                    token = exchange.send(await frames.receive())
                except StopIteration:
                    return
    except TimeoutError:
        raise TimedOut(f"{address} did not authenticate within {timeout_ms} ms") from None
    except OSError as error:
        raise ConnectionFailed(f"{address} during the authentication: {error.strerror or error}") from None


class _Frames:
    """Sends and receives frames (a size in 4 bytes, then so many bytes) over a socket that nothing else uses."""

    def __init__(self, sock: socket.socket, transport: TlsTransport | None, address: str):
        self._sock = sock
        self._transport = transport
        self._address = address
        self._received = b""

    async def send(self, data: bytes) -> None:
        framed = len(data).to_bytes(4) + data
        wire = framed if self._transport is None else self._transport.encrypt(framed)
        await asyncio.get_running_loop().sock_sendall(self._sock, wire)

    async def receive(self) -> bytes:
        size = int.from_bytes(await self._exactly(4))
        if size > MAX_TOKEN_SIZE:
            raise MalformedAnswer(f"{self._address} announces {size} bytes in an authentication")
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            data = await asyncio.get_running_loop().sock_recv(self._sock, READ_SIZE)
            if not data:
                raise AuthenticationFailed(f"{self._address} closed the connection during the authentication")
            self._received += data if self._transport is None else self._transport.decrypt(data)
        found, self._received = self._received[:size], self._received[size:]
        return found
