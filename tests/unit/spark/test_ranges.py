"""Which task reads what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.ranges import OffsetRange, divided

sizes = st.lists(st.integers(0, 5_000), max_size=8)


@given(sizes=sizes, least=st.none() | st.integers(1, 40), most=st.none() | st.integers(1, 600))
def test_every_offset_is_read_by_one_task(sizes: list[int], least: int | None, most: int | None) -> None:
    ranges = [OffsetRange("t", n, 7, 7 + size) for n, size in enumerate(sizes)]
    tasks = divided(ranges, least_count=least, most_records=most)
    assert sorted((each.partition, at) for each in tasks for at in range(each.start, each.until)) == [
        (each.partition, at) for each in ranges for at in range(each.start, each.until)
    ]
    assert all(each.size > 0 for each in tasks)
    assert most is None or all(each.size <= most for each in tasks)


def test_a_large_partition_is_shared_and_small_ones_are_left_whole() -> None:
    ranges = [OffsetRange("t", 0, 0, 1_000), OffsetRange("t", 1, 0, 10), OffsetRange("t", 2, 5, 5)]
    tasks = divided(ranges, least_count=5)
    assert sorted(tasks) == [*(OffsetRange("t", 0, at, at + 250) for at in range(0, 1_000, 250)), ranges[1]]
