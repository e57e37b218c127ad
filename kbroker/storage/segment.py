"""Files of a log: names and suffixes as Apache Kafka's. On disk. Do not rename.

A segment is `<base offset, 20 digits>.log` with `.index`, `.timeindex` and, if transactions were aborted in it,
`.txnindex`. A file that is about to be removed ends in `.deleted`; `.cleaned` and `.swap` are steps of a compaction.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from functools import lru_cache

from kbroker.storage import checkpoints

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
INDEX_SUFFIXES = (INDEX, TIME_INDEX, TRANSACTION_INDEX)
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"
SUFFIXES = (LOG, *INDEX_SUFFIXES, SNAPSHOT)
STEPS = ("", DELETED, CLEANED, SWAP, TEMPORARY)
BESIDE_SEGMENTS = (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA)
DIRECTORY_DELETE = "-delete"
DIRECTORY_STRAY = "-stray"
DIRECTORY_FUTURE = "-future"

INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
ABORTED_TRANSACTION = struct.Struct(">hqqqq")
"""An entry of a .txnindex: version 0, producer id, first offset, last offset, last stable offset."""

_DIGITS = re.compile(r"[0-9]{20}")
_SUFFIXES = re.compile(r"(\.[a-z]+)((?:\.[a-z]+)?)")


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str, str] | None:
    """Parse a file name into `(base offset, suffix, state suffix or "")`; None if it does not have that form."""
    suffixes = _parse_suffixes(name[20:])
    return (int(name[:20]), *suffixes) if suffixes and _DIGITS.fullmatch(name, 0, 20) else None


@lru_cache(maxsize=64)
def _parse_suffixes(tail: str) -> tuple[str, str] | None:
    match = _SUFFIXES.fullmatch(tail)
    return (match[1], match[2]) if match else None


def is_of_a_log(name: str) -> bool:
    """Return whether a partition's directory may hold a file of this name, finished, temporary or being removed."""
    at = parse_file_name(name)
    if at is not None:
        return at[1] in SUFFIXES and at[2] in STEPS
    return name.removesuffix(TEMPORARY) in BESIDE_SEGMENTS


def is_temporary(name: str) -> bool:
    """Return whether this is the name of a file of a log that was not finished (`.tmp`)."""
    return name.endswith(TEMPORARY) and is_of_a_log(name)


def aborted_transactions(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Return the entries of a .txnindex: (producer id, first offset, last offset, last stable offset).

    A torn entry at the end is ignored.
    """
    whole = len(data) - len(data) % ABORTED_TRANSACTION.size
    return (entry[1:] for entry in ABORTED_TRANSACTION.iter_unpack(data[:whole]))


def changed_ms(path: str) -> int:
    """Return when a file was changed last, in ms. Raises FileNotFoundError."""
    return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116


def largest_timestamp(log_path: str, max_timestamp: int) -> int:
    """Return a segment's largest timestamp as Kafka defines it.

    It is `max_timestamp`, that of its records; if they have none (-1), the time its .log was changed last.
    """
    return max_timestamp if max_timestamp >= 0 else changed_ms(log_path)


class Segment:
    """What the compiled core has to know about a segment; see `segment_t` in `_core/log/partition.pxd`."""

    def __init__(
        self,
        base_offset: int,
        size: int,
        *,
        max_timestamp: int = -1,
        max_timestamp_offset: int = -1,
        first_timestamp: int = -1,
        index_count: int = 0,
        time_index_count: int = 0,
        last_time_entry: int = -1,
        bytes_since_index: int = 0,
        entry_synced: bool = True,
    ):
        self.base_offset = base_offset
        self.size = size
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self.first_timestamp = first_timestamp
        self.index_count = index_count
        self.time_index_count = time_index_count
        self.last_time_entry = last_time_entry
        self.bytes_since_index = bytes_since_index
        self.aborted_count = 0
        """The number of entries of its .txnindex."""
        self.entry_synced = entry_synced
        """Whether the names of its files are known to survive a power cut."""
