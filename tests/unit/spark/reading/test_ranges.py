"""Which task reads what."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.reading.ranges import OffsetRange, divided

SIZES = st.one_of(st.integers(-5, 40), st.integers(0, 1 << 40))


@st.composite
def some_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    found = []
    for number, size in enumerate(draw(st.lists(SIZES, max_size=8))):
        start = draw(st.integers(0, 1 << 40))
        found.append(OffsetRange(f"t{number % 3}", number // 3, start, start + size))
    return found


@given(some_ranges(), st.none() | st.integers(1, 60), st.none() | st.integers(1, 1 << 40))
def test_every_offset_is_read_once_and_in_order(
    ranges: list[OffsetRange], least_count: int | None, most_records: int | None
) -> None:
    if most_records is not None:
        most_records = max(most_records, max((each.size for each in ranges), default=0) // 50)  # not millions of tasks
    tasks = divided(ranges, least_count=least_count, most_records=most_records)
    assert all(task.size > 0 for task in tasks)
    for whole in ranges:
        parts = [task for task in tasks if task.place == whole.place]
        if whole.size <= 0:
            assert not parts
            continue
        assert parts[0].start == whole.start
        assert parts[-1].until == whole.until
        assert all(before.until == after.start for before, after in itertools.pairwise(parts))


@given(some_ranges(), st.integers(1, 60))
def test_parts_of_a_partition_differ_by_one_at_most(ranges: list[OffsetRange], least_count: int) -> None:
    tasks = divided(ranges, least_count=least_count)
    for whole in ranges:
        sizes = [task.size for task in tasks if task.place == whole.place]
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(some_ranges(), st.integers(1, 1000))
def test_no_task_has_more_records_than_it_may(ranges: list[OffsetRange], most_records: int) -> None:
    ranges = [each._replace(until=each.start + each.size % 5000) for each in ranges]
    tasks = divided(ranges, most_records=most_records)
    assert all(task.size <= most_records for task in tasks)
    assert len(tasks) == sum(math.ceil(each.size / most_records) for each in ranges if each.size > 0)


@given(some_ranges(), st.integers(1, 60))
def test_enough_records_make_about_as_many_tasks_as_are_wanted(ranges: list[OffsetRange], least_count: int) -> None:
    ranges = [each._replace(until=each.start + 1000 + abs(each.size)) for each in ranges]
    tasks = divided(ranges, least_count=least_count)
    if ranges:
        assert len(tasks) >= len(ranges)
        assert abs(len(tasks) - max(least_count, len(ranges))) <= len(ranges)


def test_small_partitions_stay_whole_and_the_large_one_is_shared() -> None:
    small, large = OffsetRange("t", 0, 0, 5), OffsetRange("t", 1, 10, 10 + 300)
    assert divided([small, large], least_count=4) == [
        small,
        OffsetRange("t", 1, 10, 110),
        OffsetRange("t", 1, 110, 210),
        OffsetRange("t", 1, 210, 310),
    ]


def test_few_tasks_are_not_made_of_what_is_enough() -> None:
    ranges = [OffsetRange("t", number, 0, 100) for number in range(4)]
    assert divided(ranges, least_count=3) == ranges
