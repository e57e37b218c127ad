"""The transaction coordinator with clients that get a new epoch for each transaction (KIP-890, part 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kbroker.config.transaction_definitions import TRANSACTIONS
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import EPOCH_VERSION, LAST_CLIENT_EPOCH, MAX_PRODUCER_EPOCH
from kbroker.transactions.answers import EndedTransaction
from kbroker.transactions.options import TransactionOptions
from kbroker.transactions.records import decode_value
from tests.kit.parts.transactions import TransactionHome as Home

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
MakeHome = Callable[..., Home]
Who = tuple[int, int]


def add(home: Home, who: Who, *partitions: TopicPartition) -> ErrorCode:
    return home.add(who, *partitions, version=EPOCH_VERSION)


def in_use(home: Home) -> Who:
    described = home.coordinator.describe("id")
    return described.producer_id, described.producer_epoch


def used_up(home: Home) -> Who:
    """Return a producer with the last epoch of its id."""
    home.producer()
    home.coordinator.shards._shards[0].transactions["id"].producer_epoch = LAST_CLIENT_EPOCH - 1
    return home.producer()


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_answers_the_epoch_of_the_next_transaction_and_its_markers_have_it(home: Home, commit: bool) -> None:
    who = home.producer()
    for _ in range(3):
        assert add(home, who, A) is ErrorCode.NONE
        ended = home.bump(who, commit)
        assert ended == (ErrorCode.NONE, who[0], who[1] + 1)
        marker = home.markers.written[-1][1]
        assert (marker[:2], marker.commit, marker.client_version) == (ended[1:], commit, EPOCH_VERSION)
        assert add(home, who, A) is ErrorCode.PRODUCER_FENCED, "it has a new epoch"
        assert home.bump(who, commit) == ended, "asked again"
        assert home.bump(who, not commit) == EndedTransaction(ErrorCode.INVALID_TXN_STATE)
        who = ended[1:]
    states = [(value.state, value.producer_epoch, value.client_version) for value in values(home)]
    kind = "Commit" if commit else "Abort"
    assert states[:4] == [("Empty", 0, 0), ("Ongoing", 0, 2), (f"Prepare{kind}", 1, 2), (f"Complete{kind}", 1, 2)]


@pytest.mark.parametrize("commit", [True, False])
def test_who_ends_a_transaction_of_version_2_without_a_new_epoch_waits_for_the_markers(
    home: Home, commit: bool
) -> None:
    """A client that finds out that a Kafka has joined, or not yet that the last one has gone."""
    who = home.producer()
    add(home, who, A, B)
    home.markers.hold = True
    for _ in range(2):
        told = home.end(who, commit)
        assert told is ErrorCode.CONCURRENT_TRANSACTIONS, "a marker would end the next one too"
    assert home.state() == ("PrepareCommit" if commit else "PrepareAbort")
    home.markers.release()
    assert home.end(who, commit) is ErrorCode.NONE and in_use(home) == who
    assert {marker.client_version for _, marker in home.markers.written} == {0}
    home.add(who, A)
    home.markers.hold = True
    assert home.end(who, commit) is ErrorCode.NONE, "it has asked for partitions, and will again"


def test_a_transaction_is_of_version_2_if_any_of_its_partitions_was_added_so(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    add(home, who, B)
    home.add(who, TopicPartition("c", 2))
    assert home.end(who) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert home.end(who) is ErrorCode.NONE
    home.add(who, A)
    assert home.end(who) is ErrorCode.NONE, "the next transaction is not"


def values(home: Home) -> list:  # type: ignore[type-arg]
    return [decode_value("id", value or b"") for _, value in home.replica.records()]


def test_an_abort_of_nothing_is_one(home: Home) -> None:
    who = home.producer()
    assert home.bump(who) == EndedTransaction(ErrorCode.INVALID_TXN_STATE)
    assert home.bump(who, False) == (ErrorCode.NONE, who[0], 1)
    assert home.bump((who[0], 1), False) == (ErrorCode.NONE, who[0], 2)
    assert home.state() == "CompleteAbort" and home.markers.written == []
    described = home.coordinator.describe("id")
    assert described.start_ms == home.clock.wall_ms()


def test_errors_of_requests_that_are_of_nobody(home: Home) -> None:
    who = home.producer()
    assert home.bump(who, name="").error is ErrorCode.INVALID_REQUEST
    assert home.bump(who, name="other").error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert home.bump((who[0] + 1, 0)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert home.bump((who[0], 1)).error is home.bump((who[0], -2)).error is ErrorCode.PRODUCER_FENCED
    assert home.bump((who[0], -1)).error is ErrorCode.PRODUCER_FENCED, "its transaction has not ended"
    home.coordinator.stop()
    assert home.bump(who).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_last_epoch_ends_with_another_producer_id(home: Home) -> None:
    who = used_up(home)
    assert not home.coordinator.is_used_up("other")
    add(home, who, A)
    assert home.coordinator.is_used_up("id")
    home.ids_exhausted = True
    assert home.bump(who).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert home.state() == "Ongoing"
    home.ids_exhausted = False
    ended = home.bump(who)
    assert ended == (ErrorCode.NONE, home.next_id, 0)
    assert home.markers.written[-1][1][:2] == (who[0], MAX_PRODUCER_EPOCH)
    assert home.bump(who) == ended
    home.restart()
    assert home.bump(who) == ended, "the id before is in the log"
    assert add(home, ended[1:], A) is ErrorCode.NONE
    assert home.bump(who).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert home.bump(ended[1:]) == (ErrorCode.NONE, ended[1], 1)


def test_whoever_has_the_next_producer_id_waits_until_the_one_before_is_complete(home: Home) -> None:
    who = used_up(home)
    add(home, who, A)
    home.markers.hold = True
    ended = home.bump(who)
    assert ended.error is ErrorCode.NONE
    assert add(home, ended[1:], A) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert home.bump(who).error is home.bump(ended[1:], False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    home.markers.release()
    assert add(home, ended[1:], A) is ErrorCode.NONE


def test_what_is_written_waits_for_the_markers_of_the_transaction_before(home: Home) -> None:
    who = home.producer()
    add(home, who, A)
    home.markers.hold = True
    who = home.bump(who)[1:]
    answers: list[ErrorCode] = []
    for partition in (A, B):
        home.coordinator.add_when_ended("id", *who, [partition], answers.append)
    assert answers == [] and add(home, who, A) is ErrorCode.CONCURRENT_TRANSACTIONS
    home.markers.hold = False
    home.markers.release()
    assert answers == [ErrorCode.NONE] * 2 and home.coordinator.describe("id").partitions == {A, B}
    home.advance(1000)
    assert len(answers) == 2


def test_how_long_it_waits_is_a_setting() -> None:
    settings = {setting.name: setting.default for setting in TRANSACTIONS}
    assert TransactionOptions.from_settings(settings) == TransactionOptions()
    changed = settings | {"add.partitions.to.txn.retry.backoff.max.ms": 7}
    assert TransactionOptions.from_settings(changed).add_wait_ms == 7


def test_what_is_written_does_not_wait_for_long(make_home: MakeHome) -> None:
    home = make_home(add_wait_ms=300)
    who = home.producer()
    add(home, who, A)
    home.markers.hold = True
    who = home.bump(who)[1:]
    answers: list[ErrorCode] = []
    home.coordinator.add_when_ended("id", *who, [A], answers.append)
    home.advance(299)
    assert answers == []
    home.advance(1)
    assert answers == [ErrorCode.CONCURRENT_TRANSACTIONS]
    home.markers.release()
    assert len(answers) == 1
    home.coordinator.add_when_ended("id", who[0], who[1] + 1, [A], answers.append)
    assert answers[1:] == [ErrorCode.PRODUCER_FENCED], "only that is waited for"


def test_an_abort_of_the_last_epoch_that_nobody_has_asked_for_brings_another_producer_id(home: Home) -> None:
    who = used_up(home)
    add(home, who, A)
    home.ids_exhausted = True
    home.advance(70_000)
    assert home.state() == "Ongoing"
    assert home.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    home.ids_exhausted = False
    home.advance(10_000)
    assert home.state() == "CompleteAbort" and in_use(home) == (home.next_id, 0)
    assert home.bump(who, False) == (ErrorCode.NONE, home.next_id, 0), "as if it had asked for that"


def test_who_was_fenced_stays_fenced(home: Home) -> None:
    first = home.producer()
    add(home, first, A)
    assert home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    second = home.producer()
    assert second == (first[0], first[1] + 2)
    assert add(home, first, A) is ErrorCode.PRODUCER_FENCED
    assert home.bump(first).error is home.bump(first, False).error is ErrorCode.PRODUCER_FENCED
    assert home.init(expected=first).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_does_not_know_how_it_ended_asks_for_an_epoch(home: Home) -> None:
    who = home.producer()
    add(home, who, A)
    ended = home.bump(who)
    assert home.init(expected=who)[1:] == ended[1:], "the one that it did not hear of"
    assert home.init(expected=ended[1:])[1:] == (who[0], who[1] + 2)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_an_error_at_any_append_leaves_a_producer_that_can_go_on(make_home: MakeHome, late: bool, used: bool) -> None:
    """Whichever append of two transactions fails, refused at once or later: a retry ends both as it should."""
    for failing in range(7):
        home = make_home()
        who = used_up(home) if used else home.producer()
        home.fail_append(failing, late)
        for commit in (True, False):
            home.until_done(partial(add, home, who, A))
            ends: list[EndedTransaction] = []

            def end(who: Who = who, commit: bool = commit, home: Home = home, ends: list = ends) -> ErrorCode:  # type: ignore[type-arg]
                ends.append(home.bump(who, commit))
                return ends[-1].error

            home.until_done(end)
            after = (home.next_id, 0) if used and commit else (who[0], who[1] + 1)
            assert ends[-1][1:] == after
            who = ends[-1][1:]
        home.advance(1000)
        assert home.state() == "CompleteAbort" and home.markers.of(A) == [True, False]
        assert home.retried == int(failing < 5), failing


@pytest.mark.parametrize("used", [False, True])
def test_a_coordinator_that_starts_again_at_any_point_goes_on_with_the_transaction(
    make_home: MakeHome, used: bool
) -> None:
    for commit in (True, False):
        whole = make_home()
        who = used_up(whole) if used else whole.producer()
        first = len(whole.replica.batches)
        add(whole, who, A)
        add(whole, who, B)
        ended = whole.bump(who, commit)
        batches = whole.replica.batches
        assert len(batches) == first + 4
        kind = "Commit" if commit else "Abort"
        for count in range(first, len(batches) + 1):
            home = make_home()
            home.next_id = whole.next_id - 1
            for batch in batches[:count]:
                home.replica.put(batch)
            home.replica.leader_epoch = 3
            home.restart()
            if count <= first + 2:  # not decided: the end that was lost is asked for
                assert in_use(home) == who
                assert add(home, who, A, B) is ErrorCode.NONE
                if not used:
                    home.next_id += 1
            assert home.bump(who, commit) == ended, (commit, count)
            assert home.state() == f"Complete{kind}" and in_use(home) == ended[1:]
            assert {marker.producer_epoch for _, marker in home.markers.written} <= {who[1] + 1}
            assert {marker.client_version for _, marker in home.markers.written} <= {EPOCH_VERSION}
            assert len(home.markers.written) == (0 if count == len(batches) else 2)


def test_an_id_that_an_older_broker_has_left_goes_on(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    assert home.end(who) is ErrorCode.NONE
    assert home.markers.written[-1][1].client_version == 0
    assert home.bump(who).error is ErrorCode.INVALID_TXN_STATE
    assert home.bump(who, False) == (ErrorCode.NONE, who[0], who[1] + 1)
