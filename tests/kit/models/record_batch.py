"""A slow and obvious model of the record batch of magic 2, which the compiled core is compared with.

Findings are named as in kbroker._core.wire.record_batch.FINDINGS; the order of the checks is the contract's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

CASTAGNOLI = 0x82F63B78
ZLIB = 0xEDB88320
HEADER = struct.Struct(">qiibIhiqqqhii")
INT64_MAX = 2**63 - 1


class Refused(Exception):
    """The model refuses a batch; the argument is the finding's name."""


def crc(polynomial: int, data: bytes, start: int = 0) -> int:
    """Compute a reflected CRC of 32 bits, bit by bit."""
    register = start ^ 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (polynomial if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Record:
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    attributes: int = 0


@dataclass(frozen=True)
class Batch:
    records: tuple[Record, ...] = ()
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    last_offset_delta: int | None = None  # None: the number of records, less one
    base_timestamp: int = 0
    max_timestamp: int | None = None  # None: the largest of the records
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int | None = None
    payload: bytes | None = field(
        default=None, repr=False
    )  # None: the encoded records; else these bytes in their place


def zigzag(number: int) -> bytes:
    raw = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def encode_record(record: Record) -> bytes:
    body = struct.pack(">b", record.attributes) + zigzag(record.timestamp_delta) + zigzag(record.offset_delta)
    body += sized(record.key) + sized(record.value) + zigzag(len(record.headers))
    for key, value in record.headers:
        body += sized(key) + sized(value)
    return zigzag(len(body)) + body


def encode_records(records: tuple[Record, ...]) -> bytes:
    return b"".join(encode_record(record) for record in records)


def encode_batch(batch: Batch) -> bytes:
    payload = encode_records(batch.records) if batch.payload is None else batch.payload
    count = len(batch.records) if batch.record_count is None else batch.record_count
    last = count - 1 if batch.last_offset_delta is None else batch.last_offset_delta
    newest = max((batch.base_timestamp + record.timestamp_delta for record in batch.records), default=-1)
    header = HEADER.pack(
        batch.base_offset,
        49 + len(payload),
        batch.leader_epoch,
        batch.magic,
        0,
        batch.attributes,
        last,
        batch.base_timestamp,
        newest if batch.max_timestamp is None else batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        count,
    )
    whole = header + payload
    return whole[:17] + struct.pack(">I", crc(CASTAGNOLI, whole[21:])) + whole[21:]


class Reader:
    """Reads a record's fields. Raises Refused("BATCH_BAD_RECORD") if the bytes end too early."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Refused("BATCH_BAD_RECORD")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits: int = 32) -> int:
        raw = shift = 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= bits:
                raise Refused("BATCH_BAD_RECORD")
        if raw >> bits:
            raise Refused("BATCH_BAD_RECORD")
        return raw >> 1 ^ -(raw & 1)

    def bytes(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def decode_record(reader: Reader) -> Record:
    size = reader.varint()
    if size < 1:
        raise Refused("BATCH_BAD_RECORD")
    body = Reader(reader.take(size))
    attributes = struct.unpack(">b", body.take(1))[0]
    timestamp_delta = body.varint(64)
    offset_delta = body.varint()
    key = body.bytes()
    value = body.bytes()
    count = body.varint()
    if count < 0 or count > len(body.data) - body.at:
        raise Refused("BATCH_BAD_RECORD")
    headers = []
    for _ in range(count):
        header_key = body.bytes()
        if header_key is None:
            raise Refused("BATCH_BAD_RECORD")
        headers.append((header_key, body.bytes()))
    if body.at != size:
        raise Refused("BATCH_BAD_RECORD")
    return Record(offset_delta, timestamp_delta, key, value, tuple(headers), attributes)


def decode_header(data: bytes) -> Batch:
    """Check lengths and magic, and return the batch. Its payload is what stands behind the header."""
    if len(data) < 12:
        raise Refused("BATCH_TOO_SHORT")
    (length,) = struct.unpack(">i", data[8:12])
    if length < 14 or length > 2**31 - 1 - 12:
        raise Refused("BATCH_BAD_LENGTH")
    if len(data) < 17:
        raise Refused("BATCH_TOO_SHORT")
    if data[16] > 2:
        raise Refused("BATCH_BAD_MAGIC")
    if len(data) < 12 + length:
        raise Refused("BATCH_TOO_SHORT")
    if data[16] != 2:
        raise Refused("BATCH_OLD_MAGIC")
    if length < 49:
        raise Refused("BATCH_BAD_LENGTH")
    (base, _, epoch, magic, _, attributes, last, first_time, max_time, pid, pepoch, sequence, count) = HEADER.unpack(
        data[:61]
    )
    payload = data[61 : 12 + length]
    return Batch((), base, epoch, magic, attributes, last, first_time, max_time, pid, pepoch, sequence, count, payload)


def verify(data: bytes) -> Batch:
    batch = decode_header(data)
    assert batch.payload is not None
    if struct.unpack(">I", data[17:21])[0] != crc(CASTAGNOLI, data[21 : 61 + len(batch.payload)]):
        raise Refused("BATCH_BAD_CRC")
    return batch


def check(data: bytes) -> Batch:
    """Raise Refused if a client may not send this batch."""
    batch = decode_header(data)
    if batch.base_offset != 0:
        raise Refused("BATCH_BAD_BASE_OFFSET")
    verify(data)
    assert batch.record_count is not None
    if batch.attributes & 7 > 4:
        raise Refused("BATCH_BAD_CODEC")
    if batch.record_count <= 0 or batch.last_offset_delta != batch.record_count - 1:
        raise Refused("BATCH_BAD_COUNT")
    if batch.attributes & 0x20:
        raise Refused("BATCH_BAD_ATTRIBUTES")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise Refused("BATCH_BAD_PRODUCER")
    return batch


def walk(batch: Batch, records: bytes, key_required: bool = False) -> tuple[Batch, int]:
    """Return the batch with its records, and the largest timestamp."""
    assert batch.record_count is not None
    if batch.record_count < 0 or batch.last_offset_delta != batch.record_count - 1:
        raise Refused("BATCH_BAD_COUNT")
    reader = Reader(records)
    found = []
    newest = -1
    for delta in range(batch.record_count):
        record = decode_record(reader)
        if record.offset_delta != delta:
            raise Refused("BATCH_BAD_COUNT")
        if key_required and record.key is None:
            raise Refused("BATCH_NO_KEY")
        timestamp = (batch.base_timestamp + record.timestamp_delta + 2**63) % 2**64 - 2**63
        newest = max(newest, timestamp)
        found.append(record)
    if reader.at != len(records):
        raise Refused("BATCH_BAD_RECORD")
    if batch.attributes & 8:
        assert batch.max_timestamp is not None
        newest = max(batch.max_timestamp, -1)
    return replace(batch, records=tuple(found)), newest
