"""The consumer protocol's state machine: what members hear, and what holds whatever they and the log do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.consumer_group import ConsumerGroup
from kbroker.rules.consumer_group_member import (
    Beat,
    BeatAnswer,
    Change,
    EpochsByPartition,
    MemberState,
    ResolvedRegex,
    StoreChanges,
)
from kbroker.rules.consumer_group_state import ConsumerLimits
from kbroker.rules.group_state import NEVER, GroupState
from tests.kit.parts.consumer_members import Topics, partitions_of, topic_id

T = topic_id("t")


class Driver:
    """One group, its log a list; every change is applied as soon as it is appended."""

    def __init__(self, topics: Topics | None = None, **limits: Any):
        self.limits = ConsumerLimits(**limits)
        self.group = ConsumerGroup("g", self.limits)
        self.topics = topics or Topics(t=4)
        self.now_ms = 0
        self.set_by_ms = 0
        """How far somebody has set the wall clock."""
        self.log: list[list[Change]] = []

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> list[BeatAnswer]:
        for store in self.group.take_stores():
            if not error:
                self.log.append(store.changes)
                self.group.appended(store)
            self.group.stored(store, error, self.now_ms)
        return [answer for _, answer in self.group.take_answers()]

    def beat(self, member_id: str, epoch: int, **fields: Any) -> BeatAnswer:
        wall_ms = 10**9 + self.now_ms + self.set_by_ms
        self.group.beat(0, Beat(member_id, epoch, "c", "/h", **fields), self.topics, self.now_ms, wall_ms)
        (answer,) = self.settle()
        return answer

    def join(self, member_id: str, *topics: str, **fields: Any) -> BeatAnswer:
        given = {"rebalance_timeout_ms": 1000, "topics": topics or ("t",), "owned": {}, **fields}
        return self.beat(member_id, 0, **given)

    def error(self, member_id: str, epoch: int, **fields: Any) -> ErrorCode:
        with pytest.raises(ProtocolError) as raised:
            self.beat(member_id, epoch, **fields)
        assert self.group.take_stores() == []
        return raised.value.code

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        if self.group.wake_ms <= self.now_ms:
            self.group.advance(self.now_ms)
            assert self.settle() == []


def numbers(assignment: EpochsByPartition | None, of: bytes = T) -> list[int] | None:
    return None if assignment is None else sorted(assignment.get(of, {}))


@pytest.fixture
def driver() -> Driver:
    return Driver()


# --- members come and go -----------------------------------------------------------------------------------
def test_the_first_member_gets_everything_in_epoch_2(driver: Driver) -> None:
    answer = driver.join("a")
    assert (answer.error, answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == (0, "a", 2, 5000)
    assert numbers(answer.assignment) == [0, 1, 2, 3]
    assert driver.group.state is GroupState.STABLE


def test_a_partition_is_given_up_before_anybody_else_has_it(driver: Driver) -> None:
    driver.join("a")
    joined = driver.join("b")
    assert (joined.member_epoch, numbers(joined.assignment)) == (3, [])
    assert driver.group.state is GroupState.RECONCILING
    revoked = driver.beat("a", 2)
    assert (revoked.member_epoch, numbers(revoked.assignment)) == (2, [0, 1])
    assert driver.beat("b", 3).assignment is None, "a has not said that it gave up anything"
    assert driver.beat("a", 2, owned={T: frozenset({0, 1, 2})}).member_epoch == 2, "it still has one of them"
    assert driver.beat("a", 2, owned={T: frozenset({0, 1})}).member_epoch == 3
    assert numbers(driver.beat("b", 3).assignment) == [2, 3]
    assert driver.group.state is GroupState.STABLE


def test_a_heartbeat_that_changes_nothing_writes_nothing(driver: Driver) -> None:
    driver.join("a")
    written = len(driver.log)
    for owned in (None, {T: frozenset(range(4))}):
        assert driver.beat("a", 2, owned=owned) == BeatAnswer(ErrorCode.NONE, None, "a", 2, 5000, None)
    full = driver.beat("a", 2, owned={T: frozenset(range(4))}, topics=("t",), rebalance_timeout_ms=1000)
    assert numbers(full.assignment) == [0, 1, 2, 3], "who tells everything is told everything"
    assert len(driver.log) == written


def test_who_leaves_gives_its_partitions_to_the_others_at_once(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    assert driver.beat("a", -1) == BeatAnswer(ErrorCode.NONE, None, "a", -1)
    assert numbers(driver.beat("b", 3).assignment) == [0, 1, 2, 3]
    driver.beat("b", -1)
    assert driver.group.state is GroupState.EMPTY
    assert driver.error("b", 4) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_not_heard_of_is_put_out(driver: Driver) -> None:
    driver.join("a")
    driver.advance(30_000)
    driver.join("b")
    driver.advance(14_999)
    assert set(driver.group.members) == {"a", "b"}
    driver.advance(1)
    assert set(driver.group.members) == {"b"}
    assert numbers(driver.beat("b", 3).assignment) == [0, 1, 2, 3]


def test_who_does_not_give_up_its_partitions_in_time_is_put_out(driver: Driver) -> None:
    driver.join("a", rebalance_timeout_ms=700)
    driver.join("b")
    driver.beat("a", 2)
    driver.advance(699)
    driver.beat("a", 2)
    assert "a" in driver.group.members
    driver.advance(1)
    assert set(driver.group.members) == {"b"}
    assert driver.error("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_group_has_room_for_so_many_and_members_may_come_again() -> None:
    driver = Driver(max_size=1)
    driver.join("a")
    assert driver.error("b", 0, rebalance_timeout_ms=1, topics=("t",), owned={}) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.join("a").member_epoch == 2


# --- epochs ------------------------------------------------------------------------------------------------
def test_an_epoch_of_the_future_or_long_past_is_fenced(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a", 2)
    driver.beat("a", 2, owned={T: frozenset({0, 1})})
    assert driver.error("a", 4) is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.error("a", 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.error("a", 2) is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it has"
    assert driver.error("a", 2, owned={T: frozenset({0, 3})}) is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.beat("a", 2, owned={T: frozenset({0})}).member_epoch == 3, "the answer was lost"


def test_a_member_that_joins_again_is_told_all_that_it_has(driver: Driver) -> None:
    driver.join("a")
    again = driver.join("a")
    assert (again.member_epoch, numbers(again.assignment)) == (2, [0, 1, 2, 3])


def test_commits_are_taken_from_whoever_has_had_the_partition_since(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a", 2)
    driver.beat("a", 2, owned={T: frozenset({0, 1})})
    driver.beat("b", 3)
    group = driver.group
    assert group.check_commit(3, "a", None) is ErrorCode.NONE
    assert group.check_commit(2, "a", None) is ErrorCode.NONE
    assert group.check_partition(2, "a", T, 0) is ErrorCode.NONE, "it has had it since epoch 2"
    assert group.check_partition(2, "a", T, 2) is ErrorCode.STALE_MEMBER_EPOCH, "that is b's now"
    assert group.check_partition(2, "b", T, 2) is ErrorCode.STALE_MEMBER_EPOCH, "it has it since epoch 3"
    assert group.check_commit(4, "a", None) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.check_commit(3, "x", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_commit(-1, "", None) is ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"
    assert group.check_commit(-1, "", None, transactional=True) is ErrorCode.NONE
    assert group.check_commit(3, "a", None, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert group.check_fetch(None, -1) is ErrorCode.NONE
    assert group.check_fetch("a", 3) is ErrorCode.NONE
    assert group.check_fetch("a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.check_fetch("x", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ConsumerGroup("g", driver.limits).check_commit(-1, "", None) is ErrorCode.NONE


# --- static members ----------------------------------------------------------------------------------------
def test_a_static_member_comes_back_under_another_id_and_nothing_moves(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    driver.join("b", instance_id="j")
    driver.beat("a", 2)
    driver.beat("a", 2, owned={T: frozenset({0, 1})})
    driver.beat("b", 3)
    assert driver.error("a2", 0, instance_id="i", rebalance_timeout_ms=1, topics=("t",), owned={}) is (
        ErrorCode.UNRELEASED_INSTANCE_ID
    )
    assert driver.beat("a", -2, instance_id="i") == BeatAnswer(ErrorCode.NONE, None, "a", -2)
    epoch = driver.group.epoch
    back = driver.join("a2", instance_id="i")
    assert (back.member_epoch, numbers(back.assignment), driver.group.epoch) == (3, [0, 1], epoch)
    assert set(driver.group.members) == {"a2", "b"}
    assert driver.error("a", 3, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.error("a", -1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.error("a", -1, instance_id="k") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.beat("b", 3).assignment is None


def test_a_static_member_that_does_not_come_back_loses_what_it_had(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    driver.join("b")
    driver.beat("a", -2, instance_id="i")
    driver.advance(20_000)
    assert numbers(driver.beat("b", 3).assignment) is None
    driver.advance(30_000)
    assert numbers(driver.beat("b", 3).assignment) == [0, 1, 2, 3]


# --- subscriptions and topics ------------------------------------------------------------------------------
def test_a_topic_that_comes_or_grows_is_assigned_with_the_next_heartbeat(driver: Driver) -> None:
    assert numbers(driver.join("a", "t", "u").assignment, topic_id("u")) == []
    driver.topics = Topics(t=4, u=2)
    grown = driver.beat("a", 2)
    assert (grown.member_epoch, numbers(grown.assignment, topic_id("u"))) == (3, [0, 1])
    driver.topics = Topics(t=5, u=2, unrelated=9)
    assert numbers(driver.beat("a", 3).assignment) == [0, 1, 2, 3, 4]
    driver.topics = Topics(t=5, u=2)
    assert driver.beat("a", 4) == BeatAnswer(ErrorCode.NONE, None, "a", 4, 5000, None), "nothing of interest changed"


def test_a_topic_that_is_no_longer_wanted_is_given_up_at_once(driver: Driver) -> None:
    driver.topics = Topics(t=2, u=2)
    driver.join("a", "t", "u")
    changed = driver.beat("a", 2, topics=("u",))
    assert (numbers(changed.assignment), numbers(changed.assignment, topic_id("u"))) == ([], [0, 1])
    assert driver.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert driver.beat("a", 2, owned={topic_id("u"): frozenset({0, 1})}).member_epoch == 3


def test_the_assignor_is_the_one_that_most_ask_for(driver: Driver) -> None:
    driver.topics = Topics(t=3, u=3)
    driver.join("a", "t", "u", assignor="range")
    assert driver.group.assignor == "range"
    driver.join("b", "t", "u", assignor="uniform")
    driver.join("c", "t", "u", assignor="uniform")
    assert driver.group.assignor == "uniform"


def test_targets_are_made_no_more_often_than_is_set() -> None:
    driver = Driver(assignment_interval_ms=1000)
    assert numbers(driver.join("a").assignment) == [0, 1, 2, 3]
    joined = driver.join("b")
    assert (joined.member_epoch, numbers(joined.assignment), driver.group.state) == (2, [], GroupState.ASSIGNING)
    driver.advance(999)
    assert driver.beat("a", 2).assignment is None
    driver.advance(1)
    assert numbers(driver.beat("a", 2).assignment) == [0, 1]


def test_a_target_that_is_older_than_a_subscription_gives_nobody_what_it_does_not_want() -> None:
    driver = Driver(Topics(t=1, u=1, v=1), assignment_interval_ms=1000)
    driver.join("a", "t", "u")
    driver.advance(1000)
    assert driver.join("b", "v").member_epoch == 3, "a target in which a has what it had"
    changed = driver.beat("a", 2, topics=("t",))
    assert changed.assignment is not None
    assert (changed.member_epoch, partitions_of(changed.assignment)) == (2, {T: {0}})


# --- patterns ----------------------------------------------------------------------------------------------
def resolve(driver: Driver, **topics: str) -> None:
    patterns = driver.group.take_patterns()
    assert patterns == frozenset(p for p in topics)
    stamp = 10**6 + driver.now_ms
    found = {p: ResolvedRegex(frozenset(names.split()), stamp, stamp) for p, names in topics.items()}
    driver.group.resolved(found, driver.topics)
    driver.settle()


def test_a_pattern_counts_once_its_topics_are_found(driver: Driver) -> None:
    joined = driver.join("a", regex="t", topics=())
    assert (joined.member_epoch, joined.assignment) == (1, {}), "there is nothing to assign yet"
    assert driver.group.take_patterns() == frozenset({"t"})
    assert driver.group.take_patterns() is None
    driver.group.resolved({"t": ResolvedRegex(frozenset({"t"}), 1, 10**6)}, driver.topics)
    driver.settle()
    assert numbers(driver.beat("a", 1).assignment) == [0, 1, 2, 3]
    assert driver.group.is_subscribed("t")


@pytest.mark.parametrize("later_ms", [0, -3_600_000], ids=["in one millisecond", "after the clock was set back"])
def test_what_a_pattern_matches_has_a_new_version_each_time(driver: Driver, later_ms: int) -> None:
    """Readers of `__consumer_offsets` see the version. It is the wall clock's time, which need not grow."""
    driver.join("a", regex="t", topics=())
    versions = []
    for wall_ms in (10**12, 10**12 + later_ms):
        driver.group.resolved({"t": ResolvedRegex(frozenset({"t"}), wall_ms, wall_ms)}, driver.topics)
        driver.settle()
        versions.append(driver.group.regexes["t"].version)
    assert versions == [10**12, 10**12 + 1]


