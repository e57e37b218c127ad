"""A schema registry with Confluent's API: which Avro schema an id stands for, and which is a subject's latest."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any, NamedTuple

from kbroker.errors import KbrokerError
from kbroker.spark.decoding.avro_schemas import NotAvro, Schema, parsed

log = logging.getLogger("kbroker.spark")

TIMEOUT_S = 10.0
TRIES = 3
MOST_BYTES = 16 << 20
NOT_THERE = (40401, 40402, 40403)
"""A subject, version or schema: error codes of Confluent's API. Any other 404 is of who does not speak it."""
MOST_REFERENCES = 100
MOST_UNKNOWN, UNKNOWN_S = 1000, 60.0
"""So many ids that nobody has registered are asked for in that time; values can name any."""


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

    What an id stands for never changes, and is asked for once; one that nobody has registered once a minute.
    """

    def __init__(self, addresses: str):
        """ValueError: it is no such list."""
        self._addresses = [_Address(each) for each in addresses.split(",") if each.strip()]
        if not self._addresses:
            raise ValueError("http://HOST:PORT,... of a schema registry or more")
        self._by_id: dict[int, Schema] = {}
        self._unknown: set[int] = set()
        self._unknown_until = 0.0

    def schema(self, schema_id: int) -> Schema | None:
        """None: nobody has registered it. NotAvro: it is none. RegistryFailed: nobody answers."""
        if (known := self._by_id.get(schema_id)) is not None:
            return known
        if schema_id < 0 or not self._may_ask(schema_id):
            return None
        found = self._ask(f"/schemas/ids/{schema_id}")
        if found is None:
            self._unknown.add(schema_id)
            return None
        self._by_id[schema_id] = self._schema(found, f"schema {schema_id}").parsed()
        return self._by_id[schema_id]

    def _may_ask(self, schema_id: int) -> bool:
        now = time.monotonic()
        if now >= self._unknown_until:
            self._unknown.clear()
            self._unknown_until = now + UNKNOWN_S
        if schema_id in self._unknown:
            return False
        if len(self._unknown) == MOST_UNKNOWN:
            log.warning(
                "values name more than %d schemas that the schema registry %s does not know; for up to %d s it is not "
                "asked for others, and values of new schemas are bad. Are they in Confluent's format?",
                MOST_UNKNOWN,
                self,
                UNKNOWN_S,
            )
            self._unknown.add(-1)
        return len(self._unknown) < MOST_UNKNOWN

    def latest(self, subject: str) -> Found:
        """NotAvro: it is none. RegistryFailed: nobody answers, or there is no such subject."""
        found = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if found is None:
            raise RegistryFailed(f"the schema registry {self} has no subject {subject!r}")
        return self._schema(found, f"subject {subject!r}")

    def _schema(self, found: Any, what: str) -> Found:
        references: dict[tuple[str, int], str] = {}
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise RegistryFailed(f"the schema registry {self}: what it says of {what} is no schema")
        if (kind := found.get("schemaType", "AVRO")) != "AVRO":
            raise NotAvro(f"the schema registry {self}: {what} is {kind}, and not AVRO")
        self._collect(found, references)
        made = Found(found["schema"], tuple(references.values()))
        try:
            made.parsed()
        except ValueError as error:
            raise NotAvro(f"the schema registry {self}: {what} is not {error}") from None
        return made

    def _collect(self, found: Any, references: dict[tuple[str, int], str]) -> None:
        """Those that it refers to, each behind those that it refers to itself."""
        for key in _references(found):
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


def _references(found: Any) -> list[tuple[str, int]]:
    """Subjects and versions."""
    try:
        return [(str(each["subject"]), int(each["version"])) for each in found.get("references") or ()]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise RegistryFailed(f"a schema's references are no subjects and versions: {str(found)[:100]}") from None


def _error_code(answer: urllib.error.HTTPError) -> Any:
    """None: a registry has not said it."""
    try:
        return json.loads(answer.read(MOST_BYTES))["error_code"]
    except (OSError, RecursionError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None


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
            if error.code == 404 and _error_code(error) in NOT_THERE:
                return None
            if error.code >= 500 or error.code == 429:
                raise _Unreachable(f"HTTP {error.code}") from None
            where = urllib.parse.urlsplit(request.full_url).path
            raise RegistryFailed(
                f"the schema registry {self} refuses: HTTP {error.code} {error.reason} for {where}"
            ) from None
        except urllib.error.URLError as error:
            raise _Unreachable(str(error.reason)) from None
        except (OSError, RecursionError, ValueError, http.client.HTTPException) as error:
            raise _Unreachable(str(error)) from None

    def __str__(self) -> str:
        """Without who asks."""
        return self._shown


@lru_cache(maxsize=8)
def registry(addresses: str) -> SchemaRegistry:
    """One for all tasks of a process, so that each id is asked for once. ValueError: these are no addresses."""
    return SchemaRegistry(addresses)
