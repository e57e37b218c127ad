"""Scans of a segment file: where the log ends, and the indexes that Kafka would have written."""

import os
import struct
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.log.offset_index import offset_entries, timestamp_entries
from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.scan.segment_scan import SegmentScan, SegmentWalk, find_batch, scan_segment
from kbroker.errors import StorageFailed
from kbroker.protocol.records import ControlType, encode_batch
from tests.kit.logs.directory import aborted, marker
from tests.kit.wire.batches import control_batch

BASE = 1000


def batch(base_offset: int, timestamps: list[int], size: int = 10, **header: int) -> bytes:
    return encode_batch([(timestamp, None, bytes(size)) for timestamp in timestamps], base_offset=base_offset, **header)


def scanned(log: bytes, **options: Any) -> SegmentScan:
    fd = os.memfd_create("segment")
    try:
        os.write(fd, log)
        return scan_segment(fd, len(log), BASE, **options)
    finally:
        os.close(fd)


def walked(pieces: list[bytes], interval: int = 4096) -> SegmentScan:
    walk = SegmentWalk(BASE, index_interval_bytes=interval)
    for piece in pieces:
        walk.add(piece)
    return walk.scanned()


def facts(scan: SegmentScan) -> dict[str, object]:
    return {name: getattr(scan, name) for name in dir(scan) if not name.startswith("_")}


def test_an_empty_segment_is_whole() -> None:
    scan = scanned(b"")
    assert (scan.valid_size, scan.next_offset, scan.reason, scan.index, scan.time_index) == (0, BASE, None, b"", b"")
    assert (scan.first_timestamp, scan.max_timestamp, scan.epochs) == (-1, -1, [])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.integers(0, 400), st.integers(0, 3)),
        max_size=20,
    ),
    st.integers(0, 1000),
)
def test_the_indexes_are_those_of_the_slow_way(pieces: list[tuple[list[int], int, int]], interval: int) -> None:
    log, offset, newest, newest_offset, since = b"", BASE, -1, BASE, 0
    index: list[tuple[int, int]] = []
    time_index: list[tuple[int, int]] = []
    epochs: list[tuple[int, int]] = []
    epoch = 0
    for timestamps, size, epoch_step in pieces:
        last = offset + len(timestamps) - 1
        epoch += epoch_step
        if not epochs or epochs[-1][0] != epoch:
            epochs.append((epoch, offset))
        if max(timestamps) > newest:
            newest, newest_offset = max(timestamps), last
        if since > interval:
            index.append((last - BASE, len(log)))
            if not time_index or time_index[-1][0] < newest:
                time_index.append((newest, newest_offset - BASE))
            since = 0
        piece = batch(offset, timestamps, size, leader_epoch=epoch)
        log += piece
        since += len(piece)
        offset = last + 1
    scan = scanned(log, index_interval_bytes=interval)
    assert offset_entries(scan.index) == index
    assert timestamp_entries(scan.time_index) == time_index
    assert scan.last_time_entry == (time_index[-1][0] if time_index else -1)
    assert scan.epochs == epochs
    assert (scan.valid_size, scan.next_offset, scan.reason) == (len(log), offset, None)
    assert scan.batches == len(pieces)
    assert (scan.max_timestamp, scan.max_timestamp_offset) == (newest, newest_offset)
    assert scan.first_timestamp == (max(pieces[0][0]) if pieces else -1)
    # And the same of one that is being written.
    cuts = [0, *(position for _, position in index), len(log)]
    assert facts(walked([log[start:end] for start, end in pairwise(cuts)], interval)) == facts(scan)


GOOD = batch(BASE, [1, 2]) + batch(BASE + 2, [3])


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (batch(BASE + 3, [4])[:-1], "cut off"),
        (batch(BASE + 3, [4])[:5], "cut off"),
        (bytes(4096), "impossible length"),  # a file system that grew the file but did not write it
        (b"\xff" * 100, "impossible length"),
        (struct.pack(">qi", BASE + 3, 2**31 - 20) + b"\0\0\0\0\2", "cut off"),  # a length that lies
        (struct.pack(">qi", BASE + 3, 20) + b"\0\0\0\0\2" + bytes(100), "impossible length"),
        (batch(BASE + 3, [4])[:-1] + b"\1", "wrong CRC"),
        (struct.pack(">qi", BASE + 3, 30) + b"\0\0\0\0\x09" + bytes(100), "unknown magic"),
        (struct.pack(">qi", BASE + 3, 30) + b"\0\0\0\0\1" + bytes(100), "wrong CRC"),
        (batch(BASE + 2, [4]), "offset out of order"),  # an offset twice
        (batch(BASE - 5, [4]), "offset out of order"),
        (batch(BASE + 2**31, [4]), "offset out of order"),  # farther than an index can tell
        (batch(2**63 - 1, [4, 5]), "offset out of order"),
    ],
)
def test_the_scan_ends_at_the_first_byte_that_is_no_log(tail: bytes, why: str) -> None:
    scan = scanned(GOOD + tail)
    assert (scan.valid_size, scan.next_offset, scan.reason) == (len(GOOD), BASE + 3, why)
    if why != "wrong CRC":
        # What is added later does not hide it.
        assert facts(walked([GOOD, tail, batch(BASE + 9, [1])])) == facts(walked([GOOD + tail])) == facts(scan)


def test_every_torn_length_is_cut_to_whole_batches() -> None:
    ends = [0, len(batch(BASE, [1, 2])), len(GOOD)]
    for size in range(len(GOOD) + 1):
        scan = scanned(GOOD[:size])
        assert scan.valid_size == max(end for end in ends if end <= size)


