"""Requests that ask for much, made from the schemas of messages. No code knows an API, so new ones are covered.

A shape is one request of an API and version:

* an array, at whatever depth, whose element is repeated until the request has its size: the same name again and again
  (`same`), unknown names (`unknown`), and the shortest possible elements (`empty`);
* a text, or bytes, of that size, or as long as its length field allows;
* a number at its largest or smallest;
* everything null that may be null; unknown tagged fields.

Around it are the elements that make the broker work: one in each array, with known names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from kbroker.protocol.api import SERVED, ApiKey, is_flexible, request_class
from kbroker.protocol.headers import encode_request
from kbroker.protocol.messages import Message
from tests.fuzz.stretching import uvarint
from tests.kit.models.message import INTEGERS, Field, fields_of

FIRST_COUNT = 64
"""The number of elements in a first request, from whose size the final number is computed."""
LARGE_NUMBERS = ("int32", "int64")
LONGEST_TEXT = 32_767
"""The longest text in bytes, even where the length field allows more."""

Given = Mapping[str, Any]
"""Values by FIELD or STRUCT.FIELD; for an array, the value of its elements. FIELD[] leaves the array null or empty."""


@dataclass(frozen=True)
class Shape:
    """A way to make a request of an API and version."""

    api_key: ApiKey
    version: int
    name: str
    build: Callable[[Given, int], bytes]
    """Makes the frame of the given values and a size."""

    def __str__(self) -> str:
        return f"{self.api_key.label} {self.version} {self.name}"


def shapes_of(api_key: ApiKey, version: int) -> Iterator[Shape]:
    cls = request_class(api_key)
    for path in arrays_in(cls, version):
        for filling in ("same", "unknown", "empty"):
            yield Shape(api_key, version, f"{path} {filling}", Repeated(api_key, version, path, filling))
    for path, field in scalars_in(cls, version):
        if field.element in ("string", "bytes", "records"):
            yield Shape(api_key, version, f"{path} long", Long(api_key, version, path, field.element))
        elif field.element in INTEGERS:
            for value in INTEGERS[field.element]:
                yield Shape(api_key, version, f"{path}={value}", Extreme(api_key, version, path, value))
    yield Shape(api_key, version, "nulls", Nulls(api_key, version))
    if is_flexible(api_key, version):
        yield Shape(api_key, version, "tagged", Tagged(api_key, version))


def numbered_arrays(api_key: ApiKey) -> dict[str, Numbered]:
    """Return arrays of numbers of 32 bits or more, or of structs named by one, in the newest version with the array."""
    found = {}
    cls = request_class(api_key)
    for version in range(SERVED[api_key].min, SERVED[api_key].max + 1):
        for path in arrays_in(cls, version):
            _, _, field = holder_of(filled(cls, version, {}), cls, version, path)
            is_named = field.is_struct and first_number(cls, field.element, version) is not None
            if is_named or field.element in LARGE_NUMBERS:
                found[path] = Numbered(api_key, version, path)
    return found


def served() -> Iterator[tuple[ApiKey, int]]:
    for api_key, versions in SERVED.items():
        for version in range(versions.min, versions.max + 1):
            yield api_key, version


# --- places: `topics.partitions` is the array of partitions in each of the topics -------------------------------------
def known_fields(cls: type[Message], struct: str | None, version: int) -> list[Field]:
    return [field for field in fields_of(cls, struct) if field.exists(version)]


def arrays_in(cls: type[Message], version: int, struct: str | None = None, prefix: str = "") -> Iterator[str]:
    for field in known_fields(cls, struct, version):
        if field.is_array:
            yield prefix + field.name
        if field.is_struct:
            yield from arrays_in(cls, version, field.element, f"{prefix}{field.name}.")


def scalars_in(
    cls: type[Message], version: int, struct: str | None = None, prefix: str = ""
) -> Iterator[tuple[str, Field]]:
    for field in known_fields(cls, struct, version):
        if field.is_struct:
            yield from scalars_in(cls, version, field.element, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


# --- values -----------------------------------------------------------------------------------------------------------
def value_of(field: Field, version: int, struct: str | None, given: Given) -> Any:
    """Return the value of an element or field that is not a struct: the given one, else the protocol's default."""
    found = field.extras.get("default")
    for name in (f"{struct}.{field.name}", field.name, f"any {field.element}"):
        if name in given:
            found = given[name]
            break
    return EMPTY[field.element] if found is None and not (field.nullable(version) and not field.is_array) else found


