"""What may happen to a transactional id."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import (
    LAST_CLIENT_EPOCH,
    MAX_PRODUCER_EPOCH,
    Expected,
    Transaction,
    TransactionState,
    Transit,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
NOW = 1_000


def known(epoch: int = 0, state: TransactionState = TransactionState.EMPTY, *partitions: TopicPartition) -> Transaction:
    return Transaction("id", 7, 60_000, NOW, producer_epoch=epoch, state=state, partitions=frozenset(partitions))


def does(transaction: Transaction, transit: Transit | ErrorCode) -> Transit:
    assert isinstance(transit, Transit), transit
    transaction.stored(transit)
    return transit


def init(transaction: Transaction, expected: Expected | None = None, new_id: int = 8) -> tuple[int, int] | ErrorCode:
    transit = transaction.init_producer_id(60_000, expected, new_id, NOW)
    if isinstance(transit, ErrorCode):
        return transit
    transaction.stored(transit)
    return (transit.producer_id, transit.producer_epoch) if not transit.fences else ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_transaction_from_the_first_partition_to_the_last_marker() -> None:
    transaction = known()
    assert does(transaction, transaction.add_partitions(7, 0, [A], NOW + 1)).start_ms == NOW + 1
    assert does(transaction, transaction.add_partitions(7, 0, [B], NOW + 2)).start_ms == NOW + 1
    assert transaction.add_partitions(7, 0, [A, B], NOW + 3) is ErrorCode.NONE
    assert does(transaction, transaction.end(7, 0, True, NOW + 4)).partitions == {A, B}
    assert transaction.is_prepared and transaction.partitions == {A, B}
    assert does(transaction, transaction.complete(NOW + 5)).partitions == frozenset()
    assert transaction.state is TransactionState.COMPLETE_COMMIT and transaction.partitions == frozenset()
    assert (transaction.start_ms, transaction.update_ms) == (NOW + 1, NOW + 5)


def test_whoever_comes_without_an_epoch_fences_whoever_was_there() -> None:
    transaction = known()
    assert init(transaction) == (7, 1)
    assert transaction.add_partitions(7, 0, [A], NOW) is ErrorCode.PRODUCER_FENCED
    assert transaction.end(7, 0, True, NOW) is ErrorCode.PRODUCER_FENCED
    assert transaction.verify(7, 0) is ErrorCode.PRODUCER_FENCED
    assert init(transaction, expected=(7, 0)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_asks_again_for_the_epoch_that_it_got_gets_it_again() -> None:
    transaction = known()
    assert init(transaction, expected=(7, 0)) == (7, 1)
    assert init(transaction, expected=(7, 0)) == (7, 1)
    assert init(transaction, expected=(7, 1)) == (7, 2)


def test_an_id_that_was_never_given_out_accepts_whatever_a_producer_had_before() -> None:
    transaction = Transaction("id", 7, 60_000, NOW)
    assert init(transaction, expected=(3, 9)) == (7, 0)


def test_another_producer_id_is_fenced() -> None:
    for epoch in (0, LAST_CLIENT_EPOCH):
        assert init(known(), expected=(6, epoch)) is ErrorCode.PRODUCER_FENCED
        assert init(known(0, TransactionState.ONGOING, A), expected=(6, epoch)) is ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_is_aborted_before_somebody_else_gets_the_id() -> None:
    transaction = known(4, TransactionState.ONGOING, A)
    transit = transaction.init_producer_id(60_000, None, None, NOW)
    assert isinstance(transit, Transit)
    assert (transit.state, transit.producer_epoch, transit.fences) == (TransactionState.PREPARE_ABORT, 5, True)
    assert transaction.end(7, 4, True, NOW) is ErrorCode.PRODUCER_FENCED, "already before it is in the log"
    transaction.stored(transit)
    assert init(transaction) is ErrorCode.CONCURRENT_TRANSACTIONS
    does(transaction, transaction.complete(NOW))
    assert init(transaction) == (7, 6)


def test_an_epoch_that_fences_is_never_told_to_whoever_asks_again() -> None:
    transaction = known()
    assert init(transaction, (7, 0)) == (7, 1)
    does(transaction, transaction.add_partitions(7, 1, [A], NOW))
    does(transaction, transaction.fence(NOW))
    does(transaction, transaction.complete(NOW))
    assert init(transaction, (7, 0)) is init(transaction, (7, 1)) is ErrorCode.PRODUCER_FENCED


def test_a_fence_that_could_not_be_written_takes_the_same_epoch_the_next_time() -> None:
    transaction = known(4, TransactionState.ONGOING, A)
    transaction.not_stored(transaction.fence(NOW))
    assert (transaction.state, transaction.producer_epoch) == (TransactionState.ONGOING, 5)
    assert does(transaction, transaction.fence(NOW)).producer_epoch == 5
    does(transaction, transaction.complete(NOW))
    does(transaction, transaction.add_partitions(7, 5, [A], NOW))
    assert transaction.fence(NOW).producer_epoch == 6, "once it was written the next one is new"


@pytest.mark.parametrize("expected", [None, (7, LAST_CLIENT_EPOCH)])
def test_a_producer_id_whose_epochs_are_used_up_is_replaced(expected: Expected | None) -> None:
    transaction = known(LAST_CLIENT_EPOCH - 1)
    assert not transaction.needs_producer_id(None)
    assert init(transaction) == (7, LAST_CLIENT_EPOCH)
    assert transaction.needs_producer_id(expected)
    assert init(transaction, expected) == (8, 0)
    again = init(transaction, (7, LAST_CLIENT_EPOCH))
    assert again == ((8, 0) if expected else ErrorCode.PRODUCER_FENCED)


def test_the_last_epoch_of_all_only_fences() -> None:
    transaction = known(LAST_CLIENT_EPOCH, TransactionState.ONGOING, A)
    assert does(transaction, transaction.fence(NOW)).producer_epoch == MAX_PRODUCER_EPOCH
    does(transaction, transaction.complete(NOW))
    assert init(transaction, (7, LAST_CLIENT_EPOCH)) is ErrorCode.PRODUCER_FENCED
    assert init(transaction) == (8, 0)


def test_a_retry_of_the_last_epoch_is_answered() -> None:
    transaction = known(LAST_CLIENT_EPOCH - 1)
    assert init(transaction, (7, LAST_CLIENT_EPOCH - 1)) == (7, LAST_CLIENT_EPOCH)
    assert init(transaction, (7, LAST_CLIENT_EPOCH - 1)) == (7, LAST_CLIENT_EPOCH)


def test_nothing_else_happens_while_a_change_is_on_its_way() -> None:
    transaction = known(0, TransactionState.ONGOING, A)
    transit = transaction.end(7, 0, True, NOW)
    assert isinstance(transit, Transit)
    assert transaction.add_partitions(7, 0, [B], NOW) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert transaction.end(7, 0, True, NOW) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert init(transaction) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not transaction.has_timed_out(NOW + 10**9) and not transaction.has_expired(NOW + 10**9, 1)
    assert transaction.verify(7, 0) is ErrorCode.NONE, "what is there is still there"
    transaction.not_stored(transit)
    assert transaction.state is TransactionState.ONGOING and transaction.pending is None


def test_it_times_out_only_while_it_is_open() -> None:
    transaction = known(0, TransactionState.ONGOING, A)
    transaction.start_ms = NOW
    assert not transaction.has_timed_out(NOW + 60_000)
    assert transaction.has_timed_out(NOW + 60_001)
    does(transaction, transaction.end(7, 0, True, NOW))
    assert not transaction.has_timed_out(NOW + 60_001)


@pytest.mark.parametrize("state", [state for state in TransactionState if state not in ("Dead", "PrepareEpochFence")])
def test_it_expires_only_at_rest(state: TransactionState) -> None:
    transaction = known(0, state, A)
    expires = state in (TransactionState.EMPTY, TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT)
    assert transaction.has_expired(NOW + 100, 100) is expires
    assert not transaction.has_expired(NOW + 99, 100)


def test_a_transaction_without_partitions_begins_too() -> None:
    transaction = known()
    assert does(transaction, transaction.add_partitions(7, 0, [], NOW)).state is TransactionState.ONGOING
