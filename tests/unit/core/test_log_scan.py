"""Recovery scans of a segment: where the log ends, and the indexes that Kafka would have written."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.log_scan import SegmentScan
from kbroker._core.offset_index import offset_entries, timestamp_entries
from kbroker._core.record_batch import FINDINGS
from kbroker.protocol.records import encode_batch

BASE = 1000


def batch(base_offset: int, timestamps: list[int], size: int = 10, **header: int) -> bytes:
    return encode_batch([(timestamp, None, bytes(size)) for timestamp in timestamps], base_offset=base_offset, **header)


def scanned(log: bytes, **options: int) -> SegmentScan:
    scan = SegmentScan(BASE, **options)
    while not scan.done:
        scan.step(log)
    return scan


def finding(scan: SegmentScan) -> str:
    return FINDINGS[scan.finding][0]


def test_an_empty_segment_is_whole() -> None:
    scan = scanned(b"")
    assert (scan.valid_size, scan.next_offset, scan.why, scan.index, scan.time_index) == (0, BASE, None, b"", b"")
    assert (scan.first_timestamp, scan.max_timestamp, scan.epochs) == (-1, -1, [])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.integers(0, 400), st.integers(0, 3)),
        max_size=20,
    ),
    st.integers(0, 1000),
    st.integers(1, 2000),
)
def test_the_indexes_are_those_of_the_slow_way(
    pieces: list[tuple[list[int], int, int]], interval: int, step: int
) -> None:
    log, offset, newest, newest_offset, since = b"", BASE, -1, -1, 0
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
    if newest >= 0 and (not time_index or time_index[-1][0] < newest):
        time_index.append((newest, newest_offset - BASE))
    scan = SegmentScan(BASE, interval)
    while not scan.done:
        assert scan.step(log, step) == []
    assert offset_entries(scan.index) == index
    assert timestamp_entries(scan.time_index) == time_index
    assert scan.epochs == epochs
    assert (scan.valid_size, scan.next_offset, scan.why) == (len(log), offset, None)
    assert (scan.batch_count, scan.record_count) == (len(pieces), offset - BASE)
    assert (scan.max_timestamp, scan.max_timestamp_offset) == (newest, newest_offset)
    assert scan.first_timestamp == (max(pieces[0][0]) if pieces else -1)
    assert scan.bytes_since_index == since


GOOD = batch(BASE, [1, 2]) + batch(BASE + 2, [3])


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (batch(BASE + 3, [4])[:-1], "BATCH_TOO_SHORT"),
        (batch(BASE + 3, [4])[:5], "BATCH_TOO_SHORT"),
        (bytes(4096), "BATCH_BAD_LENGTH"),  # a file system that grew the file but did not write it
        (b"\xff" * 100, "BATCH_BAD_LENGTH"),
        (struct.pack(">qi", BASE + 3, 2**31 - 20) + b"\0\0\0\0\2", "BATCH_TOO_SHORT"),  # a length that lies
        (struct.pack(">qi", BASE + 3, 20) + b"\0\0\0\0\2" + bytes(100), "BATCH_BAD_LENGTH"),
        (batch(BASE + 3, [4])[:-1] + b"\1", "BATCH_BAD_CRC"),
        (struct.pack(">qi", BASE + 3, 30) + b"\0\0\0\0\x09" + bytes(100), "BATCH_BAD_MAGIC"),
        (struct.pack(">qi", BASE + 3, 30) + b"\0\0\0\0\1" + bytes(100), "BATCH_OLD_MAGIC"),
        (batch(BASE + 2, [4]), "BATCH_BAD_OFFSET"),  # an offset twice
        (batch(BASE - 5, [4]), "BATCH_BAD_OFFSET"),
        (batch(BASE + 2**31, [4]), "BATCH_BAD_OFFSET"),  # farther than an index can tell
        (batch(2**63 - 1, [4, 5]), "BATCH_BAD_OFFSET"),
    ],
)
def test_the_scan_ends_at_the_first_byte_that_is_no_log(tail: bytes, why: str) -> None:
    scan = scanned(GOOD + tail)
    assert (scan.valid_size, scan.next_offset, finding(scan)) == (len(GOOD), BASE + 3, why)
    assert scan.why
    assert scan.done


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
    assert (scan.why, scan.next_offset, scan.record_count) == (None, BASE + 52, 3)


def test_headers_of_idempotent_batches_come_out_once_with_their_positions() -> None:
    one = batch(BASE, [1], producer_id=7, producer_epoch=2, base_sequence=0)
    two = batch(BASE + 1, [1])
    three = batch(BASE + 2, [1, 2], producer_id=7, producer_epoch=2, base_sequence=1)
    scan = SegmentScan(BASE)
    found = []
    while not scan.done:
        found += scan.step(one + two + three, 1)
    assert [(info.position, info.base_offset, info.producer_id, info.base_sequence) for info in found] == [
        (0, BASE, 7, 0),
        (len(one) + len(two), BASE + 2, 7, 1),
    ]
    assert scan.step(one + two + three) == []


def test_a_trusted_scan_does_not_look_at_checksums() -> None:
    damaged = bytearray(GOOD)
    damaged[70] ^= 1
    assert scanned(bytes(damaged), verify=False).valid_size == len(GOOD)
    assert scanned(bytes(damaged)).valid_size == 0