def unknown_value(field: Field, number: int) -> Any:
    """Return an unknown name."""
    if field.element == "uuid":
        return number.to_bytes(16)
    return f"{number:x}" if field.element == "string" else number % INTEGERS[field.element][1]


def first_number(cls: type[Message], struct: str, version: int) -> Field | None:
    """Return the first field of a struct that is a number of 32 bits or more, or None."""
    fields = (one for one in known_fields(cls, struct, version) if not one.is_array and not one.tagged(version))
    return next((one for one in fields if one.element in LARGE_NUMBERS), None)


def named_by(cls: type[Message], version: int, struct: str) -> set[str]:
    """Return the fields that identify a struct in an array: texts and ids, or else its first number."""
    plain = [one for one in known_fields(cls, struct, version) if not one.is_array and not one.tagged(version)]
    names = {one.name for one in plain if one.element in ("string", "uuid")}
    return names or {one.name for one in [one for one in plain if one.element in INTEGERS][:1]}


EMPTY: dict[str, Any] = {
    "string": "", "bytes": b"", "records": b"", "uuid": bytes(16), "bool": False, "float64": 0.0,
} | dict.fromkeys(INTEGERS, 0)  # fmt: skip


def filled(cls: type[Message], version: int, given: Given, struct: str | None = None, number: int | None = None) -> Any:
    """Return a message, or one of its structs, with one element in each array.

    With `number` its names are unknown ones.
    """
    made = cls() if struct is None else getattr(cls, struct)()
    unknown = set() if number is None or struct is None else named_by(cls, version, struct)
    for field in known_fields(cls, struct, version):
        if field.is_struct:
            value = filled(cls, version, given, field.element)
        elif field.name in unknown and number is not None:
            value = unknown_value(field, number)
        else:
            value = value_of(field, version, struct, given)
        if field.is_array:
            is_left_out = f"{field.name}[]" in given
            value = None if is_left_out and field.nullable(version) else [] if is_left_out else [value]
        setattr(made, field.name, value)
    return made


def shortest(cls: type[Message], version: int, field: Field, given: Given) -> Any:
    """Return an element of the array with the fewest bytes: without names and elements."""
    if not field.is_struct:
        return EMPTY[field.element]
    made = filled(cls, version, given, field.element)
    for inner in known_fields(cls, field.element, version):
        if inner.tagged(version):
            setattr(made, inner.name, getattr(getattr(cls, field.element)(), inner.name))
        elif inner.is_array:
            setattr(made, inner.name, [])
        elif inner.element in ("string", "bytes", "records"):
            setattr(made, inner.name, EMPTY[inner.element])
    return made


def holder_of(message: Any, cls: type[Message], version: int, path: str) -> tuple[Any, str | None, Field]:
    """Return the struct that has the field at the end of `path`, the name of this struct, and the field."""
    *outer, last = path.split(".")
    struct: str | None = None
    holder = message
    for name in outer:
        (field,) = (one for one in fields_of(cls, struct) if one.name == name)
        if getattr(holder, name) is None or getattr(holder, name) == []:
            inner = filled(cls, version, {}, field.element)
            setattr(holder, name, [inner] if field.is_array else inner)
        holder, struct = getattr(holder, name), field.element
        if field.is_array:
            holder = holder[0]
    (field,) = (one for one in fields_of(cls, struct) if one.name == last)
    return holder, struct, field


