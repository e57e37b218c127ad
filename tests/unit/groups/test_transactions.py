"""Offsets in transactions: pending until the marker, checked like members' commits, and the same after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker.errors import ErrorCode, StorageFailed
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.protocol.records import ControlType, read_batches
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.state_log.state_partition import Producer
from tests.kit.logs.home import LogHome
from tests.kit.models.offsets import Commit, Marker, Removal, known_after
from tests.kit.parts.replica import MemoryOffsetsTopic
from tests.kit.wire.batches import encode_control_batch

from .conftest import Home, OneLog, subscription

P0, P1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)
PRODUCER = Producer(7, 0)
DAY = 24 * 3_600_000

Answer = tuple[ErrorCode, frozenset[TopicPartition]]


def commit(
    home: Home, offsets: Mapping[TopicPartition, int], group_id: str = "g", producer: Producer = PRODUCER,
    generation: int = -1, member_id: str = "", instance_id: str | None = None, metadata: str = "",
    verify: Callable[[TopicPartition], ErrorCode] = lambda _: ErrorCode.NONE,
) -> list[Answer]:  # fmt: skip
    """Send a TxnOffsetCommit."""
    answers: list[Answer] = []
    given = {p: CommittedOffset(offset, -1, metadata, home.clock.wall_ms()) for p, offset in offsets.items()}
    home.coordinator.offsets.commit_transactional(
        group_id, producer, generation, member_id, instance_id, given,
        lambda partition, asked: asked(verify(partition)),
        lambda error, long: answers.append((error, long)),
    )  # fmt: skip
    return answers


def write_marker(home: Home, is_commit: bool, group_id: str = "g", producer: Producer = PRODUCER) -> int:
    """Write a marker into the group's partition and return its offset. The coordinator is not told."""
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    batch = encode_control_batch(
        kind, 1, producer_id=producer.producer_id, producer_epoch=producer.epoch, coordinator_epoch=0
    )
    return home.replica_of(group_id).put(batch)


def end(home: Home, is_commit: bool, group_id: str = "g", producer: Producer = PRODUCER) -> None:
    marker_offset = write_marker(home, is_commit, group_id, producer)
    partition_id = home.coordinator.shards.partition_for(group_id)
    home.coordinator.offsets.end_transaction(partition_id, producer.producer_id, is_commit, marker_offset)


def stable(home: Home, *partitions: TopicPartition, group_id: str = "g") -> list[int | str]:
    """Return what a consumer that wants stable offsets is told: offsets, or names of errors."""
    _, fetched = home.coordinator.offsets.fetch(group_id, partitions, require_stable=True)
    return [one.error.name if one.error else one.offset for one in fetched]


DONE = [(ErrorCode.NONE, frozenset[TopicPartition]())]


# --- what counts when ------------------------------------------------------------------------------------------
def test_offsets_count_when_the_transaction_is_committed(home: Home) -> None:
    home.commit({P0: 1})
    assert commit(home, {P0: 5, P1: 6}) == DONE
    assert home.fetch("g", P0, P1) == {"t-0": 1, "t-1": -1}
    assert stable(home, P0, P1, OTHER) == ["UNSTABLE_OFFSET_COMMIT", "UNSTABLE_OFFSET_COMMIT", -1]
    end(home, True)
    assert stable(home, P0, P1) == [5, 6]


def test_an_aborted_transaction_leaves_what_was_there(home: Home) -> None:
    home.commit({P0: 1})
    commit(home, {P0: 5, P1: 6})
    end(home, False)
    assert stable(home, P0, P1) == [1, -1]


def test_a_marker_ends_the_offsets_of_its_producer_in_all_groups_of_the_partition(make_home: type[Home]) -> None:
    home = make_home(MemoryOffsetsTopic(1))
    for group_id in ("g", "h"):
        commit(home, {P0: 5}, group_id)
    commit(home, {P0: 6}, "i", Producer(8, 0))
    end(home, True)
    assert [stable(home, P0, group_id=group_id) for group_id in "ghi"] == [[5], [5], ["UNSTABLE_OFFSET_COMMIT"]]


def test_a_marker_in_another_partition_ends_nothing_here(home: Home) -> None:
    commit(home, {P0: 5})
    mine = home.coordinator.shards.partition_for("g")
    for partition_id in range(4):
        if partition_id != mine:
            home.coordinator.offsets.end_transaction(partition_id, PRODUCER.producer_id, True)
    home.coordinator.offsets.end_transaction(99, PRODUCER.producer_id, True)
    assert stable(home, P0) == ["UNSTABLE_OFFSET_COMMIT"]
    home.coordinator.offsets.end_transaction(mine, PRODUCER.producer_id, True)
    assert stable(home, P0) == [5]


