"""A response as a tree that can be compared: random values, times and ports are replaced by names."""

from __future__ import annotations

import re
import time
from typing import Any

from kbroker._core.wire import record_batch
from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.errors import ErrorCode
from kbroker.protocol import compression
from kbroker.protocol.messages import FetchResponse, Message, Struct
from tests.kit.models import message_set as message_set_model
from tests.kit.models.message import Field, fields_of
from tests.kit.models.record_batch import Refused

Tree = Any

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NEAR_NOW_MS = 3600 * 1000
SHOWN_BYTES = 200
SMALLEST, MAGIC_AT = 26, 16
"""The smallest size of a message or batch in bytes, and the position of the magic byte in both."""

# Fields that tell the elements of an array apart; an array is compared as a mapping by them.
IDENTITY = (
    "resource_type", "resource_name", "name", "topic", "topic_name", "topic_id", "group_id", "key", "api_key",
    "partition_index", "partition", "index", "node_id", "broker_id", "group_instance_id", "batch_index",
    "transactional_id", "producer_id",
)  # fmt: skip
RANDOM = {
    "topic_id": "topic id",
    "producer_id": "producer id",
    "previous_producer_id": "producer id",
    "next_producer_id": "producer id",
    "session_id": "session id",
    "cluster_id": "cluster id",
}
"""Fields whose values the broker draws at random; a value's name says when it was first seen."""
NO_VALUE = {
    "topic_id": bytes(16),
    "producer_id": -1,
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "session_id": 0,
    "cluster_id": "",
}
TIMES = (
    "timestamp", "base_timestamp", "max_timestamp", "log_append_time_ms", "commit_timestamp",
    "transaction_start_time_ms", "last_timestamp", "transaction_last_update_timestamp_ms",
    "transaction_start_timestamp_ms",
)  # fmt: skip
TEXTS = ("error_message", "batch_index_error_message", "documentation")


class Names:
    """Names for values that differ between brokers, given in the order in which the values are first seen."""

    def __init__(self, port: int):
        self.port = port
        self.known: dict[tuple[str, Any], str] = {}

    def learn(self, kind: str, value: Any, name: str) -> None:
        """Give a value its name."""
        self.known[kind, value] = f"<{kind} {name}>"

    def of(self, kind: str, value: Any) -> str:
        if (kind, value) not in self.known:
            count = sum(one == kind for one, _ in self.known)
            self.known[kind, value] = f"<{kind} {count + 1}>"
        return self.known[kind, value]

    def in_text(self, text: str) -> str:
        return UUID.sub(lambda found: self.of("uuid", found.group()), text)


def tree_of(message: Message, version: int, names: Names, words: bool = False) -> Tree:
    """Return the fields that a version has. Texts of errors count only as present or absent, unless `words`."""
    return _Reader(type(message), version, names, words).struct(message, None)


class _Reader:
    def __init__(self, cls: type[Message], version: int, names: Names, words: bool):
        self.cls, self.version, self.names, self.words = cls, version, names, words
        self.is_of_messages = cls is FetchResponse and version < 4

    def struct(self, value: Struct, struct: str | None) -> Tree:
        known = [field for field in fields_of(self.cls, struct) if field.exists(self.version)]
        # Arrays last: what is in them is named by the fields beside them first.
        known.sort(key=lambda field: field.is_array and field.is_struct)
        return {field.name: self.field(getattr(value, field.name), field) for field in known}

    def field(self, value: Any, field: Field) -> Tree:
        if value is None:
            return None
        if field.is_array and field.is_struct:
            return self.array(value, field)
        if field.is_struct:
            return self.struct(value, field.element)
        if field.is_array:
            return [self.scalar(one, field) for one in value]
        return self.scalar(value, field)

    def array(self, values: list[Struct], field: Field) -> Tree:
        """Return the elements by the fields that identify them, sorted: the order in Kafka is that of hash tables."""
        blind = _Reader(self.cls, self.version, _Blind(self.names), self.words)
        ordered = sorted(values, key=lambda value: repr(blind.struct(value, field.element)))
        trees = [self.struct(value, field.element) for value in ordered]
        found: dict[str, Tree] = {}
        for tree in trees:
            named = [str(tree[name]) for name in IDENTITY if tree.get(name) is not None]
            identity = " ".join(named[: 2 if "resource_type" in tree else 1]) or "element"
            twins = sum(key.split("#")[0] == identity for key in found)
            found[identity if not twins else f"{identity}#{twins + 1}"] = tree
        return found

    def scalar(self, value: Any, field: Field) -> Tree:
        name = field.name
        if name == "throttle_time_ms":
            return "<throttle>"
        if field.element == "records":
            found = batches(value, self.names)
            return _first(found) if self.is_of_messages else found
        if name in RANDOM and value != NO_VALUE[name]:
            return self.names.of(RANDOM[name], value)
        if name == "port" and value == self.names.port:
            return "<port>"
        if name == "finalized_features_epoch":
            return "<epoch>" if value >= 0 else value
        if name in TIMES:
            return time_of(value)
        if name.endswith("error_code"):
            return ErrorCode(value).name
        if name in TEXTS and not self.words:
            return "<text>"
        if field.element == "string":
            return self.names.in_text(value)
        if field.element == "uuid" and value == bytes(16):
            return "zero"
        return short(bytes(value)) if isinstance(value, (bytes, bytearray, memoryview)) else value


