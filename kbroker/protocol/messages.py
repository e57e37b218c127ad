"""One class for each message in `schemas.json`, made when it is first used.

    from kbroker.protocol import messages as M
    M.MetadataRequest.decode(body, 12)
    M.MetadataResponse(cluster_id="c", brokers=[M.MetadataResponse.MetadataResponseBroker(node_id=0, host="h", port=1)])

A class has the fields of all versions; the classes of nested structs are its attributes. Arguments are keywords, with
the protocol's defaults. A `uuid` is `bytes` of 16; `bytes` and `records` take bytes, bytearray or memoryview and decode
to `bytes`; arrays are lists.
`messages.pyi` (written by tools/make_schemas.py) lists every class and field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kbroker._core.wire.codec import Message, Struct, make_message

__all__ = ["NAMES", "Message", "Struct"]

_SCHEMAS: dict[str, list[Any]] = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
NAMES = tuple(_SCHEMAS)


def __getattr__(name: str) -> type[Message]:
    schema = _SCHEMAS.get(name)
    if schema is None:
        raise AttributeError(f"the protocol has no message {name!r}")
    # Two threads may make the class at once. Both get the first one that is there: the codec takes no other.
    made: type[Message] = globals().setdefault(name, make_message(name, schema, __name__))
    return made


def __dir__() -> list[str]:
    return [*__all__, *NAMES]
