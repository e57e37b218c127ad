"""What an exactly-once stream keeps, and what its driver makes of what tasks bring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.errors import SinkFailed
from kbroker.spark.writing.sink_state import (
    BLOCK,
    Brought,
    Winner,
    attempt_id,
    block_texts,
    digest,
    driver_id,
    prefix,
    prepared,
    read_block,
    settle,
)

LONGEST = 4096  # offset.metadata.max.bytes
some = st.builds(
    Winner, st.integers(0, 99), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 15) - 1), st.sampled_from([1, 2])
)
winners = st.none() | some


@given(st.lists(winners, max_size=3 * BLOCK))
def test_what_is_kept_is_read_again(given: list[Winner | None]) -> None:
    texts = block_texts(given)
    found = [read_block(text) for text in texts]
    assert {count for count, _ in found} == {len(given)}
    assert [winner for _, block in found for winner in block] == given
    assert all(len(text) <= LONGEST for text in texts)


def test_the_longest_fits_into_what_brokers_keep_by_default() -> None:
    (text,) = block_texts([Winner(99, (1 << 63) - 1, (1 << 15) - 1, 2)] * BLOCK)
    assert len(text) <= LONGEST


@pytest.mark.parametrize("text", ["", "1", "x 1 -", "2 1 -", "1 1 1.2", "1 1 a.b.c.d", "1 1 1.2.3.4.5"])
def test_what_somebody_else_has_kept_is_refused(text: str) -> None:
    with pytest.raises(SinkFailed, match="not understood"):
        read_block(text)


def test_names_are_of_one_query_and_one_attempt() -> None:
    assert prepared("q", 3, Winner(1, 7, 2, 2)).transactional_id == attempt_id("q", 3, 1) == "kbroker-sink-q-3-1"
    assert attempt_id("q", 3, 1).startswith(prefix("q"))
    assert not driver_id("q").startswith(prefix("q"))


A, B, C, D = (Winner(0, number, 0, 2) for number in range(4))


def test_the_first_decision_is_what_tasks_bring() -> None:
    found = settle(None, [Brought(A), Brought(None), Brought(B)])
    assert (found.winners, found.is_news, found.losers) == ((A, None, B), True, {})


def test_a_decision_stays_and_what_comes_later_loses() -> None:
    found = settle((A, None, B), [Brought(C), Brought(D), Brought(None, skipped=True)])
    assert (found.winners, found.is_news, found.losers) == ((A, None, B), False, {0: C, 1: D})


def test_a_decision_that_is_asked_for_again_has_no_losers() -> None:
    found = settle((A, B), [Brought(A), Brought(B)])
    assert (found.winners, found.is_news, found.losers) == ((A, B), False, {})


def test_what_is_lost_is_replaced_as_a_whole_and_once() -> None:
    old = digest((A, B))
    found = settle((A, B), [Brought(C, instead_of=old), Brought(None), Brought(D, instead_of=old)])
    assert (found.winners, found.is_news, found.losers) == ((C, None, D), True, {})
    late = settle(found.winners, [Brought(A, instead_of=old), Brought(None), Brought(B, instead_of=old)])
    assert (late.winners, late.is_news, late.losers) == ((C, None, D), False, {0: A, 2: B})


def test_nothing_is_replaced_by_halves() -> None:
    for other in (Brought(None, skipped=True), Brought(D), Brought(D, instead_of=digest((A, C)))):
        found = settle((A, B), [Brought(C, instead_of=digest((A, B))), other])
        assert (found.winners, found.is_news) == ((A, B), False)
        assert found.losers == {task: each for task, each in enumerate([C, other.winner]) if each is not None}


def test_a_decision_that_is_gone_is_no_reason_to_skip() -> None:
    with pytest.raises(SinkFailed, match="finds that it was not"):
        settle(None, [Brought(None, skipped=True)])
    with pytest.raises(SinkFailed, match="finds that it was not"):
        settle(None, [Brought(A, instead_of=digest((B,)))])


@given(st.lists(winners, min_size=1, max_size=6), st.data())
def test_a_decision_is_kept_or_replaced_and_what_is_not_in_it_loses(
    decided: list[Winner | None], data: st.DataObject
) -> None:
    current = tuple(decided)
    seen = [current]
    for _ in range(data.draw(st.integers(1, 4))):
        saw = data.draw(st.sampled_from([None, *map(digest, seen)]))
        brought = [Brought(each, instead_of=saw) for each in data.draw(st.lists(some, min_size=1))]
        found = settle(current, brought)
        mine = tuple(each.winner for each in brought)
        assert found.winners == (mine if saw == digest(current) else current)
        assert found.losers.items() | set(enumerate(found.winners)) >= set(enumerate(mine))
        assert not found.losers.items() & set(enumerate(found.winners))
        current = found.winners
        seen.append(current)
