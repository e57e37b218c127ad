"""A slow reading of the schema data: random messages of a version, and Kafka's JSON form of a message."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kbroker.protocol import messages
from kbroker.protocol.messages import Message, Struct

# Random messages per message and version in the differential tests; a long run may ask for more.
EXAMPLES = int(os.environ.get("KBROKER_EXAMPLES", "5"))

INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
# Names whose capitals cannot be told from the snake case.
CAMEL_CASE = {
    "is_kraft_controller": "isKRaftController",
    "kraft_version": "kRaftVersion",
    "kraft_version_feature": "kRaftVersionFeature",
}


def in_range(text: str, version: int) -> bool:
    """Whether `3+`, `2-5`, `7` or `none` contains a version."""
    if text == "none":
        return False
    if text.endswith("+"):
        return version >= int(text[:-1])
    low, _, high = text.partition("-")
    return int(low) <= version <= int(high or low)


class Field:
    """One field of the schema data."""

    def __init__(self, entry: list[Any]):
        self.name, self.type, self.versions = entry[:3]
        self.extras: dict[str, Any] = entry[3] if len(entry) > 3 else {}
        self.is_array = self.type.startswith("[]")
        self.element = self.type.removeprefix("[]")
        self.is_struct = self.element[0].isupper()

    def exists(self, version: int) -> bool:
        return in_range(self.versions, version)

    def nullable(self, version: int) -> bool:
        return in_range(self.extras.get("null", "none"), version)

    def tagged(self, version: int) -> bool:
        return in_range(self.extras.get("tagged", "none"), version)

    @property
    def droppable(self) -> bool:
        return bool(self.extras.get("drop", False))

    @property
    def camel_name(self) -> str:
        first, *others = self.name.split("_")
        return CAMEL_CASE.get(self.name) or first + "".join(word.capitalize() for word in others)


def schema_of(cls: type[Message]) -> list[Any]:
    return messages._SCHEMAS[cls.__name__]


def fields_of(cls: type[Message], struct: str | None = None) -> list[Field]:
    """The fields of a message, or of one of its structs."""
    schema = schema_of(cls)
    return [Field(entry) for entry in (schema[4] if struct is None else schema[5][struct])]


def versions_of(cls: type[Message]) -> range:
    return range(cls.MIN_VERSION, cls.MAX_VERSION + 1)


def message_strategy(cls: type[Message], version: int, tame: bool = False) -> st.SearchStrategy[Any]:
    """Messages with random values in the fields of a version; the others keep their defaults. `tame` ones have only
    values that codecs with types of their own can hold: small natural numbers, known error codes."""
    return _struct_strategy(cls, cls, None, version, tame)


def check_messages(
    cls: type[Message], version: int, check: Callable[[Any], None], examples: int = EXAMPLES, tame: bool = False
) -> None:
    """Run `check` on random messages of a version."""

    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(message_strategy(cls, version, tame))
    def run(message: Message) -> None:
        check(message)

    run()


def _struct_strategy(
    made: type[Struct], cls: type[Message], struct: str | None, version: int, tame: bool
) -> st.SearchStrategy[Any]:
    known = [field for field in fields_of(cls, struct) if field.exists(version)]
    return st.builds(made, **{field.name: _field_strategy(cls, field, version, tame) for field in known})


def _field_strategy(cls: type[Message], field: Field, version: int, tame: bool) -> st.SearchStrategy[Any]:
    if field.is_struct:
        values = _struct_strategy(getattr(cls, field.element), cls, field.element, version, tame)
    elif tame and field.element in INTEGERS:
        values = st.integers(0, 100)
    else:
        values = scalar_strategy(field.element)
    if field.is_array:
        values = st.lists(values, max_size=3)
    if field.nullable(version):
        values = st.none() | values
    return values


def scalar_strategy(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return st.integers(low, high) | st.sampled_from([low, high, 0, 1, -1 if low else 1])
    return {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
        "uuid": st.binary(min_size=16, max_size=16),
        "string": st.text(max_size=12) | st.just("x" * 200),
        "bytes": st.binary(max_size=12) | st.just(b"\0" * 200),
        "records": st.binary(max_size=40),
    }[kind]


def kafka_json(message: Message, version: int) -> Any:
    """Return a message as Kafka's JSON converters read it, with the fields of this version only."""
    return _struct_json(message, type(message), None, version)


def _struct_json(value: Struct, cls: type[Message], struct: str | None, version: int) -> dict[str, Any]:
    return {
        field.camel_name: _field_json(getattr(value, field.name), cls, field, version)
        for field in fields_of(cls, struct)
        if field.exists(version)
    }


def _field_json(value: Any, cls: type[Message], field: Field, version: int) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_element_json(one, cls, field, version) for one in value]
    return _element_json(value, cls, field, version)


def _element_json(value: Any, cls: type[Message], field: Field, version: int) -> Any:
    if field.is_struct:
        return _struct_json(value, cls, field.element, version)
    if field.element == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if field.element in ("bytes", "records"):
        return base64.b64encode(value).decode()
    return value


def served_messages() -> Iterator[tuple[type[Message], range]]:
    """Return every request and response that the broker serves, with the served versions."""
    from kbroker.protocol.api import SERVED, request_class, response_class

    for api_key, served in SERVED.items():
        for cls in (request_class(api_key), response_class(api_key)):
            yield cls, range(served.min, served.max + 1)
