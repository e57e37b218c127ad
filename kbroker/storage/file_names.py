"""The names of a log's files: their suffixes are Apache Kafka's. On disk. Do not rename.

A segment is `<base offset, 20 digits>.log` with `.index`, `.timeindex` and, if transactions were aborted in it,
`.txnindex`. A file that is about to be removed ends in `.deleted`; `.cleaned` and `.swap` are steps of a compaction.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

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

_DIGITS = re.compile(r"[0-9]{20}")
_SUFFIXES = re.compile(r"(\.[a-z]+)((?:\.[a-z]+)?)")


class FileName(NamedTuple):
    """The parts of the name of a segment's file."""

    base_offset: int
    suffix: str
    """Which of the segment's files it is, one of `SUFFIXES` if the file is a log's."""
    step: str
    """`DELETED`, `CLEANED`, `SWAP` or `TEMPORARY` at the name's end; empty for a file in use."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def path_of(directory: str, base_offset: int, suffix: str) -> str:
    """Return the path of a segment's file in a log's directory."""
    return f"{directory}/{base_offset:020d}{suffix}"


def parse_file_name(name: str) -> FileName | None:
    """Parse the name of a segment's file; None if it does not have that form."""
    suffixes = _parse_suffixes(name[20:])
    return FileName(int(name[:20]), *suffixes) if suffixes and _DIGITS.fullmatch(name, 0, 20) else None


@lru_cache(maxsize=64)
def _parse_suffixes(tail: str) -> tuple[str, str] | None:
    match = _SUFFIXES.fullmatch(tail)
    return (match[1], match[2]) if match else None


def is_of_a_log(name: str) -> bool:
    """Return whether a partition's directory may hold a file of this name, finished, temporary or being removed."""
    at = parse_file_name(name)
    if at is not None:
        return at.suffix in SUFFIXES and at.step in STEPS
    return name.removesuffix(TEMPORARY) in BESIDE_SEGMENTS


def is_temporary(name: str) -> bool:
    """Return whether this is the name of a file of a log that was not finished (`.tmp`)."""
    return name.endswith(TEMPORARY) and is_of_a_log(name)