def test_patterns_and_targets_wait_no_longer_when_the_clock_is_set_back() -> None:
    driver = Driver(Topics(t=1, u=1, v=1), assignment_interval_ms=1000)
    driver.join("a", regex="t", topics=())
    resolve(driver, t="t")
    driver.beat("a", 1)
    driver.set_by_ms = -3_600_000
    driver.topics = Topics(t=4, t2=1)
    driver.advance(10_001)
    driver.beat("a", driver.group.members["a"].current.member_epoch)
    resolve(driver, t="t t2")
    driver.advance(1001)
    driver.beat("a", driver.group.members["a"].current.member_epoch)
    assert driver.group.target_epoch == driver.group.epoch


def test_a_pattern_is_looked_at_again_when_there_are_other_topics_but_not_all_the_time(driver: Driver) -> None:
    driver.join("a", regex="t", topics=())
    resolve(driver, t="t")
    driver.beat("a", 1)
    driver.topics = Topics(t=4, t2=1)
    driver.beat("a", 2)
    assert driver.group.take_patterns() is None, "the last look was less than 10 s ago"
    driver.advance(10_001)
    driver.beat("a", 2)
    resolve(driver, t="t t2")
    assert numbers(driver.beat("a", 2).assignment, topic_id("t2")) == [0]
    driver.advance(20_000)
    driver.beat("a", 3)
    assert driver.group.take_patterns() is None, "nothing is new"


