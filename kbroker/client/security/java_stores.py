"""TLS by the options of Java's clients: trust stores and key stores in PEM and PKCS12, as files or as text.

The bytes of a store show its format; `ssl.*.type` is ignored. Java too reads PKCS12 where the type says JKS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

TRUST_LOCATION, TRUST_PASSWORD = "ssl.truststore.location", "ssl.truststore.password"
TRUST_TEXT = "ssl.truststore.certificates"
KEY_LOCATION, KEY_PASSWORD = "ssl.keystore.location", "ssl.keystore.password"
CHAIN_TEXT, KEY_TEXT, INNER_PASSWORD = "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.key.password"
ALGORITHM = "ssl.endpoint.identification.algorithm"
NAMES = frozenset(
    (TRUST_LOCATION, TRUST_PASSWORD, TRUST_TEXT, KEY_LOCATION, KEY_PASSWORD, CHAIN_TEXT, KEY_TEXT, INNER_PASSWORD)
) | {"ssl.truststore.type", "ssl.keystore.type"}
SECRET = frozenset((TRUST_PASSWORD, KEY_PASSWORD, INNER_PASSWORD, KEY_TEXT))

PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
JAVAS_OWN = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  #: what JKS and JCEKS files begin with


def context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Return the SSLContext of the options in NAMES. Raises ValueError, which names the wrong option and no secret."""
    import ssl

    certificates = _trusted(options)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if certificates is not None else ssl.create_default_context()
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    found.check_hostname = options.get(ALGORITHM, "https").lower() == "https"
    if certificates is not None:
        try:
            found.load_verify_locations(cadata=certificates)
        except (OSError, ssl.SSLError, ValueError):
            raise ValueError(
                f"{_given(options, TRUST_TEXT, TRUST_LOCATION)}: no certificate in it can be read"
            ) from None
    key = _key(options)
    if key is not None:
        text, password = key
        try:
            with _in_memory(text) as path:
                # Without a password OpenSSL would ask on the terminal.
                found.load_cert_chain(path, None, lambda: password)
        except (OSError, ssl.SSLError):
            name = _given(options, KEY_TEXT, KEY_LOCATION)
            raise ValueError(
                f"{name}: it has no certificate with the key that belongs to it, or {INNER_PASSWORD} does not fit"
            ) from None
    return found


def _given(options: Mapping[str, str], text: str, location: str) -> str:
    """Return the name of the one of two options that was given, for messages."""
    return text if text in options else f"{location}={options[location]!r}"


def _trusted(options: Mapping[str, str]) -> str | None:
    """Return the trusted certificates in PEM; None when no option gives any."""
    if TRUST_TEXT in options:
        return _blocks(options[TRUST_TEXT], "CERTIFICATE")
    if TRUST_LOCATION not in options:
        return None
    data = _read(options, TRUST_LOCATION)
    if _is_pem(data):
        return _blocks(data.decode(errors="replace"), "CERTIFICATE")
    _, certificates = _pkcs12(data, options, TRUST_LOCATION, TRUST_PASSWORD)
    return certificates


def _key(options: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the key with its certificates in PEM, and the key's password; None when no option gives a key."""
    if KEY_TEXT in options or CHAIN_TEXT in options:
        for one, other in ((KEY_TEXT, CHAIN_TEXT), (CHAIN_TEXT, KEY_TEXT)):
            if one not in options:
                raise ValueError(f"{other} is given without {one}")
        text = options[KEY_TEXT] + "\n" + options[CHAIN_TEXT]
        return _blocks(text), options.get(INNER_PASSWORD, "")
    if KEY_LOCATION not in options:
        return None
    data = _read(options, KEY_LOCATION)
    if _is_pem(data):
        password = options.get(INNER_PASSWORD) or options.get(KEY_PASSWORD, "")
        return _blocks(data.decode(errors="replace")), password
    key, certificates = _pkcs12(data, options, KEY_LOCATION, KEY_PASSWORD)
    if not key:
        raise ValueError(f"{KEY_LOCATION}={options[KEY_LOCATION]!r}: it has no key")
    return key + certificates, ""


def _read(options: Mapping[str, str], name: str) -> bytes:
    path = options[name]
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}={path!r}: {error.strerror}") from None
    if data.startswith(JAVAS_OWN):
        raise ValueError(
            f"{name}={path!r}: only Java reads its own kind of store (JKS); make one of it that others read: "
            f"keytool -importkeystore -srckeystore {path} -destkeystore {Path(path).with_suffix('.p12')} "
            "-deststoretype PKCS12"
        )
    return data


# --- PEM --------------------------------------------------------------------------------------------------


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _blocks(text: str, kind: str | None = None) -> str:
    """Return the PEM blocks of one kind, or all. In property files blanks may stand for the newlines of a block."""
    found = []
    for block in PEM_BLOCK.finditer(text):
        if kind is not None and block[1] != kind:
            continue
        inner = block[2].strip()
        if ":" not in inner:  # a key encrypted in the traditional format has header lines: it stays as it is
            letters = "".join(inner.split())
            inner = "\n".join(letters[at : at + 64] for at in range(0, len(letters), 64))
        found.append(f"-----BEGIN {block[1]}-----\n{inner}\n-----END {block[1]}-----\n")
    return "".join(found)


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Yield a path from which `text` can be read. The ssl module takes keys only from files; this one is in memory."""
    handle = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        with open(handle, "w", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


# --- PKCS12 -----------------------------------------------------------------------------------------------


def _pkcs12(data: bytes, options: Mapping[str, str], location: str, password: str) -> tuple[str, str]:
    """Return key ("" when there is none) and certificates of a PKCS12 store in PEM, the key's own certificate first."""
    where = f"{location}={options[location]!r}"
    serialization, pkcs12 = _cryptography(where)
    secret = options.get(password)
    try:
        found = pkcs12.load_pkcs12(data, None if secret is None else secret.encode())
    except ValueError:
        why = f"{password} is missing" if secret is None else f"{password} does not fit"
        raise ValueError(f"{where}: it is no PEM or PKCS12 file, or {why}") from None
    pem = serialization.Encoding.PEM
    key = ""
    if found.key is not None:
        form, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = found.key.private_bytes(pem, form, open_).decode()
    certificates = [each for each in (found.cert, *found.additional_certs) if each is not None]
    return key, "".join(each.certificate.public_bytes(pem).decode() for each in certificates)


def _cryptography(where: str) -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ModuleNotFoundError:
        raise ValueError(
            f"{where}: PKCS12 is read by the package cryptography: pip install cryptography; "
            "or make PEM files of it: openssl pkcs12 -in FILE -nodes"
        ) from None
    return serialization, pkcs12
