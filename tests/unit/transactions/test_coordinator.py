"""The transaction coordinator on partitions in memory: the answers to producers, and what is written when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import FIRST_VERSION
from kbroker.transactions.records import decode_value
from tests.kit.parts.shards import await_loaded
from tests.kit.parts.transactions import TransactionHome as Home
from tests.kit.threads import run_all

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
MakeHome = Callable[..., Home]


def written(home: Home) -> list[str]:
    """Return the states in the log, in order."""
    return [
        "tombstone" if value is None else str(decode_value("id", value).state) for _, value in home.replica.records()
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_written_before_it_is_answered_and_its_markers_before_it_is_complete(
    home: Home, commit: bool
) -> None:
    who = home.producer()
    assert home.add(who, A, B) is ErrorCode.NONE
    assert home.end(who, commit) is ErrorCode.NONE
    kind = "Commit" if commit else "Abort"
    assert written(home) == ["Empty", "Ongoing", f"Prepare{kind}", f"Complete{kind}"]
    assert home.markers.of(A) == home.markers.of(B) == [commit]
    ((_, marker), _) = home.markers.written
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (*who, 0)
    assert home.state() == f"Complete{kind}"
    assert home.add(who, A) is ErrorCode.NONE, "the next one begins"


def test_an_end_that_was_carried_out_is_answered_again(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    assert home.end(who) is ErrorCode.NONE
    assert home.end(who) is ErrorCode.NONE
    assert home.end(who, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert home.markers.of(A) == [True]


def test_errors_of_requests_that_are_of_nobody(home: Home) -> None:
    who = home.producer()
    for ask in (home.ask_add, lambda who, name="id": home.ask_end(who, True, name)):
        assert ask(who, name="") == [ErrorCode.INVALID_REQUEST]
        assert ask(who, name="other") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert ask((who[0] + 1, 0)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert ask((who[0], 1)) == [ErrorCode.PRODUCER_FENCED]
        assert ask((who[0], -1)) == [ErrorCode.PRODUCER_FENCED]
    assert home.end(who) is ErrorCode.INVALID_TXN_STATE, "there is no transaction"
    assert home.init("").error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_out_of_range_is_refused(home: Home, timeout_ms: int) -> None:
    assert home.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert home.init(timeout_ms=900_000).error is ErrorCode.NONE


def test_a_second_producer_aborts_what_the_first_has_open(home: Home) -> None:
    first = home.producer()
    home.add(first, A)
    assert home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert home.markers.of(A) == [False]
    second = home.producer()
    assert second == (first[0], first[1] + 2)
    assert home.add(first, A) is home.end(first) is ErrorCode.PRODUCER_FENCED


def test_whoever_comes_while_something_is_written_is_told_to_wait(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    home.replica.hold = True
    answers = home.ask_end(who)
    assert answers == []
    assert home.end(who) is home.add(who, B) is home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    home.replica.release()
    assert answers == [ErrorCode.NONE] and home.markers.of(A) == [True]
    assert home.end(who) is home.add(who, B) is ErrorCode.CONCURRENT_TRANSACTIONS, "the markers are not complete"
    home.replica.release()
    assert home.state() == "CompleteCommit"


def test_an_end_is_answered_while_its_markers_wait(home: Home) -> None:
    who = home.producer()
    home.add(who, A, B)
    home.markers.hold = True
    assert home.end(who) is ErrorCode.NONE
    assert home.state() == "PrepareCommit" and written(home)[-1] == "PrepareCommit"
    assert home.coordinator.markers_waiting() == 2
    assert home.end(who) is home.add(who, A) is home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    home.markers.release()
    assert home.state() == "CompleteCommit" and home.coordinator.markers_waiting() == 0


def test_a_transaction_without_partitions_needs_no_marker(home: Home) -> None:
    who = home.producer()
    assert home.add(who) is home.end(who) is ErrorCode.NONE
    assert home.state() == "CompleteCommit" and home.markers.written == []


def test_a_marker_that_cannot_be_written_is_tried_again(home: Home) -> None:
    who = home.producer()
    home.add(who, A, B)
    home.markers.refuse[A] = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert home.end(who) is ErrorCode.NONE
    assert home.coordinator.describe("id").partitions == {A}
    home.advance(1000)
    assert home.state() == "PrepareCommit"
    home.advance(1000)
    assert home.state() == "CompleteCommit"
    assert home.markers.of(A) == home.markers.of(B) == [True]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ],
)
def test_a_partition_that_needs_no_marker_keeps_nobody_waiting(home: Home, error: ErrorCode) -> None:
    who = home.producer()
    home.add(who, A, B)
    home.markers.refuse[A] = [error]
    home.end(who)
    assert home.state() == "CompleteCommit" and home.markers.of(B) == [True]


def test_a_coordinator_that_is_fenced_in_a_partition_leaves_the_rest_to_the_newer_one(home: Home) -> None:
    who = home.producer()
    home.add(who, A, B)
    home.markers.refuse[A] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    home.end(who)
    home.advance(10_000)
    assert home.state() == "PrepareCommit" and home.markers.of(A) == []


def test_a_completion_that_cannot_be_written_is_tried_again(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    home.markers.hold = True
    home.end(who)
    home.replica.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    home.markers.release()
    assert home.state() == "PrepareCommit"
    assert home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    home.replica.refuse = None
    home.advance(1000)
    assert home.state() == "CompleteCommit" and home.markers.of(A) == [True]


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_a_change_that_the_log_refuses_did_not_happen(home: Home, refusal: ErrorCode, told: ErrorCode) -> None:
    who = home.producer()
    home.add(who, A)
    home.replica.refuse = refusal
    assert home.init("new").error is told
    assert home.add(who, B) is home.end(who) is told
    assert home.state() == "Ongoing" and home.coordinator.describe("id").partitions == {A}
    assert home.init().error is told, "the fence of the open transaction"
    home.replica.refuse = None
    assert home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert home.end(who) is ErrorCode.PRODUCER_FENCED
    assert home.producer() == (who[0], who[1] + 2), "one epoch for the fence, however often it was tried"
    assert home.init("new").producer_epoch == 0


@pytest.mark.parametrize("late", [False, True])
def test_an_error_at_any_append_leaves_a_producer_that_can_go_on(make_home: MakeHome, late: bool) -> None:
    """Whichever append of a transaction fails, refused at once or later: a retry ends the transaction as it should."""
    for failing in range(8):
        home = make_home()
        home.fail_append(failing, late)
        home.until_done(lambda: home.init().error)  # noqa: B023
        described = home.coordinator.describe("id")
        who = described.producer_id, described.producer_epoch
        for commit in (True, False):
            home.until_done(partial(home.add, who, A))
            home.until_done(partial(home.end, who, commit))
        home.advance(1000)
        assert home.state() == "CompleteAbort" and home.markers.of(A) == [True, False]
        assert home.retried == int(failing < 6), failing


def test_a_coordinator_that_starts_again_at_any_point_finds_the_transaction_as_it_was(make_home: MakeHome) -> None:
    for commit in (True, False):
        whole = make_home()
        who = whole.producer()
        whole.add(who, A)
        whole.add(who, B)
        whole.end(who, commit)
        batches = whole.replica.batches
        assert len(batches) == 5
        kind = "Commit" if commit else "Abort"
        found = ["TRANSACTIONAL_ID_NOT_FOUND", "Empty", "Ongoing", "Ongoing", f"Complete{kind}", f"Complete{kind}"]
        for count in range(len(batches) + 1):
            home = make_home()
            for batch in batches[:count]:
                home.replica.put(batch)
            home.replica.leader_epoch = 3
            home.restart()
            assert home.state() == found[count]
            described = home.coordinator.describe("id")
            if count:
                assert (described.producer_id, described.producer_epoch, described.timeout_ms) == (*who, 60_000)
            if count in (2, 3):
                assert described.partitions == {A} | ({B} if count == 3 else set())
                assert home.end(who, commit) is ErrorCode.NONE
            # Prepare* in the log: the markers again, in the new coordinator's epoch; Complete*: no more of them.
            expected = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 0}[count]
            assert len(home.markers.written) == expected
            assert {marker.commit for _, marker in home.markers.written} <= {commit}
            assert {marker.coordinator_epoch for _, marker in home.markers.written} <= {3}


def test_a_restart_in_the_middle_of_the_markers_writes_all_of_them_again(home: Home) -> None:
    who = home.producer()
    home.add(who, A, B)
    home.markers.refuse[A] = [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    home.end(who)
    home.restart()
    assert home.state() == "PrepareCommit" and home.markers.of(B) == [True, True]
    assert home.end(who) is ErrorCode.CONCURRENT_TRANSACTIONS
    home.advance(1000)
    assert home.state() == "CompleteCommit" and home.markers.of(A) == [True]


def test_answers_that_come_after_the_end_of_the_coordinator_change_nothing(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    home.replica.hold = True
    answers = home.ask_end(who)
    home.coordinator.stop()
    home.replica.release()
    assert answers == [ErrorCode.NOT_COORDINATOR] and home.markers.written == []
    assert home.end(who) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    home.replica.hold = False
    home.start()
    assert home.state() == "CompleteCommit" and home.markers.of(A) == [True], "what was in the log counts"


def test_markers_that_are_done_after_the_end_of_the_coordinator_complete_nothing(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    home.markers.hold = True
    home.end(who)
    home.coordinator.shards.resign(0)
    home.markers.release()
    assert written(home)[-1] == "PrepareCommit"


def test_a_new_leader_epoch_loads_the_partition_again(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    home.replica.lead_again(4)
    assert home.end(who) is ErrorCode.NOT_COORDINATOR, "it writes in an epoch that is over"
    home.coordinator.shards.lead(0)
    home.settle()
    assert home.end(who) is ErrorCode.NONE
    assert home.markers.written[0][1].coordinator_epoch == 4


def test_a_producer_goes_on_with_its_epoch_after_a_restart(home: Home) -> None:
    who = home.producer()
    bumped = home.init(expected=who)
    assert (bumped.producer_id, bumped.producer_epoch) == (who[0], who[1] + 1)
    assert home.init(expected=who) == bumped
    home.restart()
    assert home.init(expected=(who[0], who[1] + 1)).producer_epoch == who[1] + 2
    assert home.init(expected=who).error is ErrorCode.PRODUCER_FENCED


def test_an_id_whose_epochs_are_used_up_gets_another_producer_id(home: Home) -> None:
    who = home.producer()
    home.coordinator.shards._shards[0].transactions["id"].producer_epoch = 32765
    assert home.producer() == (who[0], 32766)
    home.ids_exhausted = True
    assert home.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    home.ids_exhausted = False
    assert home.producer() == (who[0] + 1, 0)


def test_transactions_that_are_open_for_too_long_are_aborted(home: Home) -> None:
    slow, quick = home.producer("slow", 30_000), home.producer("quick", 5_000)
    home.add(slow, A, name="slow")
    home.add(quick, B, name="quick")
    home.advance(10_000)
    assert (home.state("slow"), home.state("quick")) == ("Ongoing", "CompleteAbort")
    assert home.markers.of(B) == [False] and home.coordinator.aborted_by_timeout == 1
    assert home.end(quick, name="quick") is ErrorCode.PRODUCER_FENCED
    assert home.init("quick", expected=quick)[1:] == (quick[0], quick[1] + 1), "nobody else has come"
    assert home.end(slow, name="slow") is ErrorCode.NONE
    home.advance(100_000)
    assert home.coordinator.aborted_by_timeout == 1


def test_an_abort_that_cannot_be_written_is_tried_at_the_next_look(home: Home) -> None:
    who = home.producer(timeout_ms=5_000)
    home.add(who, A)
    home.replica.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    home.advance(10_000)
    assert home.state() == "Ongoing" and home.coordinator.aborted_by_timeout == 0
    home.replica.refuse = None
    home.advance(10_000)
    assert home.state() == "CompleteAbort" and home.coordinator.aborted_by_timeout == 1
    assert home.markers.written[0][1].producer_epoch == who[1] + 1


def test_what_fails_again_and_again_is_logged_once(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    who = home.producer(timeout_ms=5_000)
    home.add(who, A)
    for _ in range(2):
        home.replica.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        for _ in range(5):
            home.advance(10_000)
        home.replica.refuse = None
        home.markers.refuse = {A: [ErrorCode.NOT_ENOUGH_REPLICAS] * 3}
        for _ in range(5):
            home.advance(10_000)
        assert home.state() == "CompleteAbort"
        told = [record.message for record in caplog.records]
        assert told == [
            "transactional id 'id' could not become PrepareAbort: NOT_ENOUGH_REPLICAS",
            f"the marker of transactional id 'id' for {A} is tried until it is written: NOT_ENOUGH_REPLICAS",
        ]
        caplog.clear()
        home.add(home.producer(timeout_ms=5_000), A)


@pytest.mark.parametrize("set_by_ms", [-86_400_000, -3_600_000, 3_600_000, 86_400_000])
def test_a_transaction_is_as_old_as_it_is_whatever_the_clock_is_set_to(home: Home, set_by_ms: int) -> None:
    who = home.producer(timeout_ms=15_000)
    home.add(who, A)
    home.clock.set_by_ms = set_by_ms
    home.advance(10_000)
    assert home.state() == "Ongoing"
    home.advance(10_000)
    assert home.state() == "CompleteAbort"


def test_a_transaction_that_began_in_the_future_gets_its_whole_time_after_a_restart(home: Home) -> None:
    """The clock was wrong, and was set back: the log has the only record of when the transaction began."""
    who = home.producer(timeout_ms=15_000)
    home.add(who, A)
    home.clock.set_by_ms = -3_600_000
    home.restart()
    home.advance(10_000)
    assert home.state() == "Ongoing"
    home.advance(10_000)
    assert home.state() == "CompleteAbort"


def test_a_transaction_that_was_open_at_the_restart_times_out_too(home: Home) -> None:
    who = home.producer(timeout_ms=5_000)
    home.add(who, A)
    home.restart()
    home.advance(10_000)
    assert home.state() == "CompleteAbort" and home.markers.of(A) == [False]


def test_ids_that_nobody_uses_expire(make_home: MakeHome) -> None:
    home = make_home(id_expiration_ms=50_000, expiration_interval_ms=10_000)
    idle, busy = home.producer("idle"), home.producer("busy", 900_000)
    home.add(idle, A, name="idle")
    home.end(idle, name="idle")
    home.add(busy, A, name="busy")
    home.advance(60_000)
    assert (home.state("idle"), home.state("busy")) == ("TRANSACTIONAL_ID_NOT_FOUND", "Ongoing")
    assert home.add(idle, A, name="idle") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    home.restart()
    assert (home.state("idle"), home.state("busy")) == ("TRANSACTIONAL_ID_NOT_FOUND", "Ongoing")
    assert home.producer("idle") == (home.next_id, 0), "as if it was never there"


def test_an_id_whose_tombstone_cannot_be_written_stays(make_home: MakeHome) -> None:
    home = make_home(id_expiration_ms=50_000, expiration_interval_ms=60_000)
    who = home.producer()
    home.replica.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    home.advance(60_000)
    home.replica.refuse = None
    assert home.add(who, A) is ErrorCode.NONE
    home.end(who)
    home.replica.hold = True
    home.advance(60_000)
    assert home.add(who, A) is home.init().error is ErrorCode.CONCURRENT_TRANSACTIONS, "it is being removed"
    home.replica.release()
    assert home.state() == "TRANSACTIONAL_ID_NOT_FOUND"


def test_verification_says_which_partitions_the_open_transaction_has(home: Home) -> None:
    who = home.producer()
    verify = home.coordinator.verify
    assert verify("id", *who, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}
    home.replica.hold = True
    adding = home.ask_add(who, A)
    assert verify("id", *who, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}, "not in the log yet"
    home.replica.release()
    assert adding == [ErrorCode.NONE]
    assert verify("id", *who, [A, B]) == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify("id", who[0] + 1, 0, [A]) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify("id", who[0], 5, [A]) == {A: ErrorCode.PRODUCER_FENCED}
    assert verify("other", *who, [A]) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify("", *who, [A]) == {A: ErrorCode.INVALID_REQUEST}
    home.ask_end(who)
    assert verify("id", *who, [A]) == {A: ErrorCode.NONE}
    home.replica.release()
    assert verify("id", *who, [A]) == {A: ErrorCode.CONCURRENT_TRANSACTIONS}
    home.coordinator.stop()
    assert verify("id", *who, [A]) == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_ids_are_listed_by_producer_state_and_age(home: Home) -> None:
    first, second = home.producer("first"), home.producer("second")
    home.add(first, A, name="first")
    home.advance(2_000)
    home.add(second, A, name="second")

    def names(*given: object) -> set[str]:
        error, listed, _ = home.coordinator.list_transactions(*given)  # type: ignore[arg-type]
        assert error is ErrorCode.NONE
        return {each.transactional_id for each in listed}

    assert names() == {"first", "second"}
    assert names([first[0]]) == {"first"}
    assert names([], ["Empty"]) == set()
    assert names([], ["Ongoing", "Empty"]) == {"first", "second"}
    assert names([], [], 1_000) == {"first"}
    assert names([], [], 2_000) == set(), "longer than, not as long as"
    assert home.coordinator.list_transactions([], ["ongoing", "Ongoing"])[2] == ["ongoing"]
    home.coordinator.stop()
    assert home.coordinator.list_transactions()[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_transactions_are_counted_by_state(home: Home) -> None:
    home.producer("a")
    home.add(home.producer("b"), A, name="b")
    counts = home.coordinator.transaction_counts()
    assert (counts["Empty"], counts["Ongoing"], counts["CompleteCommit"]) == (1, 1, 0)


def test_the_topic_is_made_for_the_first_id(make_home: MakeHome) -> None:
    home = make_home(partitions=4, exists=False)
    assert not home.coordinator.shards.is_open_for("id")
    assert home.init().error is ErrorCode.NOT_COORDINATOR
    home.topic.cannot_be_created = True
    assert home.coordinator.shards.open_for("id") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    home.topic.cannot_be_created = False
    assert home.coordinator.shards.open_for("id") is ErrorCode.NONE
    assert home.coordinator.shards.is_open_for("id")
    assert home.init().error is ErrorCode.NONE


def test_a_partition_that_cannot_be_read_is_tried_again_when_it_is_asked_for(home: Home) -> None:
    home.producer()
    home.replica.fail_reads = True
    home.restart()
    home.replica.fail_reads = False
    assert home.coordinator.shards.open_for("id") is ErrorCode.NONE
    await_loaded(home.coordinator.shards)
    assert home.state() == "Empty"


def test_ids_are_in_the_partition_that_kafka_puts_them_in(make_home: MakeHome) -> None:
    home = make_home(partitions=50)
    assert home.coordinator.shards.partition_for("hello") == 99162322 % 50, "String.hashCode"
    assert home.coordinator.shards.partition_for("") == 0


def test_many_threads_on_few_ids_get_one_answer_each(make_home: MakeHome) -> None:
    home = make_home(partitions=2)
    names = ["a", "b", "c"]
    owners = {name: home.producer(name) for name in names}

    def work(seed: int) -> None:
        for step in range(120):
            name = names[(seed + step) % 3]
            who = owners[name]
            kind = (seed * 7 + step) % 5
            if kind < 2:
                assert len(home.ask_add(who, A, name=name)) == 1
            elif kind < 4:
                assert len(home.ask_end(who, step % 2 == 0, name)) == 1
            else:
                (answer,) = home.ask_init(name)
                if not answer.error:
                    owners[name] = answer.producer_id, answer.producer_epoch

    run_all(*(partial(work, seed) for seed in range(6)))
    home.markers.written.clear()
    for name in names:
        for _ in range(3):
            answer = home.init(name)
            if not answer.error:
                break
        who = answer.producer_id, answer.producer_epoch
        assert home.add(who, A, name=name) is home.end(who, name=name) is ErrorCode.NONE
    before = {name: home.coordinator.describe(name) for name in names}
    home.restart()
    assert {name: home.coordinator.describe(name) for name in names} == before


def test_there_is_room_for_so_many_ids(make_home: Callable[..., Home]) -> None:
    home = make_home(most_ids=2)
    asked = [("a", "x"), ("b", "y"), ("c", "z"), ("a", "z")]
    assert [home.init(name, host=host).error for name, host in asked] == [0, 0, ErrorCode.POLICY_VIOLATION, 0]


def test_one_host_makes_half_of_the_ids_and_gets_them_back_when_they_expire(
    make_home: Callable[..., Home], caplog: pytest.LogCaptureFixture
) -> None:
    home = make_home(most_ids=4)
    told = [home.init(name, host="x").error for name in ("a", "b", "c", "a")]
    assert told == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert "x has made" in caplog.text and "kbroker.transactional.ids.max" in caplog.text
    assert home.init("d", host="y").error == 0
    home.advance(home.coordinator.options.id_expiration_ms + home.coordinator.options.expiration_interval_ms)
    assert [home.init(name, host="x").error for name in ("c", "e", "f")] == [0, 0, ErrorCode.POLICY_VIOLATION]
    home.restart()
    assert [home.init(name, host="x").error for name in ("f", "g", "h")] == [0, 0, ErrorCode.POLICY_VIOLATION]


def test_a_client_of_version_1_may_begin_when_the_markers_before_are_written(home: Home) -> None:
    who = home.producer()
    home.add(who, A)
    home.markers.hold = True
    assert home.end(who) is ErrorCode.NONE
    answers: list[ErrorCode] = []
    home.coordinator.add_when_ended("id", *who, [A], answers.append, FIRST_VERSION)
    assert answers == []
    home.markers.release()
    assert answers == [ErrorCode.NONE] and home.state() == "Ongoing"
    assert home.end(who) is ErrorCode.NONE
    home.coordinator.add_when_ended("id", *who, [A], answers.append, FIRST_VERSION)
    home.advance(home.options.add_wait_ms)
    assert answers == [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS], "it waits for a while only"