def test_every_changed_byte_that_the_crc_covers_or_that_it_stands_on_ends_the_scan_before_it() -> None:
    first = len(batch(BASE, [1, 2]))
    for at in range(len(GOOD)):
        scan = scanned(GOOD[:at] + bytes([GOOD[at] ^ 0x55]) + GOOD[at + 1 :])
        start = 0 if at < first else first
        if at - start < 8 or 12 <= at - start < 16:  # offset and epoch, which brokers stamp
            continue
        assert scan.valid_size == start, at


def test_offsets_may_have_gaps_after_compaction() -> None:
    scan = scanned(batch(BASE + 5, [1]) + batch(BASE + 50, [2, 3]))
    assert (scan.reason, scan.next_offset, scan.batches) == (None, BASE + 52, 2)


def test_a_trusted_scan_does_not_look_at_checksums() -> None:
    damaged = bytearray(GOOD)
    damaged[70] ^= 1
    assert scanned(bytes(damaged), verify=False).valid_size == len(GOOD)
    assert scanned(bytes(damaged)).valid_size == 0


def test_batches_of_idempotent_producers_are_replayed_from_an_offset_on() -> None:
    log, offset, expected = b"", BASE, ProducerTable()
    for sequence in range(8):
        log += batch(offset, [5, sequence], producer_id=7, producer_epoch=2, base_sequence=2 * sequence)
        log += batch(offset + 2, [1])
        if offset >= BASE + 6:
            expected.remember(7, 2, 2 * sequence, 2, offset, max(5, sequence))
        offset += 3
    found = ProducerTable()
    scanned(log, producers=found, producers_from=BASE + 6)
    assert found.export() == expected.export()
    assert len(found) == 1


def test_ends_of_transactions_are_followed() -> None:
    log, offset = b"", BASE
    for producer_id in (1, 2, 3):
        log += batch(offset, [5], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        offset += 1
    for producer_id, kind in ((2, ControlType.ABORT), (3, ControlType.COMMIT), (9, ControlType.ABORT)):
        log += marker(offset, producer_id, kind)
        offset += 1
    producers = ProducerTable()
    scan = scanned(log, producers=producers)
    assert scan.aborted == aborted(2, BASE + 1, BASE + 3, BASE)
    assert (scan.reason, scan.marker_seen, producers.first_undecided_offset) == (None, False, BASE)
    known = [(at.producer_id, at.coordinator_epoch, at.transaction_first_offset) for at in producers.export()]
    assert known == [(1, -1, BASE), (2, 3, -1), (3, 3, -1), (9, 3, -1)]
    assert scanned(log, verify=False, producers=ProducerTable()).aborted == scan.aborted
    # A reader that follows nobody says only that there is something to follow.
    assert (scanned(log).aborted, scanned(log).marker_seen) == (b"", True)
    assert not scanned(GOOD).marker_seen


def test_control_batches_that_end_no_transaction_end_none() -> None:
    """The batches are of other types, have no records, or have records that are not valid."""
    data = batch(BASE, [5], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    keys_and_values = (
        (struct.pack(">hh", 0, 2), struct.pack(">hi", 0, 3)),
        (struct.pack(">hh", 0, -1), struct.pack(">hi", 0, 3)),
        (struct.pack(">hh", -1, 0), struct.pack(">hi", 0, 3)),
        (b"\0\0\0", struct.pack(">hi", 0, 3)),
        (struct.pack(">hh", 0, 0), b""),
        (None, None),
        (b"k" * 9000, b"v"),
    )
    for key, value in keys_and_values:
        producers = ProducerTable()
        control = control_batch(5, key, value, BASE + 1, 0, 1, 0)
        scan = scanned(data + control, producers=producers)
        assert (scan.reason, scan.aborted, producers.first_undecided_offset) == (None, b"", BASE), (key, value)


def test_a_scan_that_goes_on_in_the_middle_knows_what_came_before() -> None:
    scan = scanned(GOOD, position=len(batch(BASE, [1, 2])), next_offset=BASE + 2, max_timestamp=50, latest_epoch=9)
    assert (scan.valid_size, scan.next_offset, scan.max_timestamp, scan.epochs) == (len(GOOD), BASE + 3, 50, [])


def old_message(offset: int, magic: int, value: bytes, attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", 77) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_no_damage(magic: int) -> None:
    log = old_message(BASE, magic, b"a") + old_message(BASE + 4, magic, b"b" * 100) + batch(BASE + 5, [99])
    scan = scanned(log)
    assert (scan.valid_size, scan.next_offset, scan.reason) == (len(log), BASE + 6, None)
    first = len(old_message(BASE, magic, b"a"))
    assert scanned(log[: first + 20]).valid_size == first
    damaged = bytearray(log)
    damaged[first + 60] ^= 1
    assert (scanned(bytes(damaged)).valid_size, scanned(bytes(damaged)).reason) == (first, "wrong CRC")


def test_the_first_batch_that_reaches_a_time_and_an_offset_is_found() -> None:
    fd = os.memfd_create("segment")
    log = batch(BASE, [5]) + batch(BASE + 1, [9, 2], leader_epoch=3) + batch(BASE + 3, [7])
    try:
        os.write(fd, log)
        first = len(batch(BASE, [5]))
        assert find_batch(fd, len(log), timestamp=6) == (first, len(batch(0, [9, 2])), BASE + 1, BASE + 2, 9, 3)
        found = find_batch(fd, len(log), timestamp=6, offset=BASE + 3)
        assert found is not None
        assert found.base_offset == BASE + 3
        assert find_batch(fd, len(log), timestamp=10) is None
        with pytest.raises(StorageFailed):
            find_batch(fd, len(log) - 1, timestamp=10)
    finally:
        os.close(fd)