def test_a_marker_that_is_told_late_does_not_end_the_next_transaction(home: Home) -> None:
    commit(home, {P0: 5, P1: 5})
    marker_offset = write_marker(home, True)
    commit(home, {P0: 9})
    for _ in range(2):
        home.coordinator.offsets.end_transaction(home.coordinator.shards.partition_for("g"), 7, True, marker_offset)
        assert stable(home, P0, P1) == ["UNSTABLE_OFFSET_COMMIT", 5]
    end(home, True)
    assert stable(home, P0, P1) == [9, 5]


@pytest.mark.parametrize(("is_commit", "offset"), [(True, 5), (False, -1)])
def test_a_marker_ends_what_is_not_durable_yet(home: Home, is_commit: bool, offset: int) -> None:
    home.replica_of("g").hold = True
    answers = commit(home, {P0: 5})
    end(home, is_commit)
    assert answers == [] and stable(home, P0) == ["UNSTABLE_OFFSET_COMMIT"]
    home.replica_of("g").release()
    assert answers == DONE and stable(home, P0) == [offset]


def test_what_the_log_refuses_is_not_pending(home: Home) -> None:
    home.replica_of("g").refuse = ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit(home, {P0: 5}) == [(ErrorCode.INVALID_PRODUCER_EPOCH, frozenset())]
    assert stable(home, P0) == [-1]
    home.replica_of("g").refuse = ErrorCode.KAFKA_STORAGE_ERROR
    assert commit(home, {P0: 5}) == [(ErrorCode.NOT_COORDINATOR, frozenset())]
    assert all(shard._in_transaction == {} and shard.groups == {} for shard in home.coordinator.shards.active())


def test_records_are_of_the_producers_transaction(home: Home) -> None:
    commit(home, {P0: 5, P1: 6}, producer=Producer(2**40, 3))
    (batch,) = read_batches(home.replica_of("g").batches[0])
    info = batch.info
    assert (info.producer_id, info.producer_epoch, info.base_sequence, info.record_count) == (2**40, 3, 0, 2)
    assert info.is_transactional and not info.is_control


# --- who may ---------------------------------------------------------------------------------------------------
def test_zombies_of_an_old_generation_are_refused(home: Home) -> None:
    joined = home.form(instance_id="i")
    me = {"member_id": joined.member_id, "instance_id": "i"}
    refusals = [
        commit(home, {P0: 5}, generation=0, **me),
        commit(home, {P0: 5}, generation=2, **me),
        commit(home, {P0: 5}, generation=1, member_id="stranger"),
        commit(home, {P0: 5}, generation=1, member_id="stranger", instance_id="i"),
        commit(home, {P0: 5}, generation=1, member_id=joined.member_id, instance_id="other"),
    ]
    assert [answers[0][0].name for answers in refusals] == [
        "ILLEGAL_GENERATION", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "UNKNOWN_MEMBER_ID",
    ]  # fmt: skip
    assert stable(home, P0) == [-1]
    assert commit(home, {P0: 5}, generation=1, **me) == DONE
    assert commit(home, {P0: 6}) == DONE, "producers before KIP-447 do not say who they are"


def test_the_member_of_a_group_that_is_not_there_is_unknown(home: Home) -> None:
    assert commit(home, {P0: 5}, generation=1, member_id="m") == [(ErrorCode.UNKNOWN_MEMBER_ID, frozenset())]
    assert commit(home, {P0: 5}, group_id="") == [(ErrorCode.INVALID_GROUP_ID, frozenset())]


def test_members_may_commit_in_the_middle_of_a_rebalance(home: Home) -> None:
    first = home.form()
    home.join()
    assert commit(home, {P0: 5}, generation=1, member_id=first.member_id) == DONE
    home.join(member_id=first.member_id)
    assert home.coordinator.describe("g").state == "CompletingRebalance"
    assert commit(home, {P0: 6}, generation=2, member_id=first.member_id) == DONE


def test_metadata_that_is_too_long_is_left_out(make_home: type[Home]) -> None:
    home = make_home(offset_metadata_max_bytes=3)
    assert commit(home, {P0: 5}, metadata="long") == [(ErrorCode.NONE, frozenset({P0}))]
    assert home.replica_of("g").batches == []
    assert commit(home, {P0: 5}, generation=4, member_id="m", metadata="long")[0] == (
        ErrorCode.UNKNOWN_MEMBER_ID, frozenset(),
    )  # fmt: skip


