"""The small binary files of a partition: .index, .timeindex, .txnindex, .snapshot, each checked by itself.

`partition_check.py` compares an index with its log.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.wire.crc import crc32c_of
from kbroker.inspection.entries import Entry, Found, Problem
from kbroker.storage import file_names
from kbroker.storage import producer_state as snapshots
from kbroker.storage.index_entries import ABORTED_TRANSACTION, INDEX_ENTRY, TIME_INDEX_ENTRY

ABORTED_TRANSACTION_FIELDS = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
SNAPSHOT_FIELDS = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_offset",
    "offset_delta",
    "timestamp",
    "coordinator_epoch",
    "current_transaction_first_offset",
)


def used_size(data: bytes, entry_size: int) -> int:
    """Return how many bytes of an index hold whole entries, without the zeros at the end of a preallocated index."""
    whole = len(data) - len(data) % entry_size
    end = len(data[:whole].rstrip(b"\0"))
    return -(-end // entry_size) * entry_size


def _odd_size(data: bytes, entry_size: int) -> Found:
    if len(data) % entry_size:
        yield Problem(
            len(data) - len(data) % entry_size, f"{len(data) % entry_size} bytes, where an entry has {entry_size}"
        )


def read_offset_index(data: bytes, base_offset: int) -> Found:
    size = INDEX_ENTRY.size
    for at in range(0, used_size(data, size), size):
        relative_offset, position = INDEX_ENTRY.unpack_from(data, at)
        yield Entry("index", at, {"offset": base_offset + relative_offset, "position": position})
    yield from _odd_size(data, size)


def read_time_index(data: bytes, base_offset: int) -> Found:
    size = TIME_INDEX_ENTRY.size
    for at in range(0, used_size(data, size), size):
        timestamp, relative_offset = TIME_INDEX_ENTRY.unpack_from(data, at)
        yield Entry("time_index", at, {"timestamp": timestamp, "offset": base_offset + relative_offset})
    yield from _odd_size(data, size)


def read_transaction_index(data: bytes, base_offset: int) -> Found:
    size = ABORTED_TRANSACTION.size
    before = base_offset - 1
    for at in range(0, len(data) - len(data) % size, size):
        values = ABORTED_TRANSACTION.unpack_from(data, at)
        version, producer_id, first_offset, last_offset, last_stable_offset = values
        if version != 0:
            unread = f"{len(data) - at} bytes from here on are not read"
            yield Problem(at, f"version {version}, which is not known; {unread}")
            return
        yield Entry("aborted_transaction", at, dict(zip(ABORTED_TRANSACTION_FIELDS, values, strict=True)))
        if producer_id < 0 or not 0 <= first_offset < last_offset or last_stable_offset < 0:
            yield Problem(at, "impossible numbers for a transaction that was aborted")
        elif last_offset <= before:
            yield Problem(at, f"last offset {last_offset} does not come after {before}")
        before = last_offset
    yield from _odd_size(data, size)


def read_snapshot(data: bytes, end_offset: int) -> Found:
    """Yield the producers of a snapshot, and its problems.

    Its producers are those before the record at `end_offset`.
    """
    if len(data) < snapshots.HEAD.size:
        yield Problem(0, f"{len(data)} bytes are too few")
        return
    version, crc_stored, count = snapshots.HEAD.unpack_from(data)
    if version != snapshots.VERSION:
        yield Problem(0, f"version {version}, which is not known")
        return
    if crc32c_of(data[snapshots.CRC_FROM :]) != crc_stored:
        yield Problem(2, "CRC does not match")
    end = snapshots.HEAD.size + max(count, 0) * snapshots.PRODUCER.size
    if len(data) < end:
        yield Problem(6, f"{count} producers do not fit {len(data)} bytes")
        return
    known: set[int] = set()
    for at in range(snapshots.HEAD.size, end, snapshots.PRODUCER.size):
        fields = dict(zip(SNAPSHOT_FIELDS, snapshots.PRODUCER.unpack_from(data, at), strict=True))
        yield Entry("producer", at, fields)
        producer_id, last_offset = fields["producer_id"], fields["last_offset"]
        if producer_id in known:
            yield Problem(at, f"producer {producer_id} for the second time")
        known.add(producer_id)
        if (
            producer_id < 0
            or fields["producer_epoch"] < -1
            or fields["last_sequence"] < -1
            or fields["offset_delta"] < 0
            or last_offset < -1
        ):
            yield Problem(at, f"impossible numbers for producer {producer_id}")
        if max(last_offset, fields["current_transaction_first_offset"]) >= end_offset:
            yield Problem(at, f"producer {producer_id} has written offset {last_offset}, but this is of {end_offset}")
    try:
        snapshots.older_batches(data[end:])
    except ValueError as error:
        yield Problem(end, str(error))


BINARY_FILES: dict[str, Callable[[bytes, int], Found]] = {
    file_names.INDEX: read_offset_index,
    file_names.TIME_INDEX: read_time_index,
    file_names.TRANSACTION_INDEX: read_transaction_index,
    file_names.SNAPSHOT: read_snapshot,
}
