"""TLS and SASL of a client: the SSLContext of the ssl options, a connection's transport, the SASL exchanges.

SCRAM follows RFC 5802 and 7677, without channel binding. The server's signature is checked, which exposes a broker that
does not know the password. A broker may ask for MIN_ITERATIONS (RFC 7677) to MAX_ITERATIONS iterations.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.client.config import Options
from kbroker.client.errors import AuthenticationFailed

if TYPE_CHECKING:
    import ssl

MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 1_000_000
READ_SIZE = 256 << 10


def uses_tls(options: Options) -> bool:
    return str(options["security.protocol"]).endswith("SSL")


def uses_sasl(options: Options) -> bool:
    return str(options["security.protocol"]).startswith("SASL")


def ssl_context(options: Options) -> ssl.SSLContext:
    """Return the SSLContext of the ssl options. Raises ValueError, which names the option that is wrong."""
    import ssl

    given = options["ssl.context"]
    if given is not None:
        if not isinstance(given, ssl.SSLContext):
            raise ValueError(f"ssl.context={given!r}: must be an ssl.SSLContext")
        return given
    context = (
        ssl.create_default_context() if not options["ssl.ca.location"] else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options["ssl.endpoint.identification.algorithm"] == "https"
    authorities = options["ssl.ca.location"]
    if authorities:
        try:
            if Path(authorities).is_dir():
                context.load_verify_locations(capath=authorities)
            else:
                context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"ssl.ca.location={authorities!r}: {error}; it must be a PEM file or folder") from None
    certificate, key = options["ssl.certificate.location"], options["ssl.key.location"]
    if key and not certificate:
        raise ValueError("ssl.key.location is given without ssl.certificate.location")
    if certificate:
        try:
            # Without a password OpenSSL would ask on the terminal.
            context.load_cert_chain(certificate, key or None, lambda: options["ssl.key.password"])
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"ssl.certificate.location={certificate!r}, ssl.key.location={key!r}: {error}; "
                "both must be PEM files, and ssl.key.password fit"
            ) from None
    return context


class TlsTransport:
    """The TLS of one connection, handshake included. It transforms bytes, and does not touch the socket."""

    def __init__(self, context: ssl.SSLContext, host: str):
        import ssl

        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._want_read = ssl.SSLWantReadError
        self._ended = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
        self._refused = ssl.SSLError

    def handshake(self, received: bytes) -> tuple[bool, bytes]:
        """Go on with the handshake; return whether it is done, and the bytes to send.

        Raises ssl.SSLError when the handshake fails.
        """
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except self._want_read:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def last_words(self) -> bytes:
        """Return the alert to send to the other side after a failed handshake."""
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return the plain text of received bytes. Raises ValueError when they are not valid TLS."""
        self._incoming.write(data)
        parts = []
        try:
            while part := self._tls.read(READ_SIZE):
                parts.append(part)
        except (self._want_read, *self._ended):
            pass  # more bytes are needed, or TLS has ended: the socket tells of the stream's end
        except self._refused as error:
            raise ValueError(_refusal(error)) from None
        return b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()


def _refusal(error: ssl.SSLError) -> str:
    """Return what the broker's alert means, or what else is wrong with its bytes."""
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" not in reason:
        return reason
    return f"{reason}: the broker refuses our certificate, or misses one (ssl.certificate.location)"


Exchange = Generator[bytes, bytes, None]
"""A generator that yields the tokens to send, gets the broker's answers by `send`, and returns when the broker has
proved its identity."""


def sasl_exchange(options: Options) -> Exchange:
    """Return the exchange of sasl.mechanism. Raises ValueError when sasl.username or sasl.password is missing."""
    for name in ("sasl.username", "sasl.password"):
        if not options[name]:
            raise ValueError(f"security.protocol={options['security.protocol']} needs {name}")
    mechanism, username, password = options["sasl.mechanism"], options["sasl.username"], options["sasl.password"]
    if mechanism == "PLAIN":
        return plain(username, password)
    return scram(mechanism.removeprefix("SCRAM-").replace("-", "").lower(), username, password)


def plain(username: str, password: str) -> Exchange:
    """The exchange of PLAIN (RFC 4616)."""
    yield b"\0" + username.encode() + b"\0" + password.encode()


def scram(digest: str, username: str, password: str, nonce: str | None = None) -> Exchange:
    """The exchange of SCRAM; `digest` is sha256 or sha512.

    Raises AuthenticationFailed when the broker refuses, sends a malformed message, or does not know the password.
    """
    own = nonce or base64.b64encode(os.urandom(24)).decode()
    name = username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={own}"
    server_first = (yield f"n,,{client_first}".encode()).decode(errors="replace")
    fields = attributes(server_first)
    try:
        salt, iterations, full = base64.b64decode(fields["s"], validate=True), int(fields["i"]), fields["r"]
    except (KeyError, ValueError):
        raise AuthenticationFailed(f"the broker's first SCRAM message is malformed: {server_first[:100]!r}") from None
    if not full.startswith(own) or full == own:
        raise AuthenticationFailed("the broker's SCRAM nonce is not made from ours")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise AuthenticationFailed(
            f"the broker asks for {iterations} SCRAM iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
        )
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    without_proof = f"c=biws,r={full}"
    said = f"{client_first},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), said, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    fields = attributes(server_final.decode(errors="replace"))
    if "e" in fields:
        raise AuthenticationFailed(f"the broker refuses the SCRAM authentication: {fields['e'][:100]}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)
    if not hmac.compare_digest(base64.b64encode(expected).decode().encode(), fields.get("v", "").encode()):
        raise AuthenticationFailed(
            "the broker's SCRAM signature is wrong: it does not know the password", hint="is this the right broker?"
        )


def attributes(message: str) -> dict[str, str]:
    """Return the `letter=value` pairs of a SCRAM message."""
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}
