"""Our bytes through the codecs of other projects and back: kio, kafka-python, and kafka-python's hand-written one.

None of them needs a network or Java. Values are tame: these codecs make durations and enums of milliseconds and codes.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import pkgutil
import uuid
from enum import Enum
from typing import Any

import kafka.protocol.old
import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.old.struct import Struct as OldStruct
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kbroker.protocol.messages import ApiVersionsResponse, Message, Struct
from tests.kit.models.message import EXAMPLES, check_messages, served_messages

SERVED = list(served_messages())
NAMES = [cls.__name__ for cls, _ in SERVED]
FEW = max(3, EXAMPLES // 2)
MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def plain(value: Any) -> Any:
    """A value of kio as one of ours."""
    match value:
        case Enum():
            return value.value
        case uuid.UUID():
            return value.bytes
        case datetime.timedelta():
            return value // MILLISECOND
        case datetime.datetime():
            return (value - EPOCH) // MILLISECOND
        case tuple():
            return [plain(one) for one in value]
    return value


def assert_alike(ours: Any, theirs: Any, where: str) -> None:
    """Every field that kio has says the same."""
    if isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(left, right, f"{where}[{index}]")
    elif isinstance(ours, Struct):
        for name in (field.name for field in dataclasses.fields(theirs)):
            our_name = name if hasattr(ours, name) else f"{name}_ms"  # kio has durations
            assert_alike(getattr(ours, our_name), getattr(theirs, name), f"{where}.{name}")
    elif isinstance(ours, bytes) and theirs is None:
        assert ours == bytes(16), where  # kio's way of the zero uuid
    else:
        assert ours == plain(theirs), where


@pytest.mark.parametrize(("cls", "versions"), SERVED, ids=NAMES)
def test_kio_reads_our_values_and_writes_our_bytes(cls: type[Message], versions: range) -> None:
    kind = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    for version in versions:
        try:
            module = load_payload_module(cls.API_KEY or 0, version, kind)
        except Exception:
            continue  # kio starts where Kafka 4 does
        entity = getattr(module, cls.__name__)
        reader, writer = entity_reader(entity), entity_writer(entity)

        def check(message: Message, version: int = version, reader: Any = reader, writer: Any = writer) -> None:
            body = message.encode(version)
            read, size = reader(body, 0)
            assert size == len(body)
            assert_alike(message, read, type(message).__name__)
            written = io.BytesIO()
            writer(written, read)
            assert written.getvalue() == body

        check_messages(cls, version, check, FEW, tame=True)


def without_error(message: Any) -> Any:
    """kafka-python reads an ApiVersionsResponse that has an error as version 0, whatever it is."""
    if isinstance(message, ApiVersionsResponse):
        message.error_code = 0
    return message


def subclasses(base: type) -> list[type]:
    return [one for sub in base.__subclasses__() for one in (sub, *subclasses(sub))]


for module in pkgutil.iter_modules(kafka.protocol.old.__path__, "kafka.protocol.old."):
    importlib.import_module(module.name)
for name in ("admin", "consumer", "metadata", "producer", "sasl"):
    importlib.import_module(f"kafka.protocol.{name}")
KAFKA_PYTHON = {one.__name__: one for one in subclasses(ApiMessage)}
KAFKA_PYTHON_OLD: dict[str, Any] = {one.__name__: one for one in subclasses(OldStruct)}


@pytest.mark.parametrize(("cls", "versions"), SERVED, ids=NAMES)
def test_kafka_python_writes_our_bytes(cls: type[Message], versions: range) -> None:
    theirs: Any = KAFKA_PYTHON.get(cls.__name__)
    if theirs is None:
        pytest.skip("kafka-python has no such message")
    for version in versions:
        if version > theirs.max_version:
            continue

        def check(message: Message, version: int = version) -> None:
            body = without_error(message).encode(version)
            read = theirs.decode(body, version=version)
            read._header = None  # only set when it was decoded too
            assert read.encode(version=version) == body

        check_messages(cls, version, check, FEW, tame=True)


WRONGLY_WRITTEN = {"DescribeLogDirsRequest_v0"}
"""By hand: the partitions of a topic are one number there."""


@pytest.mark.parametrize(("cls", "versions"), SERVED, ids=NAMES)
def test_kafka_pythons_hand_written_messages_write_our_bytes(cls: type[Message], versions: range) -> None:
    named = {version: f"{cls.__name__}_v{version}" for version in versions}
    known = {version: KAFKA_PYTHON_OLD.get(name) for version, name in named.items() if name not in WRONGLY_WRITTEN}
    known = {version: theirs for version, theirs in known.items() if theirs is not None}
    if not known:
        pytest.skip("kafka-python never wrote it by hand")
    for version, theirs in known.items():

        def check(message: Message, version: int = version, theirs: Any = theirs) -> None:
            body = without_error(message).encode(version)
            assert theirs.decode(body).encode() == body

        check_messages(cls, version, check, FEW, tame=True)
