"""Record batches and messages of magic 0 and 1 for the fuzzer: what one parser takes for right, all others do too."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kbroker._core.wire import message_set
from kbroker._core.wire.columns import RecordColumns
from kbroker._core.wire.conversion import batch_of_messages, message_sets_of_batch
from kbroker._core.wire.crc import crc32_of, crc32c_of
from kbroker._core.wire.record_batch import (
    BatchInfo,
    InvalidBatch,
    batches,
    check,
    check_timestamps,
    check_trailing,
    header,
    stamp,
    stamp_timestamp,
    walk,
)
from kbroker._core.wire.records import decode_records
from kbroker.errors import BadInput
from kbroker.protocol.compression import deflate, inflate_shared
from kbroker.protocol.records import Record, encode_batch, read_batches, read_records
from tests.kit.wire.message_rows import read_rows

INFLATED_LIMIT = 1 << 16
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = BATCH_HEADER.size
CRC_AT, CRC_FROM, LENGTH_AT, MAGIC_AT = 17, 21, 8, 16


# --- record batches -----------------------------------------------------------------------------------

FIX_LENGTH, FIX_CRC, FIX_MAGIC, FIX_COUNT, PLAIN = 1, 2, 4, 8, 16


def put_right(fixes: int, batch: bytes) -> bytes:
    """`batch` with what `fixes` names made true."""
    if len(batch) < HEADER_SIZE:
        return batch
    made = bytearray(batch)
    if fixes & FIX_LENGTH:
        struct.pack_into(">i", made, LENGTH_AT, len(made) - 12)
    if fixes & FIX_MAGIC:
        made[MAGIC_AT] = 2
    if fixes & PLAIN:
        struct.pack_into(">h", made, 21, struct.unpack_from(">h", made, 21)[0] & ~0x7)
    if fixes & FIX_COUNT:
        (count,) = struct.unpack_from(">i", made, 57)
        struct.pack_into(">i", made, 23, (count - 1) & 0x7FFFFFFF)
    if fixes & FIX_CRC:
        struct.pack_into(">I", made, CRC_AT, crc32c_of(made[CRC_FROM:]))
    return bytes(made)


def feed_batch(data: bytes) -> None:
    """A produced batch: a finding with its code, or records that every reader reads alike."""
    if not data:
        return
    batch = put_right(data[0], data[1:])
    for ask in (lambda: batches(batch), lambda: list(read_batches(batch)), lambda: header(batch)):
        try:
            ask()
        except BadInput:
            pass
    try:
        info = check(batch)
        check_trailing(batch, info)
        payload = bytes(inflate_shared(info.codec, batch[HEADER_SIZE : info.size], INFLATED_LIMIT))
        newest = walk(payload, info)
    except BadInput:
        return
    for before_ms, after_ms in ((0, 0), (2**63 - 1, 2**63 - 1)):
        try:
            check_timestamps(info, False, 1_700_000_000_000, before_ms, after_ms)
        except InvalidBatch:
            pass
    agree(info, payload, batch, newest)


def agree(info: BatchInfo, payload: bytes, batch: bytes, newest: int) -> None:
    """Records as objects, as columns, and again after stamping; none may be refused that the walk has accepted."""
    try:
        records = decode_records(payload, info)
    except BadInput:
        # A header's key that is no text passes the walk, as in Kafka, and cannot be a str.
        return
    assert len(records) == info.record_count
    collector = RecordColumns()
    assert collector.add(info, payload) == info.record_count
    columns = collector.finish()
    assert columns.count == info.record_count
    assert [columns.values[row] for row in range(columns.count)] == [record.value for record in records]
    assert [columns.keys[row] for row in range(columns.count)] == [record.key for record in records]
    assert memoryview(columns.offsets).tolist() == [record.offset for record in records]
    assert memoryview(columns.timestamps).tolist() == [record.timestamp for record in records]
    assert newest == max([record.timestamp for record in records], default=-1) or newest == -1
    stamped = bytearray(batch[: info.size])
    stamp(stamped, 1 << 40, 7)
    stamp_timestamp(stamped, True, 99)
    again = check_stamped(bytes(stamped))
    assert [record.value for record in again] == [record.value for record in records]
    assert [record.offset for record in again] == [(1 << 40) + number for number in range(info.record_count)]


def check_stamped(stamped: bytes) -> list[Record]:
    (read,) = read_batches(stamped)
    assert read.info.is_log_append_time and read.info.max_timestamp == 99
    return list(read.records(INFLATED_LIMIT))


def batch_seeds() -> Iterator[bytes]:
    everything = FIX_LENGTH | FIX_CRC | FIX_MAGIC
    yield bytes([everything]) + encode_batch([])
    yield bytes([everything]) + encode_batch([(5, b"key", b"value"), (6, None, b"x" * 200), (4, b"", None)])
    headers = (("name", b"value"), ("", None), ("more", b""))
    record = Record(0, 1, b"k", b"v", headers)
    for codec in range(5):
        yield bytes([everything]) + encode_batch(
            [record] * 3, codec=codec, producer_id=9, producer_epoch=0, base_sequence=4
        )


def feed_compressed(data: bytes) -> None:
    """Compressed bytes: BadInput, or at most as many bytes as are allowed."""
    if not data:
        return
    limit = 1 << (data[0] >> 3)
    try:
        room = inflate_shared(data[0] & 7, data[1:], min(limit, INFLATED_LIMIT), strict=bool(data[0] & 0x80))
    except BadInput:
        return
    assert len(room) <= min(limit, INFLATED_LIMIT)


def compressed_seeds() -> Iterator[bytes]:
    for codec in range(1, 5):
        for value in (b"", b"abc", b"a" * 3000, bytes(range(256)) * 3):
            yield bytes([codec | 0x78]) + encode_batch([(0, None, value)], codec=codec)[HEADER_SIZE:]


# --- messages of magic 0 and 1 --------------------------------------------------------------------------

LENGTH_OF_MESSAGE, CRC_OF_MESSAGE = 8, 12


def mend_messages(fixes: int, data: bytes) -> bytes:
    """A set whose messages, one behind the other as their lengths say, have their check sums put right."""
    made, at = bytearray(data), 0
    while fixes & FIX_CRC and len(made) - at >= MAGIC_AT:
        (length,) = struct.unpack_from(">i", made, at + LENGTH_OF_MESSAGE)
        if length < 4 or at + 12 + length > len(made):
            break
        if fixes & FIX_MAGIC:
            made[at + MAGIC_AT] &= 1
        struct.pack_into(">I", made, at + CRC_OF_MESSAGE, crc32_of(made[at + MAGIC_AT : at + 12 + length]))
        at += 12 + length
    return bytes(made)


OLD_FORMAT = 0x80
"""Among the bits of `put_right`: messages of magic 0 or 1, whose check sums are put right, instead of a batch."""


def mend(fixes: int, data: bytes) -> bytes:
    return mend_messages(FIX_CRC, data) if fixes & OLD_FORMAT else put_right(fixes, data)


def feed_message_set(data: bytes) -> None:
    """Messages of magic 0 or 1: a finding, or the same from every reader and after a conversion there and back."""
    if len(data) < 2:
        return
    messages = mend_messages(data[0], data[2:])
    wrapper = message_set.check(WRAPPERS[data[1] % len(WRAPPERS)]) if data[1] & 0x80 else None
    try:
        rows = read_rows(messages, wrapper)
        builder = batch_of_messages(messages, wrapper=wrapper, limit=INFLATED_LIMIT)
    except BadInput:
        inflate_messages(messages)
        return
    assert builder.size <= INFLATED_LIMIT
    batch = builder.build()
    read = list(read_records(batch))
    assert [(record.timestamp, record.key, record.value) for record in read] == [row[1:] for row in rows]
    magic = message_set.check(messages).magic
    (back,) = message_sets_of_batch(header(batch), batch[HEADER_SIZE:], magic)
    assert read_rows(back.messages()) == [(at, *row[1:]) for at, row in enumerate(rows)]


def inflate_messages(messages: bytes) -> None:
    """What is inside of those that are compressed."""
    try:
        for outer in message_set.messages(messages):
            if outer.codec:
                value = messages[outer.value_position :][: outer.value_size]
                inner = bytes(inflate_shared(outer.codec, value, INFLATED_LIMIT, magic=outer.magic))
                message_set.walk(inner, wrapper=outer)
    except BadInput:
        pass


WRAPPERS = [
    message_set.wrap(b"", 1, magic, offset, 7, stamped)
    for magic in (0, 1)
    for offset in (0, 2, 2**63 - 1)
    for stamped in (False, True)
]


def message_set_seeds() -> Iterator[bytes]:
    for magic in (0, 1):
        flat = message_set.MessageSetBuilder(magic)
        inner = message_set.MessageSetBuilder(magic, compressed=True)
        for builder in (flat, inner):
            builder.append(0, 5, b"key", b"value")
            builder.append(1, 6, None, b"x" * 200)
            builder.append(2, -1, b"", None)
        for second in (0, 0x80, 0x83, 0x88):
            yield bytes([FIX_CRC, second]) + flat.messages()
        yield bytes([FIX_CRC, 0]) + flat.messages()[:-3]
        for codec in (1, 2, 3):
            yield bytes([FIX_CRC, 0]) + inner.wrap(codec, deflate(codec, inner.messages(), magic=magic))
