"""Index files against their log, entry by entry: slow and obvious."""

from __future__ import annotations

from pathlib import Path

from kbroker.protocol.records import read_batches
from kbroker.storage import segment as names


def wrong_indexes(directory: Path) -> list[str]:
    """What is wrong with the indexes of every segment of a partition."""
    found = []
    for log in sorted(directory.glob("*" + names.LOG)):
        base = int(log.name.split(".")[0])
        batches = [batch.info for batch in read_batches(log.read_bytes())]
        found += _wrong_offsets(log.with_suffix(names.INDEX), base, {at.position: at.last_offset for at in batches})
        newest, newest_at = -1, {}
        for batch in batches:
            if batch.max_timestamp > newest:
                newest = batch.max_timestamp
                # An append names the record; recovery, as Kafka's, the last one of the batch.
                newest_at |= dict.fromkeys(range(batch.base_offset, batch.last_offset + 1), newest)
        found += _wrong_times(log.with_suffix(names.TIME_INDEX), base, newest_at)
    return found


def _wrong_offsets(index: Path, base: int, batches: dict[int, int]) -> list[str]:
    last = -1
    found = []
    data = index.read_bytes()
    if len(data) % names.INDEX_ENTRY.size:
        return [f"{index}: {len(data)} bytes"]
    for number, (relative, position) in enumerate(names.INDEX_ENTRY.iter_unpack(data)):
        if batches.get(position) != base + relative or position <= last:
            found.append(f"{index}: entry {number} says offset {base + relative} is at byte {position}")
        last = position
    return found


def _wrong_times(index: Path, base: int, newest_at: dict[int, int]) -> list[str]:
    last = -1
    found = []
    data = index.read_bytes()
    if len(data) % names.TIME_INDEX_ENTRY.size:
        return [f"{index}: {len(data)} bytes"]
    for number, (timestamp, relative) in enumerate(names.TIME_INDEX_ENTRY.iter_unpack(data)):
        # The batch has this timestamp, and none before it has one as large.
        if newest_at.get(base + relative) != timestamp or timestamp <= last:
            found.append(f"{index}: entry {number} says {timestamp} is at offset {base + relative}")
        last = timestamp
    return found
