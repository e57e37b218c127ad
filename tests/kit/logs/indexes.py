"""Comparing index files with their log, entry by entry: slow and obvious."""

from __future__ import annotations

import struct
from pathlib import Path

from kbroker.storage import file_names
from kbroker.storage.index_entries import INDEX_ENTRY, TIME_INDEX_ENTRY
from tests.kit.models.stored_batches import stored_batches


def wrong_indexes(directory: Path) -> list[str]:
    """Return what is wrong with the indexes of the segments of a partition."""
    found = []
    for log in sorted(directory.glob("*" + file_names.LOG)):
        base = int(log.name.split(".")[0])
        batches = list(stored_batches(log.read_bytes()))
        offsets = {(batch.last_offset - base, batch.position) for batch in batches}
        found += _wrong_entries(log.with_suffix(file_names.INDEX), INDEX_ENTRY, offsets)
        newest, times = -1, set()
        for batch in batches:
            # The batch has this timestamp, and none before it has one as large.
            if batch.max_timestamp > newest:
                newest = batch.max_timestamp
                # An append names the record; recovery, as Kafka's, the last one of the batch.
                times |= {(newest, offset - base) for offset in range(batch.base_offset, batch.last_offset + 1)}
        found += _wrong_entries(log.with_suffix(file_names.TIME_INDEX), TIME_INDEX_ENTRY, times)
    return found


def _wrong_entries(index: Path, entry: struct.Struct, right: set[tuple[int, int]]) -> list[str]:
    last = -1
    found = []
    data = index.read_bytes()
    if len(data) % entry.size:
        return [f"{index}: {len(data)} bytes"]
    for number, each in enumerate(entry.iter_unpack(data)):
        if each not in right or each[0] <= last:
            found.append(f"{index}: entry {number} says {each}")
        last = each[0]
    return found
