"""Transactions with their own epoch in one log (KIP-890, part 2): what begins and ends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.errors import ErrorCode
from kbroker.storage.log import Log
from tests.kit.logs.home import LogHome
from tests.unit.storage.test_transactions import batch, code_of

MAX_EPOCH = 2**15 - 1


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = LogHome(tmp_path).create()
    log.open()
    return log


def begin(log: Log, epoch: int, sequence: int = 0, producer_id: int = 7) -> int:
    guard = log.verify(producer_id, epoch, sequence, adds=True)
    return log.append(batch(producer_id, sequence, epoch=epoch), guard=guard).base_offset


def end(log: Log, epoch: int, *, commit: bool = True) -> int:
    return log.append_marker(7, epoch, 0, commit=commit, bumped=True).base_offset


def test_each_transaction_has_an_epoch_and_begins_with_sequence_0(log: Log) -> None:
    for epoch in range(3):
        assert begin(log, epoch) == epoch * 3
        assert log.verify(7, epoch, 1, adds=True) == 0, "nobody has to be asked again"
        assert log.append(batch(7, 1, epoch=epoch)).base_offset == epoch * 3 + 1
        assert end(log, epoch + 1) == epoch * 3 + 2
    assert log.state.last_stable_offset == 9
    (producer,) = log.active_producers()
    assert (producer.producer_epoch, producer.last_sequence, producer.transaction_start_offset) == (3, -1, -1)


def test_a_batch_that_nobody_was_asked_about_begins_nothing(log: Log) -> None:
    assert code_of(lambda: log.append(batch(7, 0))) is ErrorCode.INVALID_TXN_STATE
    begin(log, 0)
    end(log, 1)
    assert code_of(lambda: log.append(batch(7, 0, epoch=1))) is ErrorCode.INVALID_TXN_STATE
    assert log.log_end_offset == 2


def test_a_batch_of_a_transaction_that_is_over_is_of_an_old_epoch(log: Log) -> None:
    begin(log, 0)
    guard = log.verify(8, 0, 0, adds=True)
    end(log, 1)
    for call in (
        lambda: log.verify(7, 0, 1, adds=True),
        lambda: log.append(batch(7, 1)),
        lambda: log.append(batch(7, 1), guard=guard),
    ):
        assert code_of(call) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.log_end_offset == 2


def test_the_marker_of_the_transaction_before_does_not_break_the_guard_of_the_next(log: Log) -> None:
    begin(log, 0)
    next_one = log.verify(7, 1, 0, adds=True)
    assert next_one != 0, "that one of an older epoch is open does not matter"
    end(log, 1)
    assert log.append(batch(7, 0, epoch=1), guard=next_one).base_offset == 2


def test_any_other_marker_breaks_the_guard(log: Log) -> None:
    begin(log, 0)
    end(log, 1)
    guard = log.verify(7, 1, 0, adds=True)
    end(log, 2, commit=False)
    late = lambda: log.append(batch(7, 0, epoch=1), guard=guard)  # noqa: E731
    assert code_of(late) is ErrorCode.INVALID_PRODUCER_EPOCH
    again = log.verify(7, 2, 0, adds=True)
    assert again not in (0, guard)


def test_the_guard_of_a_client_that_keeps_its_epoch_is_broken_by_every_marker(log: Log) -> None:
    guard = log.verify(7, 1, 0)
    log.append_marker(7, 1, 0, commit=False, bumped=True)
    late = lambda: log.append(batch(7, 0, epoch=1), guard=guard)  # noqa: E731
    assert code_of(late) is ErrorCode.INVALID_TXN_STATE


def test_a_marker_ends_no_transaction_of_its_own_epoch(log: Log) -> None:
    begin(log, 1)
    assert code_of(lambda: end(log, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(lambda: end(log, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.append_marker(7, 1, 0, commit=True).base_offset == 1, "that of a client that keeps its epoch does"


def test_a_marker_that_comes_again_is_written_again(log: Log) -> None:
    begin(log, 0)
    assert [end(log, 1), end(log, 1)] == [1, 2]
    assert log.state.last_stable_offset == 3


def test_the_last_epoch_of_all_is_ended_by_itself(log: Log) -> None:
    begin(log, MAX_EPOCH)
    assert end(log, MAX_EPOCH) == 1
    assert log.state.last_stable_offset == 2


def test_an_epoch_of_which_nothing_is_known_begins_with_sequence_0(log: Log) -> None:
    assert code_of(lambda: begin(log, 0, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert begin(log, 0) == 0
    end(log, 1)
    assert code_of(lambda: begin(log, 1, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert begin(log, 1) == 2


def test_a_duplicate_in_an_open_transaction_is_told_its_offset(log: Log) -> None:
    begin(log, 0)
    assert log.append(batch(7, 0)).base_offset == 0
    assert log.log_end_offset == 1


def test_a_restart_knows_the_epoch_that_a_marker_brought(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    log.open()
    begin(log, 0)
    end(log, 1)
    log = home.reopen(clean=False)
    log.open()
    assert code_of(lambda: begin(log, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert begin(log, 1) == 2
