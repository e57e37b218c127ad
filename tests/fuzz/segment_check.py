"""What `kbroker verify-log` stands on: a segment and its indexes, however damaged."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace

from kbroker._core.log.scan.segment_check import INDEX, LOG, TIME_INDEX, SegmentCheck, check_segment
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from kbroker.protocol.records import encode_batch
from kbroker.storage.index_entries import INDEX_ENTRY, TIME_INDEX_ENTRY
from tests.fuzz.batches import FIX_CRC, FIX_LENGTH, INFLATED_LIMIT, OLD_FORMAT
from tests.fuzz.parsers import mend_batches, packed, scan
from tests.fuzz.target import Target
from tests.kit.models import message_set as message_set_model
from tests.kit.models import record_batch as record_batch_model
from tests.kit.models.compaction import ABORT, COMMIT, CONTROL, TRANSACTIONAL
from tests.kit.models.message_set import Message
from tests.kit.models.record_batch import Batch, Record

HEADER = struct.Struct(">BqqHH")
"""Flags, base offset, end offset, entries of the .index and of the .timeindex; they follow, then the batches."""
GAPS, ZEROS_ALLOWED, HAS_END = 1, 2, 4
INTERVAL_SHIFT = 4


def inflated(codec: int, data: memoryview, magic: int = 2, /) -> memoryview:
    return inflate_shared(codec, data, INFLATED_LIMIT, magic=magic)


def feed_segment_check(data: bytes) -> None:
    """Every finding is of a byte that is there. A log without one is whole to recovery, whose indexes have none."""
    if len(data) < HEADER.size:
        return
    flags, base_offset, end_offset, index_count, time_count = HEADER.unpack_from(data)
    base_offset &= 0x7FFF_FFFF_FFFF_FFFF
    index, rest = cut(data[HEADER.size :], index_count * INDEX_ENTRY.size, INDEX_ENTRY.size)
    time_index, rest = cut(rest, time_count * TIME_INDEX_ENTRY.size, TIME_INDEX_ENTRY.size)
    content = mend_batches(rest)
    fd = os.memfd_create("segment")

    def check(size: int, index: bytes, time_index: bytes) -> SegmentCheck:
        events: list[tuple[int, int, int, int, int]] = []
        checked = check_segment(
            fd, size, base_offset, inflate=inflated, index=index, time_index=time_index,
            end_offset=end_offset if flags & HAS_END else None, gaps=bool(flags & GAPS),
            zeros_allowed=bool(flags & ZEROS_ALLOWED), transactions=events.extend,
        )  # fmt: skip
        sizes = {LOG: size, INDEX: len(index), TIME_INDEX: len(time_index)}
        assert all(0 <= at < sizes[file] for file, at, _ in checked.findings), checked.findings
        assert len(checked.findings) == min(checked.finding_count, 1000)
        assert 0 <= checked.position <= size
        assert all(0 <= position < size for _, position, *_ in events)
        return checked

    try:
        os.write(fd, content)
        checked = check(len(content), index, time_index)
        if any(file == LOG for file, _, _ in checked.findings):
            return
        recovered = scan(fd, len(content), base_offset, 1 << (flags >> INTERVAL_SHIFT))
        assert recovered.valid_size == checked.position, recovered.reason
        assert recovered.next_offset == checked.next_offset
        assert recovered.batches == checked.batches
        assert recovered.max_timestamp == checked.max_timestamp
        assert not check(len(content), recovered.index, recovered.time_index).findings
        if 0 < checked.position == len(content):
            assert check(len(content) - 1, b"", b"").findings
    finally:
        os.close(fd)


def cut(data: bytes, size: int, entry_size: int) -> tuple[bytes, bytes]:
    """Whole entries of at most `size` bytes, and what follows."""
    size = min(size, len(data) // entry_size * entry_size)
    return data[:size], data[size:]


def segment_check_seeds() -> Iterator[bytes]:
    def segment(batches: bytes, flags: int = 0, base_offset: int = 0, index: bytes = b"", times: bytes = b"") -> bytes:
        counts = len(index) // INDEX_ENTRY.size, len(times) // TIME_INDEX_ENTRY.size
        return HEADER.pack(flags, base_offset, 100, *counts) + index + times + batches

    rows = [(5, b"a", b"1"), (6, b"b", None), (7, b"a", b"2" * 60)]
    first, second = encode_batch(rows), encode_batch(rows, base_offset=3, leader_epoch=2, codec=Codec.GZIP)
    index = INDEX_ENTRY.pack(2, 0) + INDEX_ENTRY.pack(5, len(first))
    yield segment(packed(first, second), HAS_END, index=index, times=TIME_INDEX_ENTRY.pack(7, 2))
    yield segment(packed(first, first, fixes=FIX_CRC), GAPS)
    yield segment(packed(first, second[:-9]))
    yield segment(packed(first, bytes(90)), ZEROS_ALLOWED)
    for codec in Codec:
        batch = encode_batch(rows, base_offset=50, codec=codec)
        behind = encode_batch(rows, base_offset=60)
        yield segment(packed(batch, behind, fixes=FIX_CRC | FIX_LENGTH), GAPS | 15 << INTERVAL_SHIFT, base_offset=40)
    producer = Batch(producer_id=1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    data = record_batch_model.encode_batch(replace(producer, records=(Record(0, 0, b"k", None),)))
    for kind in (ABORT, COMMIT):
        marker = Record(0, 0, struct.pack(">hh", 0, kind), bytes(6))
        control = replace(producer, base_offset=1, records=(marker,), attributes=TRANSACTIONAL | CONTROL)
        yield segment(packed(data, record_batch_model.encode_batch(control), fixes=FIX_CRC))
    for magic in (0, 1):
        messages = [Message(at, 5 if magic else -1, *row[1:], magic) for at, row in enumerate(rows)]
        inner = messages if magic else [replace(message, offset=message.offset + 3) for message in messages]
        value = deflate(Codec.GZIP, message_set_model.encode_set(inner), magic=magic)
        wrapper = Message(5, 5, None, value, magic, Codec.GZIP)
        yield segment(packed(message_set_model.encode_set([*messages, wrapper]), fixes=OLD_FORMAT))


TARGETS = (Target("segment-check", feed_segment_check, segment_check_seeds, 2048, share=2),)
