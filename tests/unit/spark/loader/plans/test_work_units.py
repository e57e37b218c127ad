"""How what is to be read becomes tasks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.loader.plans.work_units import SizedRange, divided, limited, target_size
from kbroker.spark.reading.ranges import OffsetRange

RANGES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 5000), st.integers(1, 3000)),
    max_size=12,
).map(
    lambda found: [
        SizedRange(OffsetRange(topic, partition, start, start + count), count * each)
        for (topic, partition), (start, count, each) in found.items()
    ]
)


@given(RANGES, st.integers(100 << 10, 10 << 20))
def test_every_offset_is_in_one_unit(ranges: list[SizedRange], target: int) -> None:
    units = divided(ranges, target)
    assert [unit.number for unit in units] == list(range(len(units)))
    for each in ranges:
        whole = each.range
        parts = sorted(
            (part.start, part.until)
            for unit in units
            for part in unit.ranges
            if (part.topic, part.partition) == (whole.topic, whole.partition)
        )
        assert [start for start, _ in parts] == [whole.start, *(until for _, until in parts)][: len(parts)]
        assert all(start < until for start, until in parts)
        assert not parts or parts[-1][1] == whole.until
        assert bool(parts) == (whole.size > 0)


@given(RANGES, st.integers(100 << 10, 10 << 20))
def test_units_are_not_above_the_target_and_not_many_are_half_empty(ranges: list[SizedRange], target: int) -> None:
    units = divided(ranges, target)
    assert all(unit.size <= target for unit in units if len(unit.ranges) > 1)
    topics = len({each.range.topic for each in ranges})
    assert (
        sum(1 for unit in units if sum(1 for _ in unit.ranges) < target // (64 << 10) and unit.size * 2 < target)
        <= 2 * topics + 1
    )


def test_a_large_partition_is_split_and_small_ones_share_a_unit() -> None:
    large = SizedRange(OffsetRange("a", 0, 0, 1000), 1000 << 20)
    small = [SizedRange(OffsetRange("a", n, 0, 10), 1 << 20) for n in range(1, 11)]
    units = divided([large, *small], 100 << 20)
    assert Counter(len(unit.ranges) for unit in units) == {1: 10, 10: 1}


@given(RANGES, st.integers(1, 10 << 20))
def test_a_limit_takes_something_of_each(ranges: list[SizedRange], most: int) -> None:
    there = [each for each in ranges if each.range.size > 0]
    found = limited(there, most)
    assert [(each.range.topic, each.range.partition, each.range.start) for each in found] == [
        (each.range.topic, each.range.partition, each.range.start) for each in there
    ]
    assert all(0 < part.range.size <= each.range.size for part, each in zip(found, there, strict=True))
    more_than_one = [part for part in found if part.range.size > 1]
    assert sum(each.size for each in more_than_one) <= most


def test_tasks_are_many_enough_for_the_slots() -> None:
    assert target_size(1 << 30, 4, 256 << 20) == 128 << 20
    assert target_size(1 << 40, 4, 256 << 20) == 256 << 20
    assert target_size(100, 4, 256 << 20) == 16 << 20