# --- verification (KIP-890) --------------------------------------------------------------------------------------
def test_the_coordinator_is_asked_once_for_a_transaction(home: Home) -> None:
    asked: list[TopicPartition] = []

    def verify(partition: TopicPartition) -> ErrorCode:
        asked.append(partition)
        assert not any(shard.lock._is_owned() for shard in home.coordinator.shards.active())  # type: ignore[attr-defined]
        return ErrorCode.NONE

    for offset in range(3):
        assert commit(home, {P0: offset}, verify=verify) == DONE
    end(home, True)
    commit(home, {P0: 9}, verify=verify)
    assert asked == [TopicPartition(GROUP_OFFSETS_TOPIC, home.coordinator.shards.partition_for("g"))] * 2


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_the_coordinator_says_of_the_transaction_is_told_first(
    home: Home, said: ErrorCode, told: ErrorCode
) -> None:
    answers = commit(home, {P0: 5}, generation=3, member_id="m", verify=lambda _: said)
    assert answers == [(told, frozenset())] and home.replica_of("g").batches == []


def test_what_was_verified_before_a_marker_is_not_written_behind_it(home: Home) -> None:
    def verify(_: TopicPartition) -> ErrorCode:
        end(home, False)  # the transaction times out
        return ErrorCode.NONE

    assert commit(home, {P0: 5}, verify=verify) == [(ErrorCode.INVALID_TXN_STATE, frozenset())]
    assert len(home.replica_of("g").batches) == 1 and stable(home, P0) == [-1]


def test_a_marker_of_somebody_else_takes_no_verification_away(home: Home) -> None:
    def verify(_: TopicPartition) -> ErrorCode:
        end(home, False, producer=Producer(8, 0))
        return ErrorCode.NONE

    assert commit(home, {P0: 5}, verify=verify) == DONE


def test_what_the_log_says_of_the_producer_is_told_at_once(home: Home) -> None:
    def refuse(producer_id: int, producer_epoch: int, *, adds: bool) -> int:
        raise StorageFailed("the disk is gone")

    home.replica_of("g").verify = refuse  # type: ignore[method-assign]
    assert commit(home, {P0: 5}, verify=lambda _: pytest.fail("asked")) == [(ErrorCode.NOT_COORDINATOR, frozenset())]


def test_a_coordinator_that_went_away_meanwhile_writes_nothing(home: Home) -> None:
    def verify(_: TopicPartition) -> ErrorCode:
        home.coordinator.shards.resign(home.coordinator.shards.partition_for("g"))
        return ErrorCode.NONE

    assert commit(home, {P0: 5}, verify=verify) == [(ErrorCode.NOT_COORDINATOR, frozenset())]


def test_a_producer_without_an_id_is_asked_for_too(home: Home) -> None:
    for producer in (Producer(-1, 0), Producer(7, -1), Producer(-1, -1)):
        answers = commit(home, {P0: 5}, producer=producer, verify=lambda _: ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        assert answers == [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, frozenset())]
    assert home.replica_of("g").batches == []


# --- removal and expiry ------------------------------------------------------------------------------------------
def test_deleted_offsets_do_not_come_back_with_the_marker(home: Home) -> None:
    commit(home, {P0: 5, P1: 6})
    assert home.coordinator.offsets.delete("g", [P0]) == (ErrorCode.NONE, {P0: ErrorCode.NONE})
    end(home, True)
    assert stable(home, P0, P1) == [-1, 6]
    home.restart()
    assert stable(home, P0, P1) == [-1, 6]


def test_a_group_whose_only_pending_offset_is_deleted_stays_until_the_marker(home: Home) -> None:
    commit(home, {P0: 5})
    home.coordinator.offsets.delete("g", [P0])
    home.advance(8 * DAY)
    assert home.coordinator.describe("g").state == "Empty"
    assert stable(home, P0) == [-1]
    end(home, True)
    home.advance(8 * DAY)
    assert home.coordinator.describe("g").state == "Dead"


def test_a_deleted_group_does_not_come_back_with_the_marker(home: Home) -> None:
    commit(home, {P0: 5})
    assert home.coordinator.delete_group("g") is ErrorCode.NONE
    end(home, True)
    assert home.coordinator.describe("g").state == "Dead"
    home.restart()
    assert home.coordinator.describe("g").state == "Dead"


def test_offsets_of_deleted_topics_do_not_come_back_with_the_marker(home: Home) -> None:
    commit(home, {P0: 5, OTHER: 6})
    home.coordinator.offsets.forget_topics(["t"])
    end(home, True)
    assert stable(home, P0, OTHER) == [-1, 6]
    home.restart()
    assert stable(home, P0, OTHER) == [-1, 6]


