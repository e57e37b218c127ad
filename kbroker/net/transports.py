"""What may stand between a socket and the protocol: encryption of a connection's bytes in both directions.

A listener without a transport sends files by sendfile. With one, every byte goes through `encrypt` in bounded pieces.
"""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """One connection's. Called by its processor's thread only; an exception closes the connection."""

    def decrypt(self, data: bytes) -> bytes:
        """What of the plaintext is complete now that `data` has been received; may be empty."""
        ...

    def encrypt(self, data: bytes) -> bytes:
        """What to send for `data`, 64 KiB at most."""
        ...