def test_a_pattern_that_nobody_wants_is_forgotten(driver: Driver) -> None:
    driver.join("a", regex="t", topics=())
    resolve(driver, t="t")
    driver.beat("a", 1)
    driver.beat("a", 2, regex="")
    assert driver.group.regexes == {}
    driver.join("b", regex="t", topics=())
    driver.advance(20_000)
    driver.beat("b", driver.group.members["b"].current.member_epoch)
    resolve(driver, t="t")
    driver.beat("b", -1)
    assert driver.group.regexes == {}


def test_what_is_no_pattern_is_refused_and_changes_nothing(driver: Driver) -> None:
    assert driver.error("a", 0, regex="(", rebalance_timeout_ms=1, owned={}) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert driver.group.members == {}


# --- the log -----------------------------------------------------------------------------------------------
def test_what_the_log_refuses_has_not_happened(driver: Driver) -> None:
    driver.join("a")
    driver.topics = Topics(t=6)
    driver.group.beat(0, Beat("a", 2, "c", "/h"), driver.topics, 0, 10**6)
    (answer,) = driver.settle(ErrorCode.NOT_COORDINATOR)
    assert answer == BeatAnswer(ErrorCode.NOT_COORDINATOR)
    assert (driver.group.epoch, driver.group.state) == (2, GroupState.STABLE)
    assert numbers(driver.beat("a", 2).assignment) == [0, 1, 2, 3, 4, 5], "the next heartbeat sees to it"


