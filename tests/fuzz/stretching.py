"""Fields of frames made longer than the inputs of a fuzzer are: around the limits of 8, 15 and 16 bits, and 1 MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kbroker.errors import BadInput
from kbroker.protocol.api import ApiKey, is_flexible, request_header_version
from kbroker.protocol.headers import decode_request, encode_request
from kbroker.protocol.messages import Message, RequestHeader, Struct
from tests.kit.models.message import INTEGERS, Field, fields_of

LENGTHS = (127, 255, 256, 32_766, 32_767, 32_768, 65_534, 65_535, 65_536, 1 << 20)
MOST_ELEMENTS = 256
"""What stands in an array may be much work: how often it is done is not what is looked for here."""
EMPTY: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "uuid": bytes(16)} | dict.fromkeys(INTEGERS, 0)
MARK = "what stands here is going to be long"


@dataclass(frozen=True)
class Place:
    """Something with a length: its kind, its value, and how another value is put there."""

    kind: str
    value: Any
    put: Callable[[Any], None]


def stretched(frame: bytes) -> bytes:
    """`frame` with one of its texts, bytes or arrays repeated up to one of LENGTHS; as it is if it has none.

    Which and to which length is what the correlation id says, so that any frame can be stretched by a flip of one bit
    beside it. The length is told truly as far as there is room for it: a text that is not compact says 16 bits of it.
    """
    try:
        header, message = decode_request(frame)
        api, version = ApiKey(header.request_api_key), header.request_api_version
        places = list(places_of(header, message, version))
        if not places:
            return frame
        which, length = divmod(header.correlation_id & 0xFFFF, len(LENGTHS))
        place, size = places[which % len(places)], LENGTHS[length]
        if place.kind == "array":
            place.put((place.value * MOST_ELEMENTS)[: min(size, MOST_ELEMENTS)])
        else:
            place.put(MARK if place.kind in ("string", "client id") else MARK.encode())
        made = encode_request(api, version, header.correlation_id, header.client_id, message)[4:]
    except BadInput:
        return frame
    if place.kind == "array":
        return made
    value = place.value.encode() if isinstance(place.value, str) else bytes(place.value or b"")
    before, _, behind = made.partition(MARK.encode())
    if place.kind != "client id" and is_flexible(api, version):
        before = before[:-1] + uvarint(size + 1)
    else:
        width = 4 if place.kind == "bytes" else 2
        before = before[:-width] + (size & (1 << 8 * width) - 1).to_bytes(width)
    return before + repeated(value or b"x", size) + behind


def choice(which: int, size: int) -> int:
    """The correlation id that asks for that one of the places, and that one of LENGTHS."""
    return which * len(LENGTHS) + LENGTHS.index(size)


def places_of(header: RequestHeader, message: Message, version: int) -> Iterator[Place]:
    if request_header_version(ApiKey(header.request_api_key), version) > 0:
        yield Place("client id", header.client_id, lambda value: setattr(header, "client_id", value))
    yield from places_in(message, type(message), None, version)


def places_in(value: Struct, cls: type[Message], struct: str | None, version: int) -> Iterator[Place]:
    """Yield the places in the fields that the version has.

    A tagged field has a size of its own around it, so it is left out.
    """
    for field in fields_of(cls, struct):
        if field.exists(version) and not field.tagged(version):
            yield from places_of_field(getattr(value, field.name), value, cls, field, version)


def places_of_field(held: Any, owner: Struct, cls: type[Message], field: Field, version: int) -> Iterator[Place]:
    def put(value: Any) -> None:
        setattr(owner, field.name, value)

    kind = {"records": "bytes"}.get(field.element, field.element)
    if field.is_array:
        if held:
            yield Place("array", held, put)
        for at, element in enumerate(held or ()):
            if field.is_struct:
                yield from places_in(element, cls, field.element, version)
            elif kind in ("string", "bytes"):
                yield Place(kind, element, lambda value, at=at: held.__setitem__(at, value))  # type: ignore[misc]
    elif field.is_struct:
        if held is not None:
            yield from places_in(held, cls, field.element, version)
    elif kind in ("string", "bytes"):
        yield Place(kind, held or ("" if kind == "string" else b""), put)


def filled(cls: type[Message], version: int, struct: str | None = None) -> Any:
    """A message with one element in each of its arrays, and a default in everything else."""
    made = cls() if struct is None else getattr(cls, struct)()
    for field in fields_of(cls, struct):
        if field.exists(version) and (field.is_array or getattr(made, field.name) is None):
            put = EMPTY[field.element] if not field.is_struct else filled(cls, version, field.element)
            setattr(made, field.name, [put] if field.is_array else put)
    return made


def repeated(value: bytes, size: int) -> bytes:
    return (value * (size // len(value) + 1))[:size]


def uvarint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
