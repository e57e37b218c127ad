"""What may happen to a transactional id."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import (
    EPOCH_VERSION,
    FIRST_VERSION,
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
    is_abort = transit.state is TransactionState.PREPARE_ABORT
    return ErrorCode.CONCURRENT_TRANSACTIONS if is_abort else (transit.producer_id, transit.producer_epoch)


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
    assert (transit.state, transit.producer_epoch) == (TransactionState.PREPARE_ABORT, 5)
    assert transaction.end(7, 4, True, NOW) is ErrorCode.CONCURRENT_TRANSACTIONS
    transaction.stored(transit)
    assert transaction.end(7, 4, True, NOW) is ErrorCode.PRODUCER_FENCED
    assert init(transaction) is ErrorCode.CONCURRENT_TRANSACTIONS
    does(transaction, transaction.complete(NOW))
    assert init(transaction) == (7, 6)


def test_a_producer_whose_transaction_was_aborted_goes_on_if_nobody_else_has_come() -> None:
    for come in (False, True):
        transaction = known(4, TransactionState.ONGOING, A)
        does(transaction, transaction.fence(None, NOW))
        does(transaction, transaction.complete(NOW))
        if come:
            assert init(transaction) == (7, 6)
        assert init(transaction, (7, 4)) == (ErrorCode.PRODUCER_FENCED if come else (7, 5))
        assert init(transaction, (7, 3)) is ErrorCode.PRODUCER_FENCED


def test_a_fence_that_could_not_be_written_takes_the_same_epoch_the_next_time() -> None:
    transaction = known(4, TransactionState.ONGOING, A)
    transaction.not_stored(transaction.fence(None, NOW))
    assert (transaction.state, transaction.producer_epoch) == (TransactionState.ONGOING, 4)
    assert does(transaction, transaction.fence(None, NOW)).producer_epoch == 5


# --- a new epoch for each transaction (KIP-890) ---------------------------------------------------------------


def bump(transaction: Transaction, who: Expected, commit: bool, new_id: int = 8) -> Expected | ErrorCode:
    """The markers are written at once."""
    transit = transaction.end_with_bump(*who, commit, new_id, NOW + 9)
    if isinstance(transit, Transit):
        transaction.stored(transit)
        transaction.stored(transaction.complete(NOW + 10))
    elif transit:
        return transit
    return transaction.producer_id, transaction.producer_epoch


def test_each_end_gives_the_next_epoch_and_the_markers_have_it() -> None:
    transaction = known()
    for epoch, commit in ((0, True), (1, False), (2, True)):
        does(transaction, transaction.add_partitions(7, epoch, [A], NOW, EPOCH_VERSION))
        ended = does(transaction, transaction.end_with_bump(7, epoch, commit, None, NOW))
        assert (ended.producer_epoch, ended.last_producer_epoch, ended.client_version) == (epoch + 1, epoch, 2)
        does(transaction, transaction.complete(NOW))
        assert transaction.producer_epoch == epoch + 1
        assert transaction.add_partitions(7, epoch, [A], NOW, EPOCH_VERSION) is ErrorCode.PRODUCER_FENCED


def test_an_end_that_is_asked_for_again_is_answered_with_the_epoch_that_it_gave() -> None:
    for commit in (True, False):
        transaction = known(0, TransactionState.ONGOING, A)
        assert bump(transaction, (7, 0), commit) == (7, 1)
        assert bump(transaction, (7, 0), commit) == (7, 1)
        assert bump(transaction, (7, 0), not commit) is ErrorCode.INVALID_TXN_STATE
        does(transaction, transaction.add_partitions(7, 1, [A], NOW, EPOCH_VERSION))
        assert bump(transaction, (7, 0), commit) is ErrorCode.PRODUCER_FENCED, "the next transaction has begun"


def test_an_abort_without_a_transaction_gives_a_new_epoch_and_a_commit_nothing() -> None:
    for state in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        transaction = known(3, state)
        assert bump(transaction, (7, 3), True) is ErrorCode.INVALID_TXN_STATE
        assert bump(transaction, (7, 3), False) == (7, 4)
        assert transaction.start_ms == NOW + 9
        assert transaction.state is TransactionState.COMPLETE_ABORT


def test_an_end_whose_markers_are_on_their_way_is_only_for_who_asked_for_it() -> None:
    transaction = known(3, TransactionState.ONGOING, A)
    does(transaction, transaction.end_with_bump(7, 3, True, None, NOW))
    assert transaction.end_with_bump(7, 3, True, None, NOW) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert transaction.end_with_bump(7, 3, False, None, NOW) is ErrorCode.INVALID_TXN_STATE
    assert transaction.end_with_bump(7, 4, True, None, NOW) is ErrorCode.PRODUCER_FENCED
    assert transaction.add_partitions(7, 4, [A], NOW, EPOCH_VERSION) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_transaction_of_the_last_epoch_ends_with_another_producer_id() -> None:
    transaction = known(LAST_CLIENT_EPOCH, TransactionState.ONGOING, A)
    assert transaction.is_used_up
    ended = does(transaction, transaction.end_with_bump(7, LAST_CLIENT_EPOCH, True, 8, NOW))
    assert (ended.producer_id, ended.producer_epoch, ended.next_producer_id) == (7, MAX_PRODUCER_EPOCH, 8)
    assert not transaction.is_used_up, "nothing that may be asked for now needs another one"
    completed = does(transaction, transaction.complete(NOW))
    assert completed[1:4] == (8, 0, LAST_CLIENT_EPOCH)
    assert (completed.previous_producer_id, completed.next_producer_id) == (7, -1)
    assert bump(transaction, (7, LAST_CLIENT_EPOCH), True) == (8, 0), "asked again"
    assert bump(transaction, (7, LAST_CLIENT_EPOCH), False) is ErrorCode.INVALID_TXN_STATE
    assert init(transaction, (7, LAST_CLIENT_EPOCH)) == (8, 0)
    does(transaction, transaction.add_partitions(8, 0, [A], NOW, EPOCH_VERSION))
    assert bump(transaction, (7, LAST_CLIENT_EPOCH), True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_while_a_change_is_on_its_way_whoever_has_what_it_will_bring_waits() -> None:
    transaction = known(LAST_CLIENT_EPOCH, TransactionState.ONGOING, A)
    does(transaction, transaction.end_with_bump(7, LAST_CLIENT_EPOCH, True, 8, NOW))
    completing = transaction.complete(NOW)
    assert transaction.add_partitions(8, 0, [A], NOW, EPOCH_VERSION) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert transaction.end_with_bump(8, 0, False, None, NOW) is ErrorCode.CONCURRENT_TRANSACTIONS
    transaction.stored(completing)
    assert transaction.state is TransactionState.COMPLETE_COMMIT


def test_a_client_may_change_how_it_ends_transactions() -> None:
    transaction = known(0, TransactionState.ONGOING, A)
    assert bump(transaction, (7, 0), True) == (7, 1)
    does(transaction, transaction.add_partitions(7, 1, [A], NOW))
    assert does(transaction, transaction.end(7, 1, True, NOW)).client_version == FIRST_VERSION
    assert does(transaction, transaction.complete(NOW)).producer_epoch == 1
    assert transaction.end(7, 1, True, NOW) is ErrorCode.NONE


@pytest.mark.parametrize("expected", [None, (7, LAST_CLIENT_EPOCH)])
def test_a_producer_id_whose_epochs_are_used_up_is_replaced(expected: Expected | None) -> None:
    transaction = known(LAST_CLIENT_EPOCH - 1)
    assert not transaction.needs_producer_id(None)
    assert init(transaction) == (7, LAST_CLIENT_EPOCH)
    assert transaction.needs_producer_id(expected)
    assert init(transaction, expected) == (8, 0)
    again = init(transaction, (7, LAST_CLIENT_EPOCH))
    assert again == ((8, 0) if expected else ErrorCode.PRODUCER_FENCED)


def test_the_last_epoch_of_all_is_only_in_the_markers_of_an_abort() -> None:
    transaction = known(LAST_CLIENT_EPOCH, TransactionState.ONGOING, A)
    assert transaction.needs_producer_id(None) and transaction.needs_producer_id((7, 3))
    assert does(transaction, transaction.fence(8, NOW)).producer_epoch == MAX_PRODUCER_EPOCH
    does(transaction, transaction.complete(NOW))
    assert init(transaction) == (8, 1)
    assert init(transaction, (7, LAST_CLIENT_EPOCH)) is ErrorCode.PRODUCER_FENCED


def test_an_id_that_was_left_with_the_last_epoch_of_all_goes_on() -> None:
    """An abort of Kafka 3.9 leaves an id so."""
    transaction = known(MAX_PRODUCER_EPOCH, TransactionState.COMPLETE_ABORT)
    assert init(transaction, (7, LAST_CLIENT_EPOCH)) is ErrorCode.PRODUCER_FENCED
    assert init(transaction) == (8, 0)
    transaction = known(MAX_PRODUCER_EPOCH, TransactionState.COMPLETE_ABORT)
    assert bump(transaction, (7, MAX_PRODUCER_EPOCH), False) == (8, 0)


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
    transaction.begun(500, 100)
    assert not transaction.has_timed_out(60_400)
    assert transaction.has_timed_out(60_401)
    does(transaction, transaction.end(7, 0, True, NOW))
    assert not transaction.has_timed_out(60_401)


@pytest.mark.parametrize("state", [state for state in TransactionState if state not in ("Dead", "PrepareEpochFence")])
def test_it_expires_only_at_rest(state: TransactionState) -> None:
    transaction = known(0, state, A)
    expires = state in (TransactionState.EMPTY, TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT)
    assert transaction.has_expired(NOW + 100, 100) is expires
    assert not transaction.has_expired(NOW + 99, 100)


def test_a_transaction_without_partitions_begins_too() -> None:
    transaction = known()
    assert does(transaction, transaction.add_partitions(7, 0, [], NOW)).state is TransactionState.ONGOING
