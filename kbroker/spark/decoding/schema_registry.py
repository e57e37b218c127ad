"""A client of schema registries with Confluent's API: the Avro schema of an id, and the latest one of a subject."""

from __future__ import annotations

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
from kbroker.spark.options.registry_addresses import RegistryAddress, registry_addresses

log = logging.getLogger("kbroker.spark")

TIMEOUT_S = 10.0
TRIES = 3
MOST_BYTES = 16 << 20
NOT_THERE = (40401, 40402, 40403)
"""Error codes of Confluent's API: no such subject, version or schema. A server with another 404 does not speak it."""
MOST_REFERENCES = 100
MOST_UNKNOWN, UNKNOWN_S = 1000, 60.0
"""At most MOST_UNKNOWN unregistered ids are asked for in UNKNOWN_S seconds: values can name any id."""


class RegistryFailed(KbrokerError):
    """A schema registry cannot be reached, or does not answer as one."""


class Found(NamedTuple):
    """A schema as it is registered, and the schemas that it refers to, which have to be parsed before it."""

    text: str
    references: tuple[str, ...]

    def parsed(self) -> Schema:
        """Return the parsed schema. Raises ValueError when the text is not an Avro schema."""
        return parsed(self.text, self.references)


class SchemaRegistry:
    """A registry, which may have several addresses. It remembers the schemas of ids.

    `addresses`: URLs like http://USER:PASSWORD@HOST:PORT, with commas. If one cannot be reached, the next is asked.

    The schema of an id never changes and is asked for once. An unregistered id is asked for once a minute.
    """

    def __init__(self, addresses: str):
        """Raises ValueError when `addresses` is not a list of URLs."""
        self._addresses = registry_addresses(addresses)
        self._by_id: dict[int, Schema] = {}
        self._unknown: set[int] = set()
        self._unknown_until = 0.0

    def schema(self, schema_id: int) -> Schema | None:
        """Return the schema with an id, or None if it is not registered or there were too many unregistered ids.

        Raises NotAvro when it is no Avro schema, and RegistryFailed when the registry cannot be reached.
        """
        if (known := self._by_id.get(schema_id)) is not None:
            return known
        if schema_id < 0 or not self._may_look_up(schema_id):
            return None
        found = self._get(f"/schemas/ids/{schema_id}")
        if found is None:
            self._unknown.add(schema_id)
            return None
        self._by_id[schema_id] = self._schema(found, f"schema {schema_id}").parsed()
        return self._by_id[schema_id]

    def _may_look_up(self, schema_id: int) -> bool:
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
        """Return the latest schema of a subject.

        Raises NotAvro when it is no Avro schema, and RegistryFailed when the registry cannot be reached or has no such
        subject.
        """
        found = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
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
        """Add the schemas to which `found` refers, each behind those to which it refers itself."""
        for key in _references(found):
            if key in references:
                continue
            if len(references) >= MOST_REFERENCES:
                raise RegistryFailed(f"the schema registry {self}: more than {MOST_REFERENCES} references")
            references[key] = ""  # so that it is not asked for again, should it refer to itself
            inner = self._get(f"/subjects/{urllib.parse.quote(key[0], safe='')}/versions/{key[1]}")
            if inner is None:
                raise RegistryFailed(f"the schema registry {self} has no version {key[1]} of {key[0]!r}")
            self._collect(inner, references)
            del references[key]
            references[key] = str(inner.get("schema"))

    def _get(self, path: str) -> Any:
        """Return what the first address that answers says, None if it has no such thing.

        Raises RegistryFailed when no address answers.
        """
        last = ""
        for attempt in range(TRIES):
            for address in self._addresses:
                try:
                    return _get(address, path)
                except _Unreachable as error:
                    last = str(error)
            time.sleep(0.1 * 2**attempt)
        raise RegistryFailed(f"the schema registry {self} does not answer: {last}")

    def __str__(self) -> str:
        return ",".join(str(each) for each in self._addresses)


def _references(found: Any) -> list[tuple[str, int]]:
    """Return the subject and version of each reference. Raises RegistryFailed when a reference lacks one of them."""
    try:
        return [(str(each["subject"]), int(each["version"])) for each in found.get("references") or ()]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise RegistryFailed(f"a schema's references are no subjects and versions: {str(found)[:100]}") from None


def _error_code(answer: urllib.error.HTTPError) -> Any:
    """Return the error code of Confluent's API, or None if the answer has none: it does not come from a registry."""
    try:
        return json.loads(answer.read(MOST_BYTES))["error_code"]
    except (OSError, RecursionError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None


class _Unreachable(Exception):
    """An address does not answer, or has an error that may pass."""


def _get(address: RegistryAddress, path: str) -> Any:
    """Return what one address answers, or None if it has no such thing.

    Raises _Unreachable when it does not answer or its error may pass, and RegistryFailed when it refuses.
    """
    request = urllib.request.Request(address.url + path, headers=address.headers)
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
            f"the schema registry {address} refuses: HTTP {error.code} {error.reason} for {where}"
        ) from None
    except urllib.error.URLError as error:
        raise _Unreachable(str(error.reason)) from None
    except (OSError, RecursionError, ValueError, http.client.HTTPException) as error:
        raise _Unreachable(str(error)) from None


@lru_cache(maxsize=8)
def registry(addresses: str) -> SchemaRegistry:
    """Return the registry with these addresses: one for all tasks of a process, so that each id is asked for once.

    Raises ValueError when `addresses` is not a list of URLs.
    """
    return SchemaRegistry(addresses)
