"""How much a micro-batch takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.spark.options.offsets import Offsets
from kbroker.spark.reading.limits import Delay, limited, waiting

PLACES = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 5))
OFFSETS = st.dictionaries(PLACES, st.integers(0, 1000) | st.integers(0, (1 << 63) - 1), max_size=8)


@given(OFFSETS, OFFSETS, st.integers(1, 2000))
def test_every_partition_goes_on_and_none_further_than_its_end(start: Offsets, latest: Offsets, most: int) -> None:
    found = limited(start, latest, most)
    assert found.keys() == latest.keys()
    for place, end in found.items():
        assert end <= latest[place]
        if start.get(place, end) < latest[place]:
            assert end > start[place]


@given(OFFSETS, OFFSETS, st.integers(1, 2000))
def test_the_batch_is_larger_by_one_for_each_partition_at_most(start: Offsets, latest: Offsets, most: int) -> None:
    found = limited(start, latest, most)
    sizes = waiting(start, latest)
    assert sum(found[place] - start[place] for place in sizes) <= most + len(sizes)


def test_shares_are_as_large_as_what_waits() -> None:
    a, b, c = (TopicPartition("t", number) for number in range(3))
    assert limited({a: 0, b: 100, c: 7}, {a: 900, b: 200, c: 7}, 100) == {a: 90, b: 110, c: 7}


def test_a_share_below_one_is_one() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert limited({a: 0, b: 0}, {a: 1_000_000, b: 1}, 10) == {a: 9, b: 1}


def test_what_has_no_start_and_what_has_shrunk_ends_where_it_ends() -> None:
    a, b, c = (TopicPartition("t", number) for number in range(3))
    assert limited({a: 0, b: 50}, {a: 100, b: 20, c: 30}, 10) == {a: 10, b: 20, c: 30}


def test_a_batch_waits_for_enough_records_but_not_for_ever() -> None:
    delay = Delay(100, 60)
    assert not delay.holds(1, now_s=1000)  # the first
    assert delay.holds(99, now_s=1001)
    assert delay.holds(99, now_s=1059)
    assert not delay.holds(99, now_s=1060)
    assert delay.holds(1, now_s=1061)
    assert not delay.holds(100, now_s=1062)
    assert delay.holds(1, now_s=1121)
