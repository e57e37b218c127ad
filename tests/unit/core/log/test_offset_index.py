"""Sparse indexes: the search against a linear one, and what counts as a good entry."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.log import offset_index

ascending = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=40).map(sorted)


def encode_index(entries: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def encode_time_index(entries: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


@given(ascending, st.integers(-1, 2**31))
def test_an_offset_is_found_at_the_last_entry_not_above_it(offsets: list[int], target: int) -> None:
    entries = [(offset, slot * 4096) for slot, offset in enumerate(offsets)]
    expected = max((entry for entry in entries if entry[0] <= target), default=None)
    assert offset_index.find_offset(encode_index(entries), target) == expected


@given(ascending, st.integers(-1, 2**31))
def test_a_timestamp_is_found_at_the_last_entry_not_after_it(timestamps: list[int], target: int) -> None:
    entries = [(timestamp, slot) for slot, timestamp in enumerate(timestamps)]
    expected = max((entry for entry in entries if entry[0] <= target), default=None)
    assert offset_index.find_timestamp(encode_time_index(entries), target) == expected


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_the_search_of_the_newest_entries_first_finds_old_ones_too(count: int) -> None:
    index = encode_index([(10 * slot, 100 * slot) for slot in range(count)])
    time_index = encode_time_index([(10 * slot, slot) for slot in range(count)])
    for slot in [0, 1, count // 2, max(0, count - 1025), max(0, count - 1024), count - 1023, count - 1]:
        for target in (10 * slot, 10 * slot + 9):
            assert offset_index.find_offset(index, target) == (10 * slot, 100 * slot)
            assert offset_index.find_timestamp(time_index, target) == (10 * slot, slot)
    assert offset_index.find_offset(index, -1) is None
    assert offset_index.find_timestamp(time_index, -1) is None


def test_entries_behind_the_first_bad_one_do_not_count() -> None:
    good = [(5, 0), (9, 4100), (30, 9000)]
    index = encode_index(good)
    assert offset_index.count_sane_offsets(index, 30, 9001) == 3
    assert offset_index.count_sane_offsets(index + bytes(80), 30, 9001) == 3  # the zeroed tail of a preallocated file
    assert offset_index.count_sane_offsets(index, 29, 9001) == 2  # behind the last offset
    assert offset_index.count_sane_offsets(index, 30, 9000) == 2  # behind the end of the log
    assert offset_index.count_sane_offsets(encode_index([(5, 0), (5, 10)]), 99, 99) == 1
    assert offset_index.count_sane_offsets(encode_index([(5, 10), (6, 10)]), 99, 99) == 1
    assert offset_index.count_sane_offsets(encode_index([(-1, 0)]), 99, 99) == 0
    assert offset_index.count_sane_offsets(index[:-1], 30, 9001) == 2  # half an entry


def test_time_entries_behind_the_first_bad_one_do_not_count() -> None:
    index = encode_time_index([(100, 0), (105, 0), (200, 7)])
    assert offset_index.count_sane_timestamps(index, 7) == 3
    assert offset_index.count_sane_timestamps(index + bytes(24), 7) == 3
    assert offset_index.count_sane_timestamps(index, 6) == 2
    assert offset_index.count_sane_timestamps(encode_time_index([(100, 0), (100, 1)]), 7) == 1
    assert offset_index.count_sane_timestamps(encode_time_index([(100, 3), (101, 2)]), 7) == 1
    assert offset_index.count_sane_timestamps(encode_time_index([(100, -3)]), 7) == 0


def test_entries_are_listed_as_they_are() -> None:
    assert offset_index.offset_entries(encode_index([(1, 2), (3, 4)])) == [(1, 2), (3, 4)]
    assert offset_index.timestamp_entries(encode_time_index([(2**40, 2), (-1, 4)])) == [(2**40, 2), (-1, 4)]
    assert offset_index.offset_entries(b"") == []
