"""Parses addresses of brokers as people write them."""

from __future__ import annotations

import re

from kbroker.errors import KbrokerError

DEFAULT_PORT = 9092


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Parse `HOST[:PORT],...`; the default port is 9092; an IPv6 host has brackets. Raises KbrokerError."""
    addresses = []
    for part in (piece.strip() for piece in text.split(",")):
        match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\[\]:/\s]+))(?::(\d{1,5}))?", part)
        if match is None or int(match[3] or DEFAULT_PORT) > 65535:
            raise KbrokerError(f"{part!r} is not HOST:PORT")
        addresses.append((match[1] or match[2], int(match[3] or DEFAULT_PORT)))
    return addresses