class _Blind(Names):
    """Names that do not depend on what was seen before, for sorting elements by their other fields."""

    def __init__(self, names: Names):
        super().__init__(names.port)
        self.learned = {key: name for key, name in names.known.items() if not name.rstrip(">").split()[-1].isdigit()}

    def of(self, kind: str, value: Any) -> str:
        return self.learned.get((kind, value), f"<{kind}>")


def time_of(value: int) -> int | str:
    return "<now>" if abs(value - time.time() * 1000) < NEAR_NOW_MS else value


def short(data: bytes) -> str:
    return (
        data.hex()
        if len(data) <= SHOWN_BYTES
        else f"{data[:SHOWN_BYTES].hex()}... {len(data)} bytes, hash {hash(data)}"
    )


def batches(data: bytes, names: Names) -> Tree:
    """Return record batches and messages field by field, and how many bytes of an incomplete one follow them."""
    found: dict[str, Tree] = {}
    rest = data
    while len(rest) >= SMALLEST:
        size = 12 + int.from_bytes(rest[8:12])
        if size < SMALLEST or size > len(rest):
            break
        one = rest[:size]
        offset = int.from_bytes(one[:8], signed=True)
        if one[MAGIC_AT] < 2:
            found[f"message {offset}"] = _message(one)
        else:
            found[f"batch {offset}"] = _batch(one, names)
        rest = rest[size:]
    found["bytes behind"] = len(rest)
    return found


def _first(found: dict[str, Tree]) -> Tree:
    """Return only the first batch or message of an answer that the broker converts.

    Kafka cuts the rest, or adds bytes, until the answer has the size of the bytes in the log. Scenarios about these
    versions read on to the end.
    """
    found.pop("bytes behind")
    return dict([*found.items()][:1])


def _batch(data: bytes, names: Names) -> Tree:
    try:
        (info,) = record_batch.batches(data)
    except InvalidBatch as invalid:
        return f"{data.hex()}, {invalid}"
    return {
        "size": info.size,
        "leader_epoch": info.leader_epoch,
        "attributes": info.attributes,
        "last_offset_delta": info.last_offset_delta,
        "base_timestamp": time_of(info.base_timestamp),
        "max_timestamp": time_of(info.max_timestamp),
        "producer_id": names.of("producer id", info.producer_id) if info.producer_id >= 0 else -1,
        "producer_epoch": info.producer_epoch,
        "base_sequence": info.base_sequence,
        "record_count": info.record_count,
        "payload": short(data[61:]),
        "crc": _crc_is_right(data),
    }


def _crc_is_right(data: bytes) -> bool:
    try:
        record_batch.verify(data, 0)
    except InvalidBatch:
        return False
    return True


def _message(data: bytes) -> Tree:
    """Return one message of magic 0 or 1; a compressed one inflated, because no two libraries compress alike."""
    try:
        message, _ = message_set_model.decode_one(data)
    except Refused as refused:
        return f"{data.hex()}, {refused}"
    seen: dict[str, Tree] = {
        "magic": message.magic,
        "attributes": message.attributes,
        "timestamp": time_of(message.timestamp),
        "key": None if message.key is None else short(message.key),
    }
    codec = message.attributes & message_set_model.CODEC
    if not codec:
        return {**seen, "value": None if message.value is None else short(message.value)}
    assert message.value is not None
    inner = compression.inflate(codec, message.value, 1 << 27, magic=message.magic)
    at, found = 0, []
    while at < len(inner):
        size = 12 + int.from_bytes(inner[at + 8 : at + 12])
        found.append({"offset": int.from_bytes(inner[at : at + 8], signed=True), **_message(inner[at : at + size])})
        at += size
    return {**seen, "inner": found}


def differences(kafka: Tree, ours: Tree, path: str = "") -> list[tuple[str, Tree, Tree]]:
    """Return where two trees differ: paths with the elements' names in brackets, Kafka's value and ours."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        found = []
        for key in [*kafka, *(key for key in ours if key not in kafka)]:
            below = f"{path}.{key}" if key.isidentifier() else f"{path}[{key}]"
            found += differences(kafka.get(key, "<absent>"), ours.get(key, "<absent>"), below.lstrip("."))
        return found
    return [] if kafka == ours and type(kafka) is type(ours) else [(path, kafka, ours)]
