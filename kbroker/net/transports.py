"""Transports encrypt a connection's bytes in both directions, between socket and protocol.

A listener without a transport sends files by sendfile. With a transport, every byte goes through `encrypt` in bounded
pieces.
"""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """The transport of one connection. Only its processor's thread calls it; an exception closes the connection."""

    def decrypt(self, data: bytes) -> bytes:
        """Take received `data`; return the plaintext that is complete now, which may be empty."""
        ...

    def encrypt(self, data: bytes) -> bytes:
        """Return the bytes to send for `data`, which is at most 64 KiB."""
        ...
