"""What is in a log, read from its files without the broker's code for reading them."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.protocol.records import ControlType, control_type, read_batches

HEADER = struct.Struct(">qiibIhiqqqhii")
"""A batch from its base offset to its record count (magic 2)."""

SUFFIX = ".log"


class Stored(NamedTuple):
    """One batch in a log."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    digest: int
    """A sum over all its bytes."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    control: ControlType | None
    """Of a marker: its kind."""
    values: tuple[bytes, ...]


def parse(data: bytes) -> Stored:
    """Read one whole batch."""
    header = HEADER.unpack_from(data)
    base_offset, _, leader_epoch, _, _, attributes, delta, _, _, producer_id, producer_epoch, sequence, _ = header
    control, values = None, ()
    records = next(iter(read_batches(data))).records()
    if attributes & 0x20:
        control = control_type(records[0])
    else:
        values = tuple(bytes(record.value or b"") for record in records)
    return Stored(
        base_offset, base_offset + delta, leader_epoch, zlib.crc32(data), producer_id, producer_epoch, sequence,
        bool(attributes & 0x10), control, values,
    )  # fmt: skip


class LogFiles:
    """Reads one log's batches on and on: from where it stands, or anew after the log was cut."""

    def __init__(self, path: str):
        self.path = path
        self._base = -1
        self._position = 0

    def rewind(self) -> None:
        self._base, self._position = -1, 0

    def read(self, until: int) -> Iterator[Stored]:
        """Yield whole batches below `until` that were not read yet, in order."""
        while True:
            if self._base < 0 and not self._next_file(-1):
                return
            try:
                fd = os.open(f"{self.path}/{self._base:020d}{SUFFIX}", os.O_RDONLY)
            except FileNotFoundError:
                # Retention has removed the segment: it was read, or nobody needs it any more.
                if not self._next_file(self._base):
                    return
                continue
            try:
                data = os.pread(fd, 1 << 20, self._position)
            finally:
                os.close(fd)
            at = 0
            while at + HEADER.size <= len(data):
                base_offset, size = struct.unpack_from(">qi", data, at)
                if base_offset >= until or size <= 0 or at + 12 + size > len(data):
                    self._position += at
                    return
                yield parse(data[at : at + 12 + size])
                at += 12 + size
            self._position += at
            if not self._next_file(self._base):
                return

    def _next_file(self, after: int) -> bool:
        bases = sorted(int(name[:20]) for name in os.listdir(self.path) if name.endswith(SUFFIX))  # noqa: PTH208
        base = next((base for base in bases if base > after), None)
        if base is None:
            return False
        self._base, self._position = base, 0
        return True


def batch_positions(data: bytes) -> Iterator[int]:
    """Where whole batches begin in a segment."""
    at = 0
    while at + HEADER.size <= len(data):
        yield at
        at += struct.unpack_from(">i", data, at + 8)[0] + 12


def batches_in(data: bytes) -> list[Stored]:
    """The whole batches of a fetch's answer."""
    found, at = [], 0
    while at + HEADER.size <= len(data):
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        if at + size > len(data):
            break
        found.append(parse(data[at : at + size]))
        at += size
    return found
