"""A schema registry with Confluent's API: which Avro schema an id stands for, and which is a subject's latest."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any, NamedTuple

from kbroker.errors import KbrokerError
from kbroker.spark.decoding.avro_schemas import Schema, parsed

TIMEOUT_S = 10.0
TRIES = 3
MOST_BYTES = 16 << 20
MOST_REFERENCES = 100


class RegistryFailed(KbrokerError):
    """It cannot be reached, or does not answer as a registry does."""


class Found(NamedTuple):
    """A schema as it is registered, and those that it refers to before it."""

    text: str
    references: tuple[str, ...]

    def parsed(self) -> Schema:
        """ValueError: it is no Avro schema."""
        return parsed(self.text, self.references)


class SchemaRegistry:
    """`addresses`: URLs with commas, the next of which is asked when one cannot be reached; http://USER:PASSWORD@HOST:PORT.

    What an id stands for never changes, and is asked for once.
    """

    def __init__(self, addresses: str):
        """ValueError: it is no such list."""
        self._addresses = [_Address(each) for each in addresses.split(",") if each.strip()]
        if not self._addresses:
            raise ValueError("http://HOST:PORT,... of a schema registry or more")
        self._by_id: dict[int, Schema | None] = {}

    def schema(self, schema_id: int) -> Schema | None:
        """None: nobody has registered it. RegistryFailed: it is no Avro, or nobody answers."""
        if schema_id not in self._by_id:
            found = self._ask(f"/schemas/ids/{schema_id}") if schema_id >= 0 else None
            self._by_id[schema_id] = None if found is None else self._schema(found, f"schema {schema_id}").parsed()
        return self._by_id[schema_id]

    def latest(self, subject: str) -> Found:
        """RegistryFailed: there is none, too."""
        found = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if found is None:
            raise RegistryFailed(f"the schema registry {self} has no subject {subject!r}")
        return self._schema(found, f"subject {subject!r}")

    def _schema(self, found: Any, what: str) -> Found:
        references: dict[tuple[str, int], str] = {}
        self._collect(found, references)
        kind = found.get("schemaType", "AVRO") if isinstance(found, dict) else None
        text = found.get("schema") if isinstance(found, dict) else None
        if kind != "AVRO" or not isinstance(text, str):
            raise RegistryFailed(f"the schema registry {self}: {what} is {kind or 'nothing'}, and not AVRO")
        made = Found(text, tuple(references.values()))
        try:
            made.parsed()
        except ValueError as error:
            raise RegistryFailed(f"the schema registry {self}: {what} is not {error}") from None
        return made

    def _collect(self, found: Any, references: dict[tuple[str, int], str]) -> None:
        """Those that it refers to, each behind those that it refers to itself."""
        for each in found.get("references") or () if isinstance(found, dict) else ():
            key = str(each.get("subject")), int(each.get("version", -1))
            if key in references:
                continue
            if len(references) >= MOST_REFERENCES:
                raise RegistryFailed(f"the schema registry {self}: more than {MOST_REFERENCES} references")
            references[key] = ""  # its place, should it refer to itself
            inner = self._ask(f"/subjects/{urllib.parse.quote(key[0], safe='')}/versions/{key[1]}")
            if inner is None:
                raise RegistryFailed(f"the schema registry {self} has no version {key[1]} of {key[0]!r}")
            self._collect(inner, references)
            del references[key]
            references[key] = str(inner.get("schema"))

    def _ask(self, path: str) -> Any:
        """What the first address that answers says; None for what is not there."""
        last = ""
        for attempt in range(TRIES):
            for address in self._addresses:
                try:
                    return address.ask(path)
                except _Unreachable as error:
                    last = str(error)
            time.sleep(0.1 * 2**attempt)
        raise RegistryFailed(f"the schema registry {self} does not answer: {last}")

    def __str__(self) -> str:
        return ",".join(str(each) for each in self._addresses)


class _Unreachable(Exception):
    """For now."""


class _Address:
    def __init__(self, given: str):
        parts = urllib.parse.urlsplit(given.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("http://HOST:PORT,... of a schema registry or more")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._shown = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        self._base = self._shown + parts.path.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            who = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(who.encode()).decode()}"

    def ask(self, path: str) -> Any:
        request = urllib.request.Request(self._base + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code >= 500 or error.code == 429:
                raise _Unreachable(f"HTTP {error.code}") from None
            raise RegistryFailed(f"the schema registry {self} refuses: HTTP {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise _Unreachable(str(error.reason)) from None
        except (OSError, RecursionError, ValueError) as error:
            raise _Unreachable(str(error)) from None

    def __str__(self) -> str:
        """Without who asks."""
        return self._shown


@lru_cache(maxsize=8)
def registry(addresses: str) -> SchemaRegistry:
    """One for all tasks of a process, so that each id is asked for once. ValueError: these are no addresses."""
    return SchemaRegistry(addresses)