def test_a_group_with_an_open_transaction_does_not_expire(home: Home) -> None:
    home.commit({P0: 1, P1: 2})
    commit(home, {P0: 5})
    home.advance(8 * DAY)
    assert home.fetch("g", P0, P1) == {"t-0": 1, "t-1": -1}, "nor what the transaction is about to replace"
    home.coordinator.offsets.delete("g", [P0])
    commit(home, {P0: 5})
    home.advance(8 * DAY)
    assert home.coordinator.describe("g").state == "Empty"
    end(home, False)
    home.advance(8 * DAY)
    assert home.coordinator.describe("g").state == "Dead"


def test_members_that_are_subscribed_change_nothing_of_it(home: Home) -> None:
    joined = home.form(protocols={"range": subscription("t")})
    commit(home, {P0: 5}, generation=1, member_id=joined.member_id)
    _, errors = home.coordinator.offsets.delete("g", [P0])
    assert errors == {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert home.coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    end(home, True)
    assert stable(home, P0) == [5]


# --- restarts ----------------------------------------------------------------------------------------------------
def test_a_marker_that_comes_while_the_partition_is_loaded_is_not_lost(home: Home) -> None:
    commit(home, {P0: 5})
    partition_id = home.coordinator.shards.partition_for("g")
    home.coordinator.shards.resign(partition_id)
    loads: list[Callable[[], None]] = []
    home.coordinator.shards._loader.submit = loads.append  # type: ignore[method-assign]
    home.coordinator.shards.lead(partition_id)
    replica, offset = home.replica_of("g"), -1
    end_of_log = replica.log_end_offset
    offset = write_marker(home, True)
    home.coordinator.offsets.end_transaction(partition_id, 7, True, offset)
    replica.log_end_offset = end_of_log  # the replay was past it when the marker came
    loads[0]()
    replica.log_end_offset = offset + 1
    assert stable(home, P0) == [5]


def test_a_real_log_verifies_takes_and_keeps_transactions(tmp_path: Path) -> None:
    topic = OneLog(LogHome(tmp_path))
    home = Home(topic)
    asked: list[TopicPartition] = []

    def verify(partition: TopicPartition) -> ErrorCode:
        asked.append(partition)
        return ErrorCode.NONE

    def end_here(is_commit: bool, producer: Producer) -> None:
        ended = topic.log.append_marker(*producer, 0, commit=is_commit)
        home.coordinator.offsets.end_transaction(0, producer.producer_id, is_commit, ended.base_offset)

    for offset in range(3):
        assert commit(home, {P0: offset}, verify=verify) == DONE, "batches of one transaction have no sequence"
    end_here(True, PRODUCER)
    assert commit(home, {P0: 9, P1: 9}, verify=verify) == DONE
    assert len(asked) == 2 and stable(home, P0) == ["UNSTABLE_OFFSET_COMMIT"]
    assert topic.log.last_stable_offset == 4 and home.fetch("g", P0) == {"t-0": 2}
    assert commit(home, {P0: 7}, producer=Producer(7, -1)) == [(ErrorCode.INVALID_PRODUCER_EPOCH, frozenset())]

    home.coordinator.stop()
    topic.reopen()
    home.start()
    assert stable(home, P0) == ["UNSTABLE_OFFSET_COMMIT"] and home.fetch("g", P0) == {"t-0": 2}
    end_here(False, Producer(7, 1))
    assert stable(home, P0, P1) == [2, -1]
    assert commit(home, {P0: 7}) == [(ErrorCode.INVALID_PRODUCER_EPOCH, frozenset())], "the marker fences"

    def aborted_meanwhile(_: TopicPartition) -> ErrorCode:
        topic.log.append_marker(7, 1, 0, commit=False)
        return ErrorCode.NONE

    answers = commit(home, {P0: 7}, producer=Producer(7, 1), verify=aborted_meanwhile)
    assert answers == [(ErrorCode.INVALID_TXN_STATE, frozenset())] and stable(home, P0) == [2]


GROUPS = ["a", "b"]
PARTITIONS = [P0, P1, OTHER]
PRODUCERS = [Producer(7, 0), Producer(8, 0), Producer(9, 5)]
GROUP, PLACES = st.sampled_from(GROUPS), st.sets(st.sampled_from(PARTITIONS), min_size=1)


class OffsetsAgainstModel(RuleBasedStateMachine):
    """Commits, transactional commits, markers, deletions and restarts in any order, on a log that commits late."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Home(MemoryOffsetsTopic(1))
        self.events: list[Commit | Marker | Removal] = []
        self.untold: list[tuple[int, bool, int]] = []
        self.number = 0

    @property
    def replica(self):  # type: ignore[no-untyped-def]
        return self.home.replica_of("a")

    def offsets(self, places: set[TopicPartition]) -> dict[TopicPartition, int]:
        self.number += 1
        return dict.fromkeys(sorted(places), self.number)

    @rule(group_id=GROUP, places=PLACES)
    def commits(self, group_id: str, places: set[TopicPartition]) -> None:
        offsets = self.offsets(places)
        self.home.commit(offsets, group_id)
        self.events.append(Commit({(group_id, p): offset for p, offset in offsets.items()}))

    @rule(group_id=GROUP, places=PLACES, producer=st.sampled_from(PRODUCERS))
    def commits_in_a_transaction(self, group_id: str, places: set[TopicPartition], producer: Producer) -> None:
        if any(told[0] == producer.producer_id for told in self.untold):
            return  # its coordinator begins no transaction before it has told everybody of the last one's end
        offsets = self.offsets(places)
        commit(self.home, offsets, group_id, producer)
        self.events.append(Commit({(group_id, p): at for p, at in offsets.items()}, producer.producer_id))

    @rule(group_id=GROUP, places=PLACES, producer=st.sampled_from([None, *PRODUCERS]))
    def the_log_refuses(self, group_id: str, places: set[TopicPartition], producer: Producer | None) -> None:
        self.replica.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        if producer is None:
            self.home.commit(self.offsets(places), group_id)
        else:
            commit(self.home, self.offsets(places), group_id, producer)
        self.replica.refuse = None

    @rule(producer=st.sampled_from(PRODUCERS), is_commit=st.booleans(), at_once=st.booleans())
    def a_transaction_ends(self, producer: Producer, is_commit: bool, at_once: bool) -> None:
        offset = write_marker(self.home, is_commit, "a", producer)
        self.events.append(Marker(producer.producer_id, is_commit))
        self.untold.append((producer.producer_id, is_commit, offset))
        if at_once:
            self.markers_are_told(twice=False)

    @rule(twice=st.booleans())
    def markers_are_told(self, twice: bool) -> None:
        for told in self.untold * (1 + twice):
            self.home.coordinator.offsets.end_transaction(0, *told)
        self.untold = []

    @rule(group_id=GROUP, places=PLACES)
    def offsets_are_deleted(self, group_id: str, places: set[TopicPartition]) -> None:
        self.home.coordinator.offsets.delete(group_id, sorted(places))
        self.events.append(Removal(frozenset((group_id, p) for p in places)))

    @rule(group_id=GROUP)
    def a_group_is_deleted(self, group_id: str) -> None:
        self.home.coordinator.delete_group(group_id)
        self.events.append(Removal(frozenset((group_id, p) for p in PARTITIONS)))

    @rule()
    def a_topic_is_deleted(self) -> None:
        self.home.coordinator.offsets.forget_topics(["t"])
        self.events.append(Removal(frozenset((group_id, p) for group_id in GROUPS for p in (P0, P1))))

    @rule()
    def nothing_is_durable_at_once(self) -> None:
        self.replica.hold = True

    @precondition(lambda self: self.replica.hold)
    @rule()
    def all_is_durable(self) -> None:
        self.replica.hold = False
        self.replica.release()

    @rule()
    def restarts(self) -> None:
        self.replica.hold, self.replica.held = False, []
        self.untold = []
        self.home.restart()

    @invariant()
    def is_what_the_log_says(self) -> None:
        if self.untold or self.replica.held:
            return
        known = known_after(self.events)
        for group_id in GROUPS:
            wanted = {str(p): known.committed.get((group_id, p), -1) for p in PARTITIONS}
            assert self.home.fetch(group_id, *PARTITIONS) == wanted
            unstable = [p for p in PARTITIONS if (group_id, p) in known.unstable]
            told = stable(self.home, *PARTITIONS, group_id=group_id)
            assert [p for p, said in zip(PARTITIONS, told, strict=True) if said == "UNSTABLE_OFFSET_COMMIT"] == unstable

    def teardown(self) -> None:
        """Check that, once every transaction has ended, the index of open transactions is empty."""
        self.replica.hold = False
        self.replica.release()
        self.markers_are_told(twice=False)
        for producer in PRODUCERS:
            self.a_transaction_ends(producer, True, at_once=True)
        self.is_what_the_log_says()
        (shard,) = self.home.coordinator.shards.active()
        assert shard._in_transaction == {}
        self.restarts()
        self.is_what_the_log_says()


OffsetsAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOffsetsAgainstModel = OffsetsAgainstModel.TestCase