def restored(driver: Driver) -> ConsumerGroup:
    """The group as the newest record of each key describes it."""
    newest: dict[tuple[str, str], Change | None] = {}
    for change in (change for changes in driver.log for change in changes):
        key = (type(change).__name__, str(change[0]) if type(change).__name__ not in ONE_OF_A_GROUP else "")
        newest[key] = None if None in change[:2] or change[:1] == (False,) else change
    group = ConsumerGroup("g", driver.limits)
    group.restore([change for change in newest.values() if change is not None])
    return group


ONE_OF_A_GROUP = ("EpochChange", "TargetEpochChange", "PartitionMetadataChange", "ClassicGroupGone")


def state_of(group: ConsumerGroup) -> Mapping[str, Any]:
    return {
        name: getattr(group, name)
        for name in (
            "epoch", "metadata_hash", "target_epoch", "target_timestamp_ms", "members", "static_members", "targets",
            "regexes", "owners", "subscriptions_wanted", "state", "has_epoch_record",
        )
    }  # fmt: skip


class Groups(RuleBasedStateMachine):
    """Members that follow the protocol, some slowly, some not at all; the log fails now and then; restarts."""

    @initialize(interval=st.sampled_from([0, 300]))
    def begin(self, interval: int) -> None:
        self.driver = Driver(Topics(t=4, u=2, tt=1), assignment_interval_ms=interval)
        self.owned: dict[str, dict[bytes, set[int]]] = {}
        """What the clients believe that they have."""
        self.wanted: dict[str, dict[bytes, set[int]]] = {}
        """What they were last told."""
        self.epochs: dict[str, int] = {}
        self.epoch_seen = 0
        self.number = 0

    def heard(self, member_id: str, answer: BeatAnswer) -> None:
        assert answer.member_epoch >= self.epochs.get(member_id, 0), "a member's epoch never goes back"
        self.epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            told = partitions_of(answer.assignment)
            self.wanted[member_id] = told
            for topic, partitions in told.items():
                self.owned[member_id].setdefault(topic, set()).update(partitions)

    def forget(self, member_id: str) -> None:
        for known in (self.owned, self.wanted, self.epochs):
            known.pop(member_id, None)

    @rule(
        topics=st.lists(st.sampled_from(["t", "u", "missing"]), max_size=3, unique=True),
        regex=st.sampled_from(["", "", "t+", "u"]), static=st.sampled_from([None, None, "i", "j"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )  # fmt: skip
    def join(self, topics: list[str], regex: str, static: str | None, assignor: str | None) -> None:
        self.number += 1
        member_id = f"m{self.number}"
        replaced = self.driver.group.static_members.get(static or "")
        try:
            answer = self.driver.join(
                member_id, topics=tuple(sorted(topics)), regex=regex, instance_id=static, assignor=assignor
            )
        except ProtocolError as error:
            assert error.code is ErrorCode.UNRELEASED_INSTANCE_ID
            return
        if replaced is not None:
            self.forget(replaced)
        self.owned[member_id] = {}
        self.heard(member_id, answer)

    def beat(self, member_id: str, **fields: Any) -> None:
        owned = {topic: frozenset(of) for topic, of in self.owned[member_id].items() if of}
        try:
            answer = self.driver.beat(member_id, self.epochs[member_id], owned=owned, **fields)
        except ProtocolError as error:
            assert error.code is ErrorCode.UNKNOWN_MEMBER_ID
            self.forget(member_id)
            return
        self.heard(member_id, answer)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), gives_up=st.booleans())
    def live(self, data: st.DataObject, gives_up: bool) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.epochs)))
        if gives_up and member_id in self.wanted:
            wanted = self.wanted[member_id]
            self.owned[member_id] = {t: of & wanted.get(t, set()) for t, of in self.owned[member_id].items()}
        self.beat(member_id)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), topics=st.lists(st.sampled_from(["t", "u"]), max_size=2, unique=True))
    def subscribe(self, data: st.DataObject, topics: list[str]) -> None:
        self.beat(data.draw(st.sampled_from(sorted(self.epochs))), topics=tuple(sorted(topics)))

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), will_be_back=st.booleans())
    def leave(self, data: st.DataObject, will_be_back: bool) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.epochs)))
        member = self.driver.group.members.get(member_id)
        if member is None:
            self.forget(member_id)
            return
        static = member.subscription.instance_id
        self.driver.beat(member_id, -2 if will_be_back and static else -1, instance_id=static)
        self.forget(member_id)

    @rule(milliseconds=st.sampled_from([200, 1001, 11_000, 46_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)
        for member_id in [m for m in self.epochs if m not in self.driver.group.members]:
            self.forget(member_id)

    @rule(t=st.integers(4, 6), u=st.sampled_from([0, 2, 3]))
    def change_topics(self, t: int, u: int) -> None:
        now = self.driver.topics.counts
        more = {"u": max(u, now.get("u", 0))} if u else {}
        self.driver.topics = Topics(t=max(t, now["t"]), tt=1, **more)

    @rule()
    def find_topics(self) -> None:
        group, topics = self.driver.group, self.driver.topics
        patterns = group.take_patterns()
        if patterns is not None:
            stamp = 10**6 + self.driver.now_ms
            matching = {"t+": frozenset({"t", "tt"}), "u": frozenset({"u"} & topics.counts.keys())}
            group.resolved({p: ResolvedRegex(matching[p], stamp, stamp) for p in patterns}, topics)
            self.driver.settle()

    @rule()
    def restart(self) -> None:
        before = state_of(self.driver.group)
        self.driver.group = restored(self.driver)
        assert state_of(self.driver.group) == before
        self.driver.group.start(self.driver.now_ms)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.epochs)))
        driver = self.driver
        before = state_of(driver.group)
        beat = Beat(member_id, self.epochs[member_id], "c2", "/h")
        try:
            driver.group.beat(0, beat, driver.topics, driver.now_ms, 10**6 + driver.now_ms)
        except ProtocolError:
            return
        answers = driver.settle(ErrorCode.NOT_COORDINATOR)
        assert [answer.error for answer in answers] == [ErrorCode.NOT_COORDINATOR]
        assert state_of(driver.group) == before

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        if not hasattr(self, "driver"):
            return
        owners: dict[tuple[bytes, int], str] = {}
        for member_id, owned in self.owned.items():
            if member_id in self.driver.group.members:
                for topic, partitions in owned.items():
                    for partition in partitions:
                        assert owners.setdefault((topic, partition), member_id) == member_id

    @invariant()
    def the_groups_epoch_grows_and_is_never_behind(self) -> None:
        if not hasattr(self, "driver"):
            return
        group = self.driver.group
        assert group.epoch >= self.epoch_seen
        assert group.target_epoch <= group.epoch
        self.epoch_seen = group.epoch
        assert all(member.current.member_epoch <= group.target_epoch for member in group.members.values())
        assert group.targets.keys() <= group.members.keys()

    def teardown(self) -> None:
        """Once members do what they are told, and nothing else happens, everybody has what it is to have."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for member_id, member in list(driver.group.members.items()):
            if member_id not in self.epochs:
                driver.beat(member_id, -1, instance_id=member.subscription.instance_id)
        for _ in range(8):
            driver.advance(400)
            self.find_topics()
            for member_id in sorted(self.epochs):
                wanted = self.wanted.get(member_id, {})
                self.owned[member_id] = {t: of & wanted.get(t, set()) for t, of in self.owned[member_id].items()}
                self.beat(member_id)
        group = driver.group
        assert group.state in (GroupState.STABLE, GroupState.EMPTY)
        for member_id in group.members:
            having = {t: of for t, of in self.owned[member_id].items() if of}
            assert having == {t: set(of) for t, of in group.targets.get(member_id, {}).items()}
        if not group.members:
            assert not group.owners


Groups.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestGroups = Groups.TestCase


def test_nothing_is_due_in_a_group_without_members(driver: Driver) -> None:
    driver.join("a")
    driver.beat("a", -1)
    driver.advance(100_000)
    assert driver.group.wake_ms == NEVER
    assert isinstance(driver.group.take_stores(), list)
    assert StoreChanges([]).changes == []
