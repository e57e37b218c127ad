"""Targets of compaction: both passes over batches and messages of any kind."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._core.log.compaction.cleaned_transactions import LastBatches, Transactions
from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker._core.log.compaction.segment_copy import copy_segment, feed_map
from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from kbroker.protocol.records import encode_batch
from tests.fuzz.batches import INFLATED_LIMIT, OLD_FORMAT, mend
from tests.fuzz.target import Target
from tests.kit.models import message_set as message_set_model
from tests.kit.models.message_set import Message

NOW_MS, RETENTION_MS = 1 << 40, 1000
HASH_KEY = bytes(16)


def inflated(codec: int, data: memoryview, magic: int = 2, /) -> memoryview:
    return inflate_shared(codec, data, INFLATED_LIMIT, magic=magic)


def deflated(codec: int, data: bytes, magic: int = 2, /) -> bytes:
    return deflate(codec, data, magic=magic)


def feed_compaction(data: bytes) -> None:
    """InvalidBatch, or a copy that is no longer than it was but for horizons, and of which another copy is the same."""
    if not data:
        return
    log = mend(data[0], data[1:])
    offset_map = DedupeMap(24 * 8, 1, HASH_KEY)
    try:
        taken, _, _ = feed_map(log, offset_map, inflate=inflated, transactions=Transactions([(1, 0, 9, 9)]))
        assert 0 <= taken <= len(log)
        assert offset_map.latest_offset >= -1
        once = copied(log, offset_map)
    except InvalidBatch as error:
        assert 0 <= error.position <= len(log)
        return
    twice = copied(once, offset_map)
    assert twice == once


def copied(log: bytes, offset_map: DedupeMap) -> bytes:
    made = copy_segment(
        log, offset_map, inflate=inflated, deflate=deflated, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS,
        retain_old_tombstones=False, transactions=Transactions(), producers=LastBatches([(1, 5, 0), (2, -1, 0)]),
    )  # fmt: skip
    assert 0 <= made.records_kept <= made.records_read
    assert made.taken <= len(log)
    return bytes(made.output)


def compaction_seeds() -> Iterator[bytes]:
    rows = [(5, b"a", b"1"), (6, b"b", None), (7, b"a", b"2"), (8, None, b"3")]
    for codec in Codec:
        yield bytes([31 & ~16]) + encode_batch(rows, codec=codec)
    yield b"\0" + encode_batch(rows[:3], producer_id=1, producer_epoch=0, base_sequence=0)
    for magic in (0, 1):
        messages = [Message(at, 5, *row[1:], magic) for at, row in enumerate(rows)]
        yield bytes([OLD_FORMAT]) + message_set_model.encode_set(messages)
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            value = deflate(codec, message_set_model.encode_set(messages), magic=magic)
            yield bytes([OLD_FORMAT]) + message_set_model.encode(Message(3, 5, None, value, magic, codec))


TARGETS = (Target("compaction", feed_compaction, compaction_seeds),)
