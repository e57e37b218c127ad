"""Batches that differ from what a producer makes."""

from __future__ import annotations

import struct

from kbroker._core.wire.crc import crc32c_of
from kbroker._core.wire.records import RecordsBuilder
from kbroker.protocol.records import ControlType

TRANSACTIONAL, CONTROL = 0x10, 0x20


def changed(batch: bytes | bytearray, at: int, value: bytes, *, crc: bool = True) -> bytes:
    """Return `batch` with `value` at position `at`; with `crc`, its checksum is made right again."""
    made = bytearray(batch)
    made[at : at + len(value)] = value
    if crc:
        made[17:21] = crc32c_of(made[21:]).to_bytes(4)
    return bytes(made)


def encode_control_batch(
    kind: ControlType,
    timestamp: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The end of a transaction, as its coordinator writes it into each partition (KIP-98)."""
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch)
    return control_batch(timestamp, key, value, base_offset, leader_epoch, producer_id, producer_epoch)


def control_batch(
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
) -> bytes:
    """Return a control batch with one record of any key and value."""
    builder = RecordsBuilder()
    builder.append(timestamp, key, value)
    return builder.build(None, TRANSACTIONAL | CONTROL, base_offset, leader_epoch, producer_id, producer_epoch)
