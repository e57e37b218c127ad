"""Parses `listeners` and `advertised.listeners`: NAME://HOST:PORT, separated by commas (KIP-103).

It also parses other settings with hosts: HOST:PORT, and HOST:COUNT separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kbroker.errors import ConfigError
from kbroker.model import Endpoint
from kbroker.rules.config_values import INT32_MAX, Value

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED_PROTOCOLS = ("PLAINTEXT",)
LARGEST_PORT = 65535
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})

_COUNT_OF_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Fa-f:.]+|[^\[\]:;\s]+))\s*:\s*([0-9]{1,10})", re.ASCII)
_LISTENER = re.compile(r"([A-Za-z0-9_-]+)://(?:\[([0-9A-Fa-f:.%\w]*)\]|([^\[\]:/,\s]*)):(\d{1,5})")


def parse_listeners(setting: str, text: str, protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the endpoints that `text` names, in its order. Raises ConfigError, which names the `setting`.

    `protocols` maps listener names (upper case) to security protocols. Hosts are returned without brackets; "" and
    0.0.0.0 mean every IPv4 interface, :: every interface.
    """
    endpoints = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        match = _LISTENER.fullmatch(part)
        if match is not None and int(match[4]) > LARGEST_PORT:
            raise ConfigError(f"{setting}={text}: port {match[4]} is larger than {LARGEST_PORT}")
        if match is None:
            raise ConfigError(f"{setting}={text}: {part!r} is not NAME://HOST:PORT; an IPv6 host stands in [brackets]")
        name = match[1].upper()
        protocol = protocols.get(name)
        if protocol is None:
            raise ConfigError(
                f"{setting}={text}: {name} has no security protocol; "
                f"add {name}:PLAINTEXT to listener.security.protocol.map"
            )
        endpoints.append(Endpoint(name, protocol, match[2] if match[2] is not None else match[3], int(match[4])))
    _refuse_duplicates(setting, text, endpoints)
    return tuple(endpoints)


def parse_protocol_map(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the value of listener.security.protocol.map: listener name -> security protocol. Raises ConfigError."""
    protocols = {}
    for pair in pairs:
        name, colon, protocol = (piece.strip().upper() for piece in pair.partition(":"))
        if not name or not colon or protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL, "
                f"with one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        protocols[name] = protocol
    return protocols


def parse_address(setting: str, text: str) -> tuple[str, int]:
    """Parse HOST:PORT. Both parts are required; an IPv6 host has brackets. Raises ConfigError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/,\s]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(f"{setting}={text}: not HOST:PORT, as in 127.0.0.1:9092")
    return match[1] or match[2], int(match[3])


def parse_counts(text: str) -> dict[str, int]:
    """Parse HOST:COUNT pairs separated by commas, as in max.connections.per.ip.overrides. Raises ValueError."""
    counts = {}
    for pair in (piece.strip() for piece in text.split(",")):
        if not pair:
            continue
        match = _COUNT_OF_HOST.fullmatch(pair)
        if match is None or int(match[3]) > INT32_MAX:
            raise ValueError(f"{pair[:80]!r} is not HOST:COUNT with a count from 0 to 2^31-1")
        counts[match[1] or match[2]] = int(match[3])
    return counts


def counts_problem(_: str, value: Value) -> str | None:
    """Return what is wrong with the HOST:COUNT pairs of a setting; None if nothing is."""
    try:
        parse_counts(str(value))
    except ValueError as error:
        return str(error)
    return None


def _refuse_duplicates(setting: str, text: str, endpoints: Sequence[Endpoint]) -> None:
    names: set[str] = set()
    ports: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        if endpoint.listener in names:
            raise ConfigError(f"{setting}={text}: the name {endpoint.listener} is there twice")
        names.add(endpoint.listener)
        # Several listeners may be advertised with one address, but not opened at one.
        other = ports.setdefault(endpoint.port, endpoint)
        if setting == "listeners" and other is not endpoint and endpoint.port and _overlap(other.host, endpoint.host):
            raise ConfigError(f"{setting}={text}: port {endpoint.port} is there twice")


def _overlap(one: str, other: str) -> bool:
    """Return whether sockets on both hosts could not share a port, judged by text; IPv4 and IPv6 can (KIP-797)."""
    return one == other or ((":" in one) == (":" in other) and bool(WILDCARD_HOSTS & {one, other}))
