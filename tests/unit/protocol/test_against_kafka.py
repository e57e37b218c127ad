"""Our codec against Apache Kafka's own, byte for byte: every message of the schema data, every version, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.protocol import messages
from tests.kit.kafka.codec import NEWER, KafkaCodec
from tests.kit.models.message import check_messages, versions_of
from tools import make_schemas


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCodec]:
    with KafkaCodec() as codec:
        yield codec


@pytest.fixture(scope="module")
def newer_kafka() -> Iterator[KafkaCodec]:
    with KafkaCodec(NEWER) as codec:
        yield codec


LATER = {
    **{name: 0 for name in messages.NAMES if name.startswith(make_schemas.LATER)},
    **make_schemas.HIGHEST,
    **dict.fromkeys(("WriteTxnMarkersRequest", "WriteTxnMarkersResponse"), 2),  # it has no version 0 any more
}
"""What `tools/make_schemas.py` takes from the newer release, and the first version that is compared with that."""


@pytest.mark.parametrize("name", [name for name in messages.NAMES if LATER.get(name, 1)])
def test_kafka_reads_and_writes_the_same_bytes(kafka: KafkaCodec, name: str) -> None:
    versions = versions_of(getattr(messages, name))
    check_bytes(kafka, name, range(versions.start, LATER.get(name, versions.stop)))


@pytest.mark.parametrize("name", LATER)
def test_a_newer_kafka_reads_and_writes_the_same_bytes(newer_kafka: KafkaCodec, name: str) -> None:
    versions = versions_of(getattr(messages, name))
    check_bytes(newer_kafka, name, range(max(LATER[name], versions.start), versions.stop))


def check_bytes(kafka: KafkaCodec, name: str, versions: range) -> None:
    cls: type[messages.Message] = getattr(messages, name)
    for version in versions:

        def check(message: messages.Message, version: int = version) -> None:
            body = message.encode(version)
            assert kafka.encode(name, version, message) == body
            assert cls.decode(body, version) == message
            _, written = kafka.decode(name, version, body)
            assert written == body

        check_messages(cls, version, check)


def test_a_wrong_byte_would_be_seen(kafka: KafkaCodec) -> None:
    message = messages.MetadataRequest(topics=None)
    assert kafka.encode("MetadataRequest", 12, message) != messages.MetadataRequest(topics=[]).encode(12)
