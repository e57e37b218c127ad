"""SASL of a client: the exchanges of PLAIN and SCRAM, without I/O.

SCRAM follows RFC 5802 and 7677, without channel binding. The server's signature is checked, which exposes a broker that
does not know the password. A broker may ask for MIN_ITERATIONS (RFC 7677) to MAX_ITERATIONS iterations.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Generator
from typing import Any

from kbroker.client.config.option import Options
from kbroker.client.errors import AuthenticationFailed, error_of

MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 1_000_000

Exchange = Generator[bytes, bytes, None]
"""A generator that yields the tokens to send, gets the broker's answers by `send`, and returns when the broker has
proved its identity."""


def uses_sasl(options: Options) -> bool:
    return str(options["security.protocol"]).startswith("SASL")


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
    """The messages of a PLAIN exchange (RFC 4616)."""
    yield b"\0" + username.encode() + b"\0" + password.encode()


def scram(digest: str, username: str, password: str, nonce: str | None = None) -> Exchange:
    """The messages of a SCRAM exchange; `digest` is sha256 or sha512.

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


def check_handshake(answer: Any, mechanism: str, address: str) -> None:
    """Raise AuthenticationFailed when a SaslHandshakeResponse says that the broker has not enabled the mechanism."""
    if answer.error_code:
        enabled = ", ".join(answer.mechanisms) or "none"
        code = error_of(answer.error_code)
        raise AuthenticationFailed(
            f"{address} refuses sasl.mechanism={mechanism}: {code.name}; it has enabled {enabled}", code=code
        )
