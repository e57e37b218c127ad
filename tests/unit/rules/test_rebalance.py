"""Plans of replicas when brokers come or go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.model import TopicPartition
from kbroker.rules.placement import place_replicas
from kbroker.rules.rebalance import CannotPlan, Move, Placed, plan_moves

NO_RACKS = dict.fromkeys(range(1, 4))


def placed(*replicas: tuple[int, ...], size: int = 100) -> list[Placed]:
    return [Placed(TopicPartition("t", number), each, size) for number, each in enumerate(replicas)]


def after(partitions: list[Placed], moves: list[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    return {each.partition: each.replicas for each in partitions} | {
        move.placed.partition: move.replicas for move in moves
    }


def test_what_is_even_stays() -> None:
    even = placed((1, 2, 3), (2, 3, 1), (3, 1, 2))
    assert plan_moves(even, NO_RACKS) == []


def test_a_broker_that_goes_is_left_and_nothing_else_moves() -> None:
    partitions = placed((1, 2), (2, 3), (3, 1), (3, 4), (4, 1), (4, 2))
    moves = plan_moves(partitions, dict.fromkeys((1, 2, 3)))
    assert {move.placed.partition.partition_id for move in moves if move.added} == {3, 4, 5}
    assert all(move.removed == (4,) for move in moves if move.added)


def test_a_broker_that_comes_gets_its_share() -> None:
    partitions = placed(*[(1, 2), (2, 3), (3, 1)] * 4)
    replicas = after(partitions, plan_moves(partitions, dict.fromkeys((1, 2, 3, 4)))).values()
    assert Counter(each for some in replicas for each in some) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert max(Counter(some[0] for some in replicas).values()) == 3


def test_sizes_count_before_numbers() -> None:
    partitions = [Placed(TopicPartition("t", 0), (1,), 900), *placed((1,), (1,), (1,), size=300)[1:]]
    partitions += [Placed(TopicPartition("u", 0), (1,), 300)]
    replicas = after(partitions, plan_moves(partitions, dict.fromkeys((1, 2))))
    sizes: Counter[int] = Counter()
    for each in partitions:
        sizes[replicas[each.partition][0]] += each.size
    assert sizes == {1: 900, 2: 900}


def loads(partitions: list[Placed], brokers: Iterable[int]) -> tuple[list[int], list[int], list[int]]:
    """Return what brokers have: bytes, replicas, and partitions of which they are the preferred leader."""
    held = {broker: [each for each in partitions if broker in each.replicas] for broker in brokers}
    return (
        [sum(each.size for each in there) for there in held.values()],
        [len(there) for there in held.values()],
        [sum(each.replicas[0] == broker for each in there) for broker, there in held.items()],
    )


def carried_out(partitions: list[Placed], moves: list[Move]) -> list[Placed]:
    replicas = after(partitions, moves)
    return [each._replace(replicas=replicas[each.partition]) for each in partitions]


@pytest.mark.parametrize(
    ("large", "counts", "leaders"), [(60_000, [58, 58, 5], [28, 28, 5]), (60_000_000, [60, 60, 1], [30, 30, 1])]
)
def test_small_partitions_even_the_numbers_as_far_as_bytes_allow(
    large: int, counts: list[int], leaders: list[int]
) -> None:
    """A broker may have a tenth more bytes than another for it. One that has most bytes by far gets no more."""
    partitions = [*placed(*[(1, 2)] * 60, size=1000), Placed(TopicPartition("large", 0), (3,), large)]
    assert loads(carried_out(partitions, plan_moves(partitions, NO_RACKS)), NO_RACKS)[1:] == (counts, leaders)


def test_numbers_and_leaders_are_even_where_one_partition_of_each_broker_has_nearly_all_bytes() -> None:
    large = [Placed(TopicPartition("large", number), (number,), 10**9) for number in NO_RACKS]
    partitions = [*placed(*[(1, 2)] * 60, size=1000), *large]
    _, counts, leaders = loads(carried_out(partitions, plan_moves(partitions, NO_RACKS)), NO_RACKS)
    assert max(counts) - min(counts) <= 4 and max(leaders) <= 22


@given(
    small=st.lists(st.lists(st.integers(0, 30), max_size=30), min_size=2, max_size=5),
    large=st.integers(0, 2000),
    skew=st.integers(0, 4000),
    factor=st.integers(1, 2),
)
def test_neither_bytes_nor_numbers_end_worse_than_they_were(
    small: list[list[int]], large: int, skew: int, factor: int
) -> None:
    """A plan that has to even bytes may make numbers worse; no other does. Bytes end as even as they have to be."""
    racks = dict.fromkeys(range(1, len(small) + 1))
    sizes = [(broker, size) for broker, theirs in enumerate(small, 1) for size in [large, *theirs]] + [(1, skew)]
    at_first = [((broker, broker % len(small) + 1)[:factor], size) for broker, size in sizes]
    before = [Placed(TopicPartition("t", at), replicas, size) for at, (replicas, size) in enumerate(at_first)]
    then = carried_out(before, plan_moves(before, racks))
    (old_bytes, old_counts, _), (new_bytes, new_counts, _) = loads(before, racks), loads(then, racks)
    enough = [sum(each) // len(small) // 10 for each in (old_bytes, old_counts)]
    assert gap(new_bytes) <= max(gap(old_bytes), enough[0])
    if gap(old_bytes) <= enough[0]:
        assert gap(new_counts) <= gap(old_counts)
    assert plan_moves(then, racks) == []


def gap(load: list[int]) -> int:
    return max(load) - min(load)


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    ((_, replicas),) = plan_moves(placed((1, 5)), racks)
    assert replicas[0] == 1
    assert racks[replicas[1]] == "b"


def test_replicas_that_share_a_rack_go_to_racks_that_are_new() -> None:
    partitions = placed((1, 2, 3), (2, 3, 1), (3, 1, 2))
    racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "c"}
    moves = plan_moves(partitions, racks)
    assert [sorted(racks[each] for each in move.replicas) for move in moves] == [["a", "b", "c"]] * 3
    assert [move.replicas[0] for move in moves] == [1, 2, 3], "the leaders stay"


def test_a_rack_that_all_replicas_can_be_without_moves_none() -> None:
    partitions = placed((1, 3), (3, 1), (2, 4), (4, 2), (1, 4), (3, 2))
    assert plan_moves(partitions, {1: "a", 2: "a", 3: "b", 4: "b"}) == []
    assert plan_moves(partitions, dict.fromkeys(range(1, 5), "a")) == []


@given(brokers=st.integers(2, 5), rounds=st.integers(1, 5), start=st.integers(0, 100), size=st.integers(0, 1000))
def test_a_second_rack_takes_one_replica_of_each_partition(brokers: int, rounds: int, start: int, size: int) -> None:
    """No broker of the first rack keeps more than another, so nothing else has to move."""
    old = dict.fromkeys(range(1, brokers + 1), "a")
    racks = old | dict.fromkeys(range(brokers + 1, 2 * brokers + 1), "b")
    partitions = placed(*place_replicas(old, brokers * rounds, 2, first_index=start, shift=start), size=size)
    moves = plan_moves(partitions, racks)
    assert [len(move.added) for move in moves] == [1] * len(partitions)
    replicas = after(partitions, moves)
    assert all({racks[one] for one in there} == {"a", "b"} for there in replicas.values())
    assert Counter(one for there in replicas.values() for one in there) == dict.fromkeys(racks, rounds)
    spread = [each._replace(replicas=replicas[each.partition]) for each in partitions]
    assert not any(move.added for move in plan_moves(spread, racks))


def test_more_replicas_are_added_and_fewer_are_kept() -> None:
    ((_, more),) = plan_moves(placed((1,)), NO_RACKS, replication_factor=3)
    assert (more[0], sorted(more)) == (1, [1, 2, 3])
    ((_, fewer),) = plan_moves(placed((1, 2, 3)), {1: "a", 2: "a", 3: "b"}, replication_factor=2)
    assert fewer == (1, 3)


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(CannotPlan, match="t-0: 3 replicas need as many brokers, and there are 2"):
        plan_moves(placed((1, 2, 3)), dict.fromkeys((1, 2)))


@given(
    count=st.integers(1, 40),
    factor=st.integers(1, 3),
    before=st.sets(st.integers(1, 8), min_size=3),
    now=st.sets(st.integers(1, 8), min_size=3),
    rack_count=st.integers(1, 4),
    sizes=st.lists(st.integers(0, 1000) | st.integers(100_000, 1_000_000), min_size=40, max_size=40),
    start=st.integers(0, 100),
)
def test_every_plan_is_valid_and_even(
    count: int, factor: int, before: set[int], now: set[int], rack_count: int, sizes: list[int], start: int
) -> None:
    racks = {each: f"rack{each % rack_count}" for each in now}
    at_first = place_replicas(dict.fromkeys(before), count, factor, first_index=start, shift=start)
    partitions = [
        Placed(TopicPartition("t", number), replicas, size)
        for number, (replicas, size) in enumerate(zip(at_first, sizes, strict=False))
    ]
    moves = plan_moves(partitions, racks)
    replicas = after(partitions, moves)
    load = dict.fromkeys(now, 0)
    for each in partitions:
        there = replicas[each.partition]
        assert len(set(there)) == len(there) == factor
        assert set(there) <= now
        assert len({racks[one] for one in there}) == min(factor, len(set(racks.values())))
        for one in there:
            load[one] += each.size
    assert all(move.replicas != move.placed.replicas for move in moves)
    again = [each._replace(replicas=replicas[each.partition]) for each in partitions]
    assert plan_moves(again, racks) == [], "a plan that is carried out needs no other"
    if rack_count == 1 or factor == 1:
        largest = max(each.size for each in partitions)
        average = sum(load.values()) // len(load)
        assert max(load.values()) - min(load.values()) <= max(1, 2 * largest, average // 10)


def test_a_new_broker_gets_its_share_of_many_partitions_of_one_size() -> None:
    partitions = [
        Placed(TopicPartition("t", number), (1 + number % 3, 1 + (number + 1) % 3), 1000) for number in range(90)
    ]
    moves = plan_moves(partitions, dict.fromkeys((1, 2, 3, 4)))
    there = [one for replicas in after(partitions, moves).values() for one in replicas]
    assert all(41 <= there.count(broker) <= 49 for broker in (1, 2, 3, 4)), there
    assert sum(len(move.added) for move in moves) <= 46


class CountedPartition(TopicPartition):
    """A partition that counts how often partitions are looked up or compared."""

    steps = 0

    def __hash__(self) -> int:
        CountedPartition.steps += 1
        return super().__hash__()

    def __lt__(self, other: tuple[object, ...]) -> bool:
        CountedPartition.steps += 1
        return super().__lt__(other)  # type: ignore[operator]


def steps_of_a_plan(count: int, racks: Mapping[int, str | None], sizes: Callable[[int], int]) -> int:
    """Return the steps of planning three replicas of each partition, from brokers 1 to 3 to those of `racks`."""
    partitions = [
        Placed(CountedPartition("t", at), (1 + at % 3, 1 + (at + 1) % 3, 1 + (at + 2) % 3), sizes(at))
        for at in range(count)
    ]
    CountedPartition.steps = 0
    moves = plan_moves(partitions, racks)
    assert sum(len(move.added) for move in moves) > count // 3
    return CountedPartition.steps


@pytest.mark.parametrize("racks", [dict.fromkeys(range(1, 5)), {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}])
@pytest.mark.parametrize(
    "sizes",
    [lambda at: 1000, lambda at: 0, lambda at: at * 7919 % 1009],
    ids=["of one size", "empty", "of all sizes"],
)
def test_four_times_the_partitions_take_little_more_than_four_times_the_steps(
    racks: Mapping[int, str | None], sizes: Callable[[int], int]
) -> None:
    few, many = (steps_of_a_plan(count, racks, sizes) for count in (200, 800))
    assert many < 6 * few
