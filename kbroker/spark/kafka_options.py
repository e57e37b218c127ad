"""`kafka.*` options, which are those of Java's clients, as options of ours."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kbroker.client.config import Option
from kbroker.spark.options import WrongOption

log = logging.getLogger("kbroker.spark")

REFUSED = {
    "auto.offset.reset": "where to begin is said by startingOffsets",
    "enable.auto.commit": "Spark keeps the offsets",
    "interceptor.classes": "there is no Java here",
    "key.deserializer": "keys are bytes; cast them, or use valueFormat",
    "value.deserializer": "values are bytes; cast them, or use valueFormat",
    "key.serializer": "the column key is string or binary",
    "value.serializer": "the column value is string or binary",
}


def client_options(given: Mapping[str, str], table: Mapping[str, Option]) -> dict[str, Any]:
    """For a client with the options of `table`. WrongOption: one is refused, or no broker is named."""
    names = {alias for option in table.values() for alias in (option.name, *option.aliases)}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in REFUSED:
            raise WrongOption(f"option kafka.{name} cannot be set: {REFUSED[name]}")
        if name in names:
            found[name] = value
        else:
            log.debug("option kafka.%s is not known and not used", name)
    if not found.get("bootstrap.servers", "").strip():
        raise WrongOption("option kafka.bootstrap.servers is missing: HOST:PORT,... of one broker or more")
    return found
