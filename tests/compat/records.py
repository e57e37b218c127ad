"""The records and checksums that tests/compat/README.md describes, for the drivers written in Python."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

Headers = list[tuple[str, bytes | None]]


def record(i: int, size: int, nulls: bool, headers: bool) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of record `i`."""
    digest = hashlib.sha256(b"%d" % i).hexdigest().encode()
    prefix = b"%d:" % i
    value = (prefix + digest * (size // len(digest) + 1))[:size]
    return (
        None if nulls and i % 7 == 0 else b"k%d" % i,
        None if nulls and i % 11 == 0 and i % 7 else value,
        [("i", b"%d" % i), ("empty", None)] if headers else [],
    )


def fingerprint(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return what one record adds to the checksum."""
    text = [b"~" if key is None else key, b"\n", b"~" if value is None else value, b"\n"]
    for name, content in headers:
        text += [name.encode(), b"=", b"~" if content is None else content, b"\n"]
    return int.from_bytes(hashlib.sha256(b"".join(text)).digest()[:8], "big")


def checksum(first: int, count: int, size: int, nulls: bool, headers: bool) -> str:
    """Return the checksum of records first .. first + count - 1."""
    return str(sum(fingerprint(*record(i, size, nulls, headers)) for i in range(first, first + count)) % 2**64)
