"""Batches of every codec and format that inflate to far more than the limit are refused, without using that memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec, deflate
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.models import message_set as model
from tests.kit.models.message_set import Message
from tests.kit.parts.processors import produce_request

LIMIT, BOMB = 4 << 20, 96 << 20
ROOM = 40 << 20
"""Bytes: more than the buffers for a request and the limit take, less than half of one inflated bomb."""
OLD_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
TIME = 1_700_000_000_000


def wrapper(payload: bytes, codec: Codec, magic: int) -> bytes:
    time = TIME if magic else -1
    return model.encode(Message(0, time, None, deflate(codec, payload, magic=magic), magic, int(codec)))


def bomb(codec: Codec, magic: int) -> bytes:
    if magic == 2:
        return encode_batch([(TIME, b"k", bytes(BOMB))], codec=codec)
    return wrapper(model.encode(Message(0, TIME if magic else -1, b"k", bytes(BOMB), magic)), codec, magic)


def highest_resident_bytes(pid: int) -> int:
    """Return the largest resident memory of a process, in bytes, since the last call."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(found[1]) * 1024


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess({"kbroker.inflated.batch.max.bytes": LIMIT, "message.max.bytes": 32 << 20}) as started:
        yield started


def produced(client: WireClient, version: int, records: bytes) -> int:
    code: int = (
        client.call(ApiKey.PRODUCE, version, produce_request("t", records))
        .responses[0]
        .partition_responses[0]
        .error_code
    )
    return code


CASES = [(codec, 2, 7) for codec in (*OLD_CODECS, Codec.ZSTD)] + [(codec, m, 2) for codec in OLD_CODECS for m in (0, 1)]


@pytest.mark.parametrize(("codec", "magic", "version"), CASES, ids=lambda one: str(getattr(one, "name", one)))
def test_a_bomb_is_refused_in_bounded_memory(broker: BrokerProcess, codec: Codec, magic: int, version: int) -> None:
    sent = bomb(codec, magic)
    with WireClient("127.0.0.1", broker.port) as client:
        topic = M.MetadataRequest.MetadataRequestTopic(name="t")
        client.call(ApiKey.METADATA, 4, M.MetadataRequest(topics=[topic], allow_auto_topic_creation=True))
        assert produced(client, version, encode_batch([(TIME, b"k", b"v")], codec=Codec.GZIP)) == 0
        highest_resident_bytes(broker.pid)
        before = highest_resident_bytes(broker.pid)
        for _ in range(3):
            assert produced(client, version, sent) == ErrorCode.MESSAGE_TOO_LARGE
        assert highest_resident_bytes(broker.pid) - before < ROOM


@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_within_a_compressed_message_is_not_even_inflated(broker: BrokerProcess, magic: int) -> None:
    sent = wrapper(wrapper(bytes(BOMB), Codec.GZIP, magic), Codec.GZIP, magic)
    with WireClient("127.0.0.1", broker.port) as client:
        highest_resident_bytes(broker.pid)
        before = highest_resident_bytes(broker.pid)
        assert produced(client, 2, sent) == ErrorCode.INVALID_RECORD
        assert highest_resident_bytes(broker.pid) - before < 8 << 20