# --- the shapes -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Builder:
    api_key: ApiKey
    version: int

    @property
    def cls(self) -> type[Message]:
        return request_class(self.api_key)

    def message(self, given: Given) -> Any:
        return filled(self.cls, self.version, given)

    def frame(self, message: Message) -> bytes:
        return encode_request(self.api_key, self.version, 1, "amplification", message)


@dataclass(frozen=True)
class Repeated(Builder):
    path: str
    filling: str

    def __call__(self, given: Given, size: int) -> bytes:
        message = self.message(given)
        holder, struct, field = holder_of(message, self.cls, self.version, self.path)

        def elements(count: int) -> list[Any]:
            if self.filling == "empty":
                return [shortest(self.cls, self.version, field, given)] * count
            if self.filling == "same":
                return [self.element(field, struct, given, None)] * count
            return [self.element(field, struct, given, number) for number in range(1, count + 1)]

        setattr(holder, field.name, [])
        without = len(self.frame(message))
        setattr(holder, field.name, elements(FIRST_COUNT))
        each = max(len(self.frame(message)) - without, 1) / FIRST_COUNT
        setattr(holder, field.name, elements(max(int((size - without) / each), 1)))
        return self.frame(message)

    def element(self, field: Field, struct: str | None, given: Given, number: int | None) -> Any:
        if field.is_struct:
            return filled(self.cls, self.version, given, field.element, number)
        return value_of(field, self.version, struct, given) if number is None else unknown_value(field, number)


@dataclass(frozen=True)
class Numbered(Builder):
    """Makes a request with an array whose elements, or the first numbers of its structs, are given."""

    path: str

    def __call__(self, given: Given, numbers: Sequence[int]) -> bytes:
        message = self.message(given)
        holder, _, field = holder_of(message, self.cls, self.version, self.path)
        elements: list[Any] = list(numbers)
        if field.is_struct:
            number_field = first_number(self.cls, field.element, self.version)
            assert number_field is not None
            one = filled(self.cls, self.version, given, field.element)
            elements = [copy(one) for _ in numbers]
            for element, number in zip(elements, numbers, strict=True):
                setattr(element, number_field.name, number)
        setattr(holder, field.name, elements)
        return self.frame(message)


@dataclass(frozen=True)
class Long(Builder):
    path: str
    kind: str

    def __call__(self, given: Given, size: int) -> bytes:
        message = self.message(given)
        holder, _, field = holder_of(message, self.cls, self.version, self.path)
        text: Any = "x" * min(size, LONGEST_TEXT) if self.kind == "string" else b"x" * size
        setattr(holder, field.name, [text] if field.is_array else text)
        return self.frame(message)


@dataclass(frozen=True)
class Extreme(Builder):
    path: str
    value: int

    def __call__(self, given: Given, size: int) -> bytes:
        message = self.message(given)
        holder, _, field = holder_of(message, self.cls, self.version, self.path)
        setattr(holder, field.name, [self.value] if field.is_array else self.value)
        return self.frame(message)


@dataclass(frozen=True)
class Nulls(Builder):
    def __call__(self, given: Given, size: int) -> bytes:
        message = self.message(given)
        self.put(message, None)
        return self.frame(message)

    def put(self, holder: Any, struct: str | None) -> None:
        for field in known_fields(self.cls, struct, self.version):
            value = getattr(holder, field.name)
            if field.nullable(self.version):
                setattr(holder, field.name, None)
            elif field.is_struct:
                for inner in value if field.is_array else [value]:
                    self.put(inner, field.element)


@dataclass(frozen=True)
class Tagged(Builder):
    """Makes a request with unknown tagged fields.

    They replace the last byte of a flexible message: no tagged fields.
    """

    def __call__(self, given: Given, size: int) -> bytes:
        frame = self.frame(self.message(given))
        fields = b"".join(uvarint(tag) + b"\0" for tag in range(1000, 1000 + size // 3))
        made = frame[4:-1] + uvarint(size // 3) + fields
        return len(made).to_bytes(4) + made
