"""What a group has committed: what counts, what is on its way, what has to go."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from kbroker.rules.group_offsets import CommittedOffset, GroupOffsets

P0, P1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)
DAY = 24 * 3_600_000


def at(offset: int, committed: int = 0, expiry: int = -1, record: int = -1) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", committed, expiry, record)


@pytest.fixture
def offsets() -> GroupOffsets:
    return GroupOffsets()


def test_a_commit_counts_when_it_is_durable(offsets: GroupOffsets) -> None:
    batch = offsets.begin({P0: at(5)})
    assert offsets.committed == {} and offsets.is_unstable(P0) and offsets.is_busy
    offsets.finish(batch, 10)
    assert offsets.committed[P0].offset == 5 and offsets.committed[P0].record_offset == 10
    assert not offsets.is_unstable(P0) and not offsets.is_busy


def test_a_commit_that_failed_changes_nothing(offsets: GroupOffsets) -> None:
    batch = offsets.begin({P0: at(5)})
    offsets.fail(batch)
    assert offsets.committed == {} and not offsets.is_busy


def test_commits_count_in_the_order_of_the_log_whatever_order_they_end_in(offsets: GroupOffsets) -> None:
    older, newer = offsets.begin({P0: at(5)}), offsets.begin({P0: at(7)})
    offsets.finish(newer, 11)
    offsets.finish(older, 10)
    assert offsets.committed[P0].offset == 7


def test_a_commit_that_failed_takes_no_older_one_along(offsets: GroupOffsets) -> None:
    older, newer = offsets.begin({P0: at(5)}), offsets.begin({P0: at(7)})
    offsets.fail(newer)
    assert offsets.is_unstable(P0)
    offsets.finish(older, 10)
    assert offsets.committed[P0].offset == 5


def test_a_commit_that_ends_after_its_topic_was_deleted_is_forgotten(offsets: GroupOffsets) -> None:
    batch = offsets.begin({P0: at(5)})
    assert offsets.known() == {P0}
    offsets.remove([P0])
    offsets.finish(batch, 10)
    assert offsets.committed == {}


def test_offsets_of_a_transaction_count_when_it_is_committed(offsets: GroupOffsets) -> None:
    offsets.set_committed(P0, at(1, record=1))
    offsets.set_transactional(9, P0, at(5, record=2))
    assert offsets.committed[P0].offset == 1 and offsets.is_unstable(P0) and not offsets.is_unstable(P1)
    offsets.end_transaction(9, commit=True, marker_offset=3)
    assert offsets.committed[P0].offset == 5 and not offsets.is_unstable(P0)


def test_an_aborted_transaction_leaves_nothing(offsets: GroupOffsets) -> None:
    offsets.set_transactional(9, P0, at(5, record=2))
    offsets.end_transaction(9, commit=False, marker_offset=3)
    assert offsets.committed == {} and not offsets.is_busy


def test_a_transaction_does_not_undo_a_later_commit(offsets: GroupOffsets) -> None:
    offsets.set_transactional(9, P0, at(5, record=2))
    offsets.set_committed(P0, at(8, record=3))
    offsets.end_transaction(9, commit=True, marker_offset=4)
    assert offsets.committed[P0].offset == 8


def test_offsets_of_a_transaction_that_become_durable_after_its_marker_end_with_it(offsets: GroupOffsets) -> None:
    before, behind = offsets.begin({P0: at(5)}, producer_id=9), offsets.begin({P1: at(6)}, producer_id=9)
    offsets.end_transaction(9, commit=True, marker_offset=11)
    assert offsets.is_unstable(P0) and offsets.is_unstable(P1)
    offsets.finish(behind, 12)
    offsets.finish(before, 10)
    assert offsets.committed[P0].offset == 5 and not offsets.is_unstable(P0)
    assert P1 not in offsets.committed and offsets.is_unstable(P1) and offsets.has_transaction(9)


def test_the_newer_of_two_offsets_in_a_transaction_counts_whichever_becomes_durable_first(
    offsets: GroupOffsets,
) -> None:
    older, newer = offsets.begin({P0: at(5)}, producer_id=9), offsets.begin({P0: at(6)}, producer_id=9)
    offsets.finish(newer, 11)
    offsets.finish(older, 10)
    offsets.end_transaction(9, commit=True, marker_offset=12)
    assert offsets.committed[P0].offset == 6


def test_what_did_not_get_into_the_log_is_not_in_the_transaction(offsets: GroupOffsets) -> None:
    offsets.fail(offsets.begin({P0: at(5)}, producer_id=9))
    assert not offsets.is_busy and not offsets.has_transaction(9)


def test_what_is_removed_is_known_of_nowhere(offsets: GroupOffsets) -> None:
    offsets.set_committed(P0, at(1))
    offsets.set_committed(OTHER, at(1))
    offsets.set_transactional(9, P1, at(1))
    staged = offsets.begin({P0: at(2)}, producer_id=8)
    assert offsets.known() == {P0, P1, OTHER}
    offsets.remove([P0, P1])
    assert offsets.known() == {OTHER}
    offsets.finish(staged, 5)
    offsets.end_transaction(8, commit=True, marker_offset=6)
    assert set(offsets.committed) == {OTHER}
    assert offsets.is_busy and offsets.has_transaction(9), "until its marker comes"
    offsets.end_transaction(9, commit=True, marker_offset=7)
    assert set(offsets.committed) == {OTHER} and not offsets.is_busy


@pytest.mark.parametrize(("since", "expired"), [(None, [P0]), (0, [P0, P1]), (DAY, [])])
def test_offsets_expire_with_their_commit_or_with_the_group(
    offsets: GroupOffsets, since: int | None, expired: list[TopicPartition]
) -> None:
    offsets.set_committed(P0, at(1, committed=0))
    offsets.set_committed(P1, at(1, committed=DAY))
    assert offsets.expired(DAY, DAY, since) == expired


def test_a_retention_time_of_the_commit_itself_wins(offsets: GroupOffsets) -> None:
    offsets.set_committed(P0, at(1, committed=0, expiry=50))
    offsets.set_committed(P1, at(1, committed=0, expiry=2 * DAY))
    assert offsets.expired(DAY, DAY, None) == [P0]


def test_subscribed_topics_and_commits_on_their_way_are_spared(offsets: GroupOffsets) -> None:
    for partition in (P0, P1, OTHER):
        offsets.set_committed(partition, at(1))
    offsets.begin({OTHER: at(2)})
    assert offsets.expired(DAY, DAY, None, lambda topic: topic == "t") == []
    assert offsets.expired(DAY, DAY, None) == [P0, P1]
