"""Replicas are spread over brokers and racks whatever the numbers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.rules.placement import place_replicas

NUMBERS = st.integers(0, 1000)


@given(st.data(), st.integers(1, 8), st.integers(1, 40), NUMBERS, NUMBERS, NUMBERS)
def test_replicas_are_distinct_and_leaders_go_round(
    data: st.DataObject, broker_count: int, count: int, first_index: int, shift: int, first_partition_id: int
) -> None:
    factor = data.draw(st.integers(1, broker_count))
    racks: dict[int, str | None] = dict.fromkeys(range(10, 10 + broker_count))
    placed = place_replicas(
        racks, count, factor, first_index=first_index, shift=shift, first_partition_id=first_partition_id
    )
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[each] for each in racks) <= 1


@given(st.data(), st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.integers(1, 40), NUMBERS, NUMBERS)
def test_replicas_are_in_as_many_racks_as_there_can_be(
    data: st.DataObject, rack_names: list[str], count: int, first_index: int, shift: int
) -> None:
    racks: dict[int, str | None] = dict(enumerate(rack_names))
    factor = data.draw(st.integers(1, len(racks)))
    for replicas in place_replicas(racks, count, factor, first_index=first_index, shift=shift):
        assert len(set(replicas)) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(rack_names)))


def test_followers_of_one_broker_are_not_all_on_its_neighbour() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(4))
    placed = place_replicas(racks, 12, 2, first_index=0, shift=0)
    assert {replicas[1] for replicas in placed if replicas[0] == 0} == {1, 2, 3}


def test_a_rack_that_one_broker_does_not_name_counts_for_none() -> None:
    racks = {0: "a", 1: "a", 2: None}
    assert set(place_replicas(racks, 3, 2, first_index=0, shift=0)) == {(0, 1), (1, 2), (2, 0)}


def test_added_partitions_go_on_where_the_others_ended() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(3))
    whole = place_replicas(racks, 10, 2, first_index=5, shift=7)
    assert place_replicas(racks, 4, 2, first_index=5, shift=7, first_partition_id=6) == whole[6:]
