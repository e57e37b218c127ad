"""Snapshots of a partition's producers, open transactions included: `<offset, 20 digits>.snapshot`, in Kafka's format.

    snapshot = version:i16 crc:u32 count:i32 producer* (older aborted?)?     crc: CRC-32C of everything behind it
    producer = producer_id:i64 epoch:i16 last_sequence:i32 last_offset:i64 offset_delta:i32 timestamp:i64
               coordinator_epoch:i32 transaction_first_offset:i64
    older    = count:i32 batch*
    batch    = producer_id:i64 first_sequence:i32 last_sequence:i32 last_offset:i64 offset_delta:i32 timestamp:i64
    aborted  = base_offset:i64 size:i32 crc:u32                   of a .txnindex: the check sum that it does not have

Kafka's snapshot holds a producer's last batch only. If a producer has several batches in flight at a broker's stop and
sends them again, Kafka stores the earlier ones twice. Therefore kbroker stores the other batches that it remembers as
`older`. `aborted` is the check sum of the .txnindex of the segment that ends at the snapshot's offset. Kafka ignores
both.

A snapshot holds the state before the record at its offset. It is derived from the log, so it is not synced: a damaged
snapshot is dropped, and the log is read from the snapshot before it. On disk. Do not change.
"""

from __future__ import annotations

import logging
import struct
from operator import itemgetter
from typing import NamedTuple

from kbroker._core.log.producer_table import ProducerTable, RememberedBatch
from kbroker._core.wire.crc import crc32c_of
from kbroker.fs import FileSystem, read_file, replace_file
from kbroker.model import number_key
from kbroker.storage import file_names

logger = logging.getLogger("kbroker.storage")

HEAD = struct.Struct(">hIi")
PRODUCER = struct.Struct(">qhiqiqiq")
COUNT = struct.Struct(">i")
BATCH = struct.Struct(">qiiqiq")
ABORTED = struct.Struct(">qiI")
VERSION = 1
CRC_FROM = 6
NO_BATCH = RememberedBatch(-1, -1, -1, 0, -1)


class AbortedIndex(NamedTuple):
    """Size and check sum of a .txnindex, as it was when the snapshot at its segment's end was made."""

    base_offset: int
    size: int
    crc: int
    """CRC-32C."""


def encode_snapshot(producers: ProducerTable, aborted: AbortedIndex | None = None) -> bytes:
    entries = producers.export()
    body = bytearray(HEAD.pack(VERSION, 0, len(entries)))
    for producer in entries:
        last = producer.batches[-1] if producer.batches else NO_BATCH
        body += PRODUCER.pack(
            producer.producer_id,
            producer.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_first_offset,
        )
    older = [(producer.producer_id, *batch) for producer in entries for batch in producer.batches[:-1]]
    if older or aborted is not None:
        body += COUNT.pack(len(older))
        for row in older:
            body += BATCH.pack(*row)
    if aborted is not None:
        body += ABORTED.pack(*aborted)
    struct.pack_into(">I", body, 2, crc32c_of(body[CRC_FROM:]))
    return bytes(body)


def decode_snapshot(data: bytes) -> ProducerTable:
    """Return the producers of a snapshot. Raises ValueError if it is damaged."""
    if len(data) < HEAD.size:
        raise ValueError(f"a snapshot of {len(data)} bytes")
    version, crc, count = HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"a snapshot of version {version}")
    if crc != crc32c_of(data[CRC_FROM:]):
        raise ValueError("a snapshot with a wrong CRC")
    end = HEAD.size + count * PRODUCER.size
    if len(data) < end:
        raise ValueError(f"a snapshot of {count} producers in {len(data)} bytes")
    older = older_batches(data[end:])
    producers = ProducerTable()
    # Oldest transaction first: the table takes them in that order without moving others.
    for (
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp,
        coordinator_epoch,
        first_offset,
    ) in sorted(PRODUCER.iter_unpack(data[HEAD.size : end]), key=itemgetter(-1)):
        batches = older.get(number_key(producer_id), [])
        if last_offset >= 0:
            first_sequence = (last_sequence - offset_delta) & 0x7FFFFFFF
            batches.append((first_sequence, last_sequence, last_offset, offset_delta, timestamp))
        producers.restore(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)
    return producers


def older_batches(data: bytes) -> dict[bytes, list[tuple[int, int, int, int, int]]]:
    """Return each producer's older batches, oldest first, by `number_key` of its id, as `ProducerTable.put` takes them.

    `data` is what follows the producers in a snapshot. Raises ValueError if it is damaged.
    """
    found: dict[bytes, list[tuple[int, int, int, int, int]]] = {}
    for producer_id, *batch in BATCH.iter_unpack(data[COUNT.size : _end_of_older(data)]):
        found.setdefault(number_key(producer_id), []).append(tuple(batch))
    return found


def _end_of_older(data: bytes) -> int:
    if not data:
        return 0
    end = COUNT.size + COUNT.unpack_from(data)[0] * BATCH.size if len(data) >= COUNT.size else -1
    if end < COUNT.size or len(data) not in (end, end + ABORTED.size):
        raise ValueError(f"a snapshot with {len(data)} bytes behind its producers")
    return end


def vouched_index(data: bytes) -> AbortedIndex | None:
    """Return what a snapshot says about the .txnindex of the segment before it; None if it says nothing.

    Raises ValueError if the snapshot is damaged.
    """
    decode_snapshot(data)
    tail = data[HEAD.size + HEAD.unpack_from(data)[2] * PRODUCER.size :]
    aborted = tail[_end_of_older(tail) :]
    return AbortedIndex(*ABORTED.unpack(aborted)) if aborted else None


def store_snapshot(
    fs: FileSystem, directory: str, offset: int, producers: ProducerTable, aborted: AbortedIndex | None = None
) -> None:
    path = file_names.path_of(directory, offset, file_names.SNAPSHOT)
    replace_file(fs, path, encode_snapshot(producers, aborted), durable=False)


def load_snapshot(fs: FileSystem, directory: str, offset: int) -> ProducerTable | None:
    """Load a snapshot; None if it is damaged, which is logged: its content can be read from the partition's log.

    Raises OSError, FileNotFoundError if there is none.
    """
    path = file_names.path_of(directory, offset, file_names.SNAPSHOT)
    try:
        return decode_snapshot(read_file(fs, path))
    except ValueError as error:
        logger.warning("%s: %s; the producers are read from the log", path, error)
        return None
