"""Batches that are not as a producer makes them."""

from __future__ import annotations

from kbroker._core.crc import crc32c_of


def changed(batch: bytes | bytearray, at: int, value: bytes, *, crc: bool = True) -> bytes:
    """`batch` with other bytes at a place, and the checksum that belongs to it."""
    made = bytearray(batch)
    made[at : at + len(value)] = value
    if crc:
        made[17:21] = crc32c_of(made[21:]).to_bytes(4)
    return bytes(made)
