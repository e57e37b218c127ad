"""SASL exchanges against the examples of their RFCs, and against brokers that do not keep to them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kbroker.client.config.network import NETWORK
from kbroker.client.config.parsing import parse_options
from kbroker.client.errors import AuthenticationFailed
from kbroker.client.security.sasl import MAX_ITERATIONS, plain, sasl_exchange, scram
from kbroker.client.security.tls import ssl_context

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_is_that_of_the_rfc() -> None:
    exchange = scram("sha256", "user", "pencil", NONCE)
    assert next(exchange) == b"n,,n=user,r=" + NONCE.encode()
    assert exchange.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        exchange.send(SERVER_FINAL)


def test_a_broker_that_does_not_know_the_password_is_noticed() -> None:
    for final in (b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", b"", b"v=", b"\xff\xfe", b"v=\xc3\xa9"):
        exchange = scram("sha256", "user", "pencil", NONCE)
        next(exchange)
        exchange.send(SERVER_FIRST)
        with pytest.raises(AuthenticationFailed, match="does not know the password"):
            exchange.send(final)


def test_a_refusal_is_told() -> None:
    exchange = scram("sha256", "user", "pencil", NONCE)
    next(exchange)
    exchange.send(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match="unknown-user"):
        exchange.send(b"e=unknown-user")


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"", "malformed"),
        (b"r=x", "malformed"),
        (b"r=" + NONCE.encode() + b"abc,s=!!!,i=4096", "malformed"),
        (b"r=" + NONCE.encode() + b"abc,s=W22Z,i=many", "malformed"),
        (b"r=other,s=W22Z,i=4096", "nonce"),
        (b"r=" + NONCE.encode() + b",s=W22Z,i=4096", "nonce"),
        (b"r=" + NONCE.encode() + b"abc,s=W22Z,i=4095", "iterations"),
        (b"r=" + NONCE.encode() + b"abc,s=W22Z,i=%d" % (MAX_ITERATIONS + 1), "iterations"),
    ],
)
def test_what_is_not_scram_is_refused(first: bytes, says: str) -> None:
    exchange = scram("sha512", "user", "pencil", NONCE)
    next(exchange)
    with pytest.raises(AuthenticationFailed, match=says):
        exchange.send(first)


def test_names_are_escaped() -> None:
    assert next(scram("sha256", "a=b,c", "p", "n")) == b"n,,n=a=3Db=2Cc,r=n"
    assert next(plain("ä", "p")) == b"\0\xc3\xa4\0p"


def test_sha512_proves_with_the_keys_of_the_rfc() -> None:
    exchange = scram("sha512", "u", "p", "nonce")
    first = next(exchange)
    server_first = b"r=nonce1,s=" + base64.b64encode(b"salt") + b",i=5000"
    final = exchange.send(server_first)
    without_proof, _, proof = final.rpartition(b",p=")
    salted = hashlib.pbkdf2_hmac("sha512", b"p", b"salt", 5000)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    said = b",".join((first.removeprefix(b"n,,"), server_first, without_proof))
    signature = hmac.digest(stored, said, "sha512")
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(client_key).digest() == stored


def test_options_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"security\.protocol=SASL_SSL needs sasl\.password"):
        sasl_exchange(parse_options(NETWORK, {"security.protocol": "sasl_ssl", "sasl.username": "a"}, {}))
    for given, says in (
        ({"ssl.ca.location": "/nowhere"}, r"ssl\.ca\.location='/nowhere'.*PEM"),
        ({"ssl.certificate.location": "/nowhere"}, r"ssl\.certificate\.location='/nowhere'"),
        ({"ssl.key.location": "/nowhere"}, r"without ssl\.certificate\.location"),
        ({"ssl.context": "tls"}, "must be an ssl.SSLContext"),
    ):
        with pytest.raises(ValueError, match=says):
            ssl_context(parse_options(NETWORK, given, {}))
