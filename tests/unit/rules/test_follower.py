"""What a follower does about its leader's answers, case by case, and against a model of two logs that diverged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import ErrorCode
from kbroker.rules import follower
from kbroker.rules.follower import AskEarliest, AskLatest, BeginAt, LogView, Retry, TruncateTo, Wait


class Trouble(NamedTuple):
    kind: str = "error"
    error: int = 0
    offset: int = 0
    diverging_epoch: int = -1
    diverging_end: int = -1


def view(end: int, *epochs: tuple[int, int], start: int = 0, high_watermark: int = 0) -> LogView:
    return LogView(start, end, high_watermark, epochs)


def test_a_log_without_epochs_is_cut_to_its_high_watermark_first() -> None:
    assert follower.first_step(view(10, high_watermark=4)) == TruncateTo(4)
    assert follower.first_step(view(4, high_watermark=4)) is None
    assert follower.first_step(view(10, (0, 0), high_watermark=4)) is None


def test_a_log_is_cut_where_the_leaders_epoch_ends() -> None:
    assert follower.truncation(3, 7, view(10, (2, 0), (3, 5))) == TruncateTo(7)


def test_a_log_is_not_cut_beyond_the_end_of_its_own_epoch() -> None:
    assert follower.truncation(2, 9, view(10, (2, 0), (3, 5))) == TruncateTo(5)


def test_an_epoch_that_the_log_does_not_have_cuts_to_the_end_of_its_next_lower_one() -> None:
    assert follower.truncation(2, 9, view(20, (1, 0), (3, 6))) == TruncateTo(6)


def test_a_log_of_which_the_leader_has_no_epoch_keeps_only_what_lies_before_its_first() -> None:
    assert follower.truncation(1, 3, view(20, (5, 0))) == TruncateTo(0)
    assert follower.truncation(1, 9, view(20, (5, 7))) == TruncateTo(7)
    assert follower.truncation(1, 3, view(20, (5, 7))) == TruncateTo(3)


def test_an_epoch_at_the_end_of_the_log_is_forgotten_though_no_record_is_cut() -> None:
    assert follower.truncation(4, 10, view(10, (4, 0), (5, 10))) == TruncateTo(10)


def test_a_difference_that_would_change_nothing_is_not_believed_at_once() -> None:
    assert isinstance(follower.truncation(4, 12, view(10, (4, 0))), Retry)
    assert isinstance(follower.truncation(-1, -1, view(10, (4, 0))), Retry)


def test_a_log_is_never_cut_below_its_start() -> None:
    assert follower.truncation(3, 2, view(10, (3, 5), start=5)) == TruncateTo(5)


def test_errors_of_the_leader() -> None:
    log = view(10, (0, 0))
    assert follower.next_step(Trouble(error=ErrorCode.OFFSET_OUT_OF_RANGE), log) == AskLatest()
    assert follower.next_step(Trouble(error=ErrorCode.FENCED_LEADER_EPOCH), log) == Wait()
    for code in (
        ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR, 999,
    ):  # fmt: skip
        assert isinstance(follower.next_step(Trouble(error=code), log), Retry)


def test_errors_of_the_own_log() -> None:
    log = view(10, (0, 0))
    assert follower.next_step(Trouble("append", ErrorCode.FENCED_LEADER_EPOCH), log) == Wait()
    for code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.KAFKA_STORAGE_ERROR):
        assert isinstance(follower.next_step(Trouble("append", code), log), Retry)


def test_an_offset_out_of_range_ends_in_a_cut_or_in_a_new_beginning() -> None:
    log = view(10, (0, 0), start=3)
    assert follower.after_latest(7, log) == TruncateTo(7)
    assert follower.after_latest(2, log) == BeginAt(2)
    assert follower.after_latest(10, log) == AskEarliest()
    assert follower.after_earliest(40, log) == BeginAt(40)
    assert isinstance(follower.after_earliest(10, log), Retry)


# --- two logs that diverged ------------------------------------------------------------------------------------------


def starts_of(epochs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the epochs of a log, each record's given, with the offsets where they begin."""
    found: list[tuple[int, int]] = []
    for offset, epoch in enumerate(epochs):
        if not found or found[-1][0] != epoch:
            found.append((epoch, offset))
    return found


def leader_answers(leader: Sequence[int], offset: int, last_epoch: int) -> tuple[int, int] | None:
    """Return what the leader says of the epoch of a fetch: its largest epoch up to that one, and where it ends."""
    epochs = starts_of(leader)
    below = [at for at in epochs if at[0] <= last_epoch]
    above = [at for at in epochs if at[0] > last_epoch]
    if not below and not above:
        return -1, -1
    end = above[0][1] if above else len(leader)
    epoch = below[-1][0] if below else last_epoch
    return (epoch, end) if epoch < last_epoch or end < offset else None


@given(
    shared=st.lists(st.integers(0, 3), max_size=8),
    mine=st.lists(st.integers(0, 6), max_size=8),
    leaders=st.lists(st.integers(0, 6), max_size=8),
)
def test_a_follower_finds_the_end_of_what_both_logs_share(
    shared: list[int], mine: list[int], leaders: list[int]
) -> None:
    """Records are told apart by offset and epoch: one epoch has one leader, so one record at each offset."""
    common = sorted(shared)
    last = common[-1] if common else 0
    own = common + sorted(epoch + last for epoch in mine)
    # No epoch was written on both sides after the logs had parted; the leader is of the newest one.
    theirs = [epoch for epoch in sorted(epoch + last for epoch in leaders) if epoch not in own[len(common) :]]
    leader = [*common, *theirs, max([*own, *theirs, last]) + 1]
    for _ in range(50):
        epochs = starts_of(own)
        if not own:
            break
        said = leader_answers(leader, len(own), epochs[-1][0])
        if said is None:
            break
        step = follower.truncation(*said, LogView(0, len(own), 0, epochs))
        assert isinstance(step, TruncateTo)
        assert step.offset < len(own)
        own = own[: step.offset]
    else:
        raise AssertionError("the logs never meet")
    assert own == leader[: len(own)]
    assert len(own) >= len(common)
