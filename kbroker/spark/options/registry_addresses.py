"""Addresses of schema registries, as users write them in the option schemaRegistry."""

from __future__ import annotations

import base64
import urllib.parse

from kbroker.model import bracketed


class RegistryAddress:
    """One address: a URL like http://USER:PASSWORD@HOST:PORT.

    `url`: the address without user and password. A request appends its path.
    `headers`: the headers of each request. They hold the password, if there is one.
    """

    def __init__(self, given: str):
        """Raises ValueError when `given` is no such URL."""
        parts = urllib.parse.urlsplit(given.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("http://HOST:PORT,... of a schema registry or more")
        self._shown = f"{parts.scheme}://{bracketed(parts.hostname)}" + (f":{parts.port}" if parts.port else "")
        self.url = self._shown + parts.path.rstrip("/")
        self.headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            who = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self.headers["Authorization"] = f"Basic {base64.b64encode(who.encode()).decode()}"

    def __str__(self) -> str:
        """Return the address without user, password and path."""
        return self._shown


def registry_addresses(given: str) -> list[RegistryAddress]:
    """Return the addresses in `given`, which commas separate. Raises ValueError when there is none, or one is wrong."""
    found = [RegistryAddress(each) for each in given.split(",") if each.strip()]
    if not found:
        raise ValueError("http://HOST:PORT,... of a schema registry or more")
    return found
