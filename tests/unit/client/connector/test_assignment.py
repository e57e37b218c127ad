"""Who gets which partition, against models that are slow and obvious. Kafka's own are in tests/compat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.config.connector import CONNECTOR
from kbroker.client.connector.assignment import (
    STRATEGIES,
    Disagreement,
    assign_range,
    assign_round_robin,
    java_hash,
    java_order,
)
from kbroker.model import TopicPartition

names = st.text("ab-1\U00010000\uffff", min_size=1, max_size=4)
readers = st.lists(names, min_size=1, max_size=6, unique=True).map(lambda found: sorted(found, key=java_order))
numbers = st.sets(st.integers(0, 30), max_size=12).map(sorted)


def dealt(items: list[int], count: int) -> list[list[int]]:
    """In runs whose lengths differ by one at most: as if items were given out one by one, then put in order again."""
    sizes = [0] * count
    for place in range(len(items)):
        sizes[place % count] += 1
    left = list(items)
    return [[left.pop(0) for _ in range(size)] for size in sizes]


@given(st.dictionaries(names, st.tuples(readers, numbers), max_size=4))
def test_range_deals_each_topic_in_runs(topics: dict[str, tuple[list[str], list[int]]]) -> None:
    found = assign_range({t: r for t, (r, _) in topics.items()}, {t: n for t, (_, n) in topics.items()})
    expected = {
        TopicPartition(topic, number): owner
        for topic, (owners, each) in topics.items()
        for owner, run in zip(owners, dealt(each, len(owners)), strict=True)
        for number in run
    }
    assert found == expected


@given(readers, st.dictionaries(names, numbers, min_size=1, max_size=4))
def test_round_robin_gives_everything_in_turn(owners: list[str], partitions: dict[str, list[int]]) -> None:
    found = assign_round_robin(dict.fromkeys(partitions, owners), partitions)
    assert set(found) == {TopicPartition(topic, number) for topic, each in partitions.items() for number in each}
    counts = [list(found.values()).count(owner) for owner in owners]
    assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1


def test_round_robin_goes_by_the_hashes_of_java() -> None:
    partitions = {"b": [0, 1], "a": [0]}
    order = sorted(["[b,0]", "[b,1]", "[a,0]"], key=java_hash)
    found = assign_round_robin({"a": ["x", "y", "z"], "b": ["x", "y", "z"]}, partitions)
    assert [f"[{each.topic},{each.partition_id}]" for each in sorted(found, key=lambda each: found[each])] == order


def test_round_robin_refuses_members_that_read_different_things() -> None:
    with pytest.raises(Disagreement, match="a is read by x, b by x, y"):
        assign_round_robin({"a": ["x"], "b": ["x", "y"]}, {"a": [0], "b": [0]})
    assert assign_round_robin({}, {}) == {}


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("a", 97), ("hello", 99162322), ("[topic,0]", 2068025637), ("\U0001f600", 1772899)]
)
def test_hashes_are_those_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_hashes_are_of_32_bits_with_a_sign() -> None:
    found = [java_hash("x" * size) for size in range(100)]
    assert min(found) < 0 < max(found)
    assert all(-(2**31) <= each < 2**31 for each in found)


def test_names_are_ordered_by_units_of_utf16() -> None:
    assert sorted(["\uffff", "\U00010000", "a-10", "a-9"], key=java_order) == ["a-10", "a-9", "\U00010000", "\uffff"]


def test_the_option_takes_the_name_of_every_strategy() -> None:
    assert CONNECTOR["partition.assignment.strategy"].kind.words == tuple(STRATEGIES)  # type: ignore[attr-defined]
