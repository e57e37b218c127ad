"""The group state machine, one promise at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.rules.group import NEW_MEMBER_JOIN_TIMEOUT_MS, Group
from kbroker.rules.group_member import JoinAnswer, Joining, Leaving, SyncAnswer
from kbroker.rules.group_state import NEVER, GroupState

RANGE = {"range": b"r"}


class Driver:
    """A group and its clock; tokens are names, answers are kept by token."""

    def __init__(self, **limits: Any):
        self.group = Group("g", **limits)
        self.now = 0
        self.answers: dict[object, Any] = {}
        self.unique = 0

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        while stores := self.group.take_stores():
            for store in stores:
                self.group.stored(store, error, self.now)
        self.collect()

    def collect(self) -> None:
        for token, answer in self.group.take_answers():
            assert token not in self.answers, f"{token} is answered twice"
            self.answers[token] = answer

    def join(
        self, token: str, member_id: str = "", instance: str | None = None, protocols: Mapping[str, bytes] = RANGE, *,
        kind: str = "consumer", required: bool = False, skip: bool = True, rebalance: int = 5000, session: int = 10_000,
        settle: bool = True,
    ) -> JoinAnswer | None:  # fmt: skip
        self.unique += 1
        joining = Joining(member_id, instance, "c", "/h", rebalance, session, kind, protocols, required, skip)
        self.group.join(token, joining, str(self.unique), self.now)
        if settle:
            self.settle()
        return self.answers.get(token)

    def sync(self, token: str, member_id: str, assignments: Mapping[str, bytes] | None = None, **more: Any) -> Any:
        wanted = {"generation": self.group.generation, "instance": None, "kind": None, "name": None, **more}
        self.group.sync(
            token, wanted["generation"], member_id, wanted["instance"], wanted["kind"], wanted["name"],
            assignments or {}, self.now,
        )  # fmt: skip
        if more.get("settle", True):
            self.settle()
        return self.answers.get(token)

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        wanted = self.group.generation if generation is None else generation
        return self.group.heartbeat(wanted, member_id, instance, self.now)

    def leave(self, member_id: str, instance: str | None = None) -> ErrorCode:
        (error,) = self.group.leave([Leaving(member_id, instance)], self.now)
        self.settle()
        return error

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        while self.group.wake_ms <= self.now:
            self.group.advance(self.now)
        self.settle()

    def form(self, count: int, instances: bool = False) -> list[str]:
        """A stable group of `count` members; the first one is the leader."""
        ids: list[str] = []
        for number in range(count):
            token = f"form-{number}"
            self.join(token, instance=f"i{number}" if instances else None)
            for at, member_id in enumerate(ids):
                self.join(f"{token}-again-{at}", member_id, instance=f"i{at}" if instances else None)
            answer = self.answers[token]
            assert answer.error is ErrorCode.NONE
            ids.append(answer.member_id)
        for number, member_id in enumerate(ids):
            instance = f"i{number}" if instances else None
            self.sync(f"form-sync-{number}", member_id, {known: known.encode() for known in ids}, instance=instance)
        assert self.group.state is GroupState.STABLE
        return ids


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_first_member_leads_and_gets_what_it_assigns_itself(driver: Driver) -> None:
    joined = driver.join("join")
    assert joined == JoinAnswer(
        ErrorCode.NONE, "c-1", 1, "consumer", "range", "c-1", False, (("c-1", None, b"r"),)  # type: ignore[arg-type]
    )  # fmt: skip
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    synced = driver.sync("sync", "c-1", {"c-1": b"all"})
    assert synced == SyncAnswer(ErrorCode.NONE, "consumer", "range", b"all")
    assert driver.group.state is GroupState.STABLE


def test_nobody_hears_of_an_assignment_before_it_is_stored(driver: Driver) -> None:
    driver.join("join")
    driver.sync("sync", "c-1", {"c-1": b"all"}, settle=False)
    assert driver.group.take_answers() == []
    driver.group.stored(driver.group.take_stores()[0], ErrorCode.NONE, 0)
    assert [token for token, _ in driver.group.take_answers()] == ["sync"]


def test_an_assignment_that_cannot_be_stored_is_told_to_all_and_starts_over(driver: Driver) -> None:
    driver.join("join")
    driver.sync("sync", "c-1", {"c-1": b"all"}, settle=False)
    driver.settle(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert driver.answers["sync"].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_only_the_leader_is_told_the_members(driver: Driver) -> None:
    first, second = driver.form(2)
    again = driver.join("x", first)
    assert again is None
    follower = driver.join("y", second)
    assert follower is not None and follower.members == () and follower.leader == first
    assert [member.member_id for member in driver.answers["x"].members] == [first, second]


def test_a_newcomer_makes_everybody_join_again(driver: Driver) -> None:
    (first,) = driver.form(1)
    assert driver.join("new") is None
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join("again", first)
    assert driver.answers["again"].generation == driver.answers["new"].generation == 2


def test_a_dynamic_newcomer_is_given_an_id_and_has_to_come_back_with_it(driver: Driver) -> None:
    answer = driver.join("first", required=True)
    assert answer == JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "c-1")
    assert driver.group.state is GroupState.EMPTY
    joined = driver.join("second", "c-1", required=True)
    assert joined is not None and joined.error is ErrorCode.NONE and joined.generation == 1


def test_an_id_that_nobody_comes_back_with_expires(driver: Driver) -> None:
    driver.join("first", required=True, session=6000)
    driver.advance(6000)
    answer = driver.join("second", "c-1", required=True)
    assert answer is not None and answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_ids_that_were_given_away(driver: Driver) -> None:
    (first,) = driver.form(1)
    driver.join("hello", required=True, session=6000)
    driver.group.join("other", Joining("", "s", "c", "/h", 5000, 10_000, "consumer", RANGE), "u", driver.now)
    driver.join("again", first)
    assert "again" not in driver.answers
    driver.join("back", driver.answers["hello"].member_id, required=True)
    assert driver.answers["again"].generation == driver.answers["back"].generation == 2


def test_a_pending_id_with_an_instance_id_is_refused(driver: Driver) -> None:
    driver.join("first", required=True)
    answer = driver.join("second", "c-1", instance="s")
    assert answer is not None and answer.error is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("kind", "protocols"), [("connect", RANGE), ("consumer", {"sticky": b""}), ("consumer", {})])
def test_a_member_without_a_common_protocol_is_refused(
    driver: Driver, kind: str, protocols: Mapping[str, bytes]
) -> None:
    driver.form(1)
    answer = driver.join("odd", kind=kind, protocols=protocols)
    assert answer == JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")


@pytest.mark.parametrize(("kind", "protocols"), [("", RANGE), ("consumer", {})])
def test_an_empty_group_wants_a_protocol_type_and_a_protocol(
    driver: Driver, kind: str, protocols: Mapping[str, bytes]
) -> None:
    answer = driver.join("odd", kind=kind, protocols=protocols)
    assert answer is not None and answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_the_one_that_most_members_prefer_among_those_all_have(driver: Driver) -> None:
    both, other = {"a": b"1", "b": b"2"}, {"b": b"3", "a": b"4", "c": b"5"}
    driver.join("1", protocols=both)
    driver.join("2", protocols=other)
    driver.join("3", protocols=other)
    driver.join("1 again", "c-1", protocols=both)
    assert driver.answers["2"].protocol_name == "b"
    assert [m.metadata for m in driver.answers["1 again"].members] == [b"2", b"3", b"3"]


def test_a_member_that_does_not_join_again_in_time_is_dropped(driver: Driver) -> None:
    first, second = driver.form(2)
    driver.join("first", first)
    driver.advance(4999)
    assert "first" not in driver.answers
    driver.advance(1)
    assert driver.answers["first"].generation == driver.group.generation
    assert list(driver.group.members) == [first]
    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_join_again_is_replaced_by_one_that_has(driver: Driver) -> None:
    first, second = driver.form(2)
    driver.join("second", second, protocols={"range": b"changed"})
    driver.advance(5000)
    assert driver.answers["second"].leader == second
    assert first not in driver.group.members


def test_static_members_are_kept_until_their_session_ends(driver: Driver) -> None:
    first, second = driver.form(2, instances=True)
    driver.join("first", first, instance="i0")
    driver.advance(5000)
    assert driver.answers["first"].error is ErrorCode.NONE
    assert list(driver.group.members) == [first, second]
    driver.sync("sync", first, instance="i0")
    driver.advance(5000)
    assert second not in driver.group.members


def test_a_rebalance_that_nobody_joins_is_tried_again_until_sessions_end(driver: Driver) -> None:
    driver.join("i", instance="s", rebalance=0, session=60_000)
    driver.sync("sync", driver.answers["i"].member_id, instance="s")
    driver.group.advance(driver.now)
    driver.join("new")
    driver.leave(driver.group.static_members["s"])
    assert driver.group.wake_ms > driver.now, "the wait for members never spins"


def test_a_silent_member_is_dropped_when_its_session_ends(driver: Driver) -> None:
    first, second = driver.form(2)
    driver.advance(9000)
    assert driver.heartbeat(first) is ErrorCode.NONE
    driver.advance(1000)
    assert second not in driver.group.members
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_as_good_as_a_heartbeat(driver: Driver) -> None:
    (first,) = driver.form(1)
    driver.advance(9000)
    driver.group.committed(first, driver.now)
    driver.advance(9000)
    assert first in driver.group.members


def test_a_member_that_waits_for_its_join_does_not_expire(driver: Driver) -> None:
    first, _ = driver.form(2)
    driver.join("first", first, rebalance=100_000, session=10_000)
    second = next(m for m in driver.group.members if m != first)
    for _ in range(4):
        driver.heartbeat(second)
        driver.advance(2000)
    assert first in driver.group.members


def test_somebody_new_whose_join_waits_too_long_is_told_that_it_is_unknown(driver: Driver) -> None:
    driver.form(1)
    driver.group.members["c-1"].session_timeout_ms = driver.group.members["c-1"].rebalance_timeout_ms = 10**9
    driver.heartbeat("c-1")
    driver.join("new", rebalance=10**9, session=6000)
    driver.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert driver.answers["new"] == JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_members_that_do_not_sync_in_time_are_dropped(driver: Driver) -> None:
    first, second = driver.form(2)
    driver.join("first", first)
    driver.join("second", second)
    driver.sync("sync", first, settle=False)
    driver.settle()
    driver.heartbeat(second)
    driver.advance(5000)
    assert second not in driver.group.members
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_whose_members_have_left_is_empty_in_a_new_generation(driver: Driver) -> None:
    (first,) = driver.form(1)
    assert driver.leave(first) is ErrorCode.NONE
    assert (driver.group.state, driver.group.generation) == (GroupState.EMPTY, 2)
    assert driver.group.protocol_type == "consumer" and driver.group.protocol_name is None


def test_whoever_leaves_must_be_a_member(driver: Driver) -> None:
    (first,) = driver.form(1, instances=True)
    assert driver.leave("nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("", "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave(first, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("nobody", "i0") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave("", "i0") is ErrorCode.NONE


def test_an_id_that_was_given_away_can_leave_and_nobody_waits_for_it(driver: Driver) -> None:
    (first,) = driver.form(1)
    driver.join("hello", required=True)
    driver.join("again", first, protocols={"range": b"other"})
    assert "again" not in driver.answers
    assert driver.leave(driver.answers["hello"].member_id) is ErrorCode.NONE
    assert driver.answers["again"].generation == 2


def test_a_static_member_comes_back_without_a_rebalance(driver: Driver) -> None:
    _first, second = driver.form(2, instances=True)
    answer = driver.join("back", instance="i1")
    assert answer is not None and answer.error is ErrorCode.NONE and answer.generation == driver.group.generation
    assert answer.member_id != second and answer.members == ()
    assert driver.group.state is GroupState.STABLE
    synced = driver.sync("sync", answer.member_id, instance="i1")
    assert synced.assignment == second.encode(), "it has the assignment of its old self"
    assert driver.heartbeat(second, instance="i1") is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(("skip", "members"), [(True, 2), (False, 0)])
def test_a_static_leader_that_comes_back_does_not_assign_again(driver: Driver, skip: bool, members: int) -> None:
    first, _ = driver.form(2, instances=True)
    answer = driver.join("back", instance="i0", skip=skip)
    assert answer is not None and answer.skip_assignment is skip and len(answer.members) == members
    # Before v9 it is told the old leader's id, which is not its own any more.
    assert answer.leader == (answer.member_id if skip else first)
    assert driver.group.state is GroupState.STABLE


def test_a_return_that_cannot_be_stored_is_undone(driver: Driver) -> None:
    first, second = driver.form(2, instances=True)
    driver.join("back", instance="i1", settle=False, session=7777)
    driver.settle(ErrorCode.NOT_COORDINATOR)
    assert driver.answers["back"].error is ErrorCode.NOT_COORDINATOR
    assert set(driver.group.members) == {first, second}
    assert driver.heartbeat(second, instance="i1") is ErrorCode.NONE
    assert driver.group.members[second].session_timeout_ms == 10_000


def test_a_return_with_another_preference_makes_a_rebalance(driver: Driver) -> None:
    driver.join("a", instance="i0", protocols={"range": b"", "sticky": b""})
    driver.sync("b", driver.answers["a"].member_id, instance="i0")
    assert driver.join("back", instance="i0", protocols={"sticky": b""}) is not None
    assert driver.answers["back"].protocol_name == "sticky" and driver.group.generation == 2


def test_a_return_while_assignments_are_awaited_makes_a_rebalance(driver: Driver) -> None:
    first, second = driver.form(2, instances=True)
    driver.join("first", first, instance="i0")
    driver.join("second", second, instance="i1")
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.sync("waits", second, instance="i1")
    driver.join("back", instance="i1")
    assert driver.answers["waits"].error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_the_old_self_that_waits_is_fenced(driver: Driver) -> None:
    _, second = driver.form(2, instances=True)
    driver.join("old", second, instance="i1", protocols={"range": b"other"})
    driver.join("new", instance="i1")
    assert driver.answers["old"] == JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, second)


def test_a_member_that_lost_the_answer_to_its_join_hears_it_again(driver: Driver) -> None:
    first = driver.join("join")
    assert first is not None
    again = driver.join("again", first.member_id)
    assert again == first


def test_a_follower_that_joins_a_stable_group_unchanged_disturbs_nobody(driver: Driver) -> None:
    _, second = driver.form(2)
    answer = driver.join("again", second)
    assert answer is not None and answer.generation == driver.group.generation
    assert driver.group.state is GroupState.STABLE


def test_a_leader_that_joins_a_stable_group_asks_for_a_new_assignment(driver: Driver) -> None:
    first, _ = driver.form(2)
    driver.join("again", first)
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_request_that_is_sent_twice_is_not_left_hanging(driver: Driver) -> None:
    first, _ = driver.form(2)
    driver.join("one", first)
    driver.join("two", first)
    assert driver.answers["one"].error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"kind": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_does_not_fit_is_refused(driver: Driver, change: dict[str, Any], error: ErrorCode) -> None:
    driver.join("join")
    assert driver.sync("sync", "c-1", **change) == SyncAnswer(error)


def test_a_sync_in_the_middle_of_a_rebalance_is_told_to_join(driver: Driver) -> None:
    (first,) = driver.form(1)
    driver.join("new")
    assert driver.sync("sync", first).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_the_leader_forgets_get_an_empty_assignment(driver: Driver) -> None:
    first, second = driver.form(2)
    driver.join("first", first)
    driver.join("second", second)
    driver.sync("follower", second)
    driver.sync("leader", first, {first: b"everything", "nobody": b"x"})
    assert driver.answers["follower"] == SyncAnswer(ErrorCode.NONE, "consumer", "range", b"")


def test_a_full_group_takes_nobody_new_and_keeps_who_is_in_it() -> None:
    driver = Driver(max_size=2)
    first, _ = driver.form(2)
    answer = driver.join("third")
    assert answer == JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    driver.join("again", first)
    assert first in driver.group.members


def test_a_group_over_a_lowered_limit_sheds_its_slowest_members(driver: Driver) -> None:
    first, second, third = driver.form(3)
    driver.group.max_size = 2
    driver.join("1", first)
    driver.join("2", second)
    driver.join("3", third)
    assert driver.answers["3"] == JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.answers["1"].error is ErrorCode.NONE


def test_the_first_rebalance_of_a_group_waits_for_more_members() -> None:
    driver = Driver(initial_rebalance_delay_ms=1000)
    driver.join("1", rebalance=2500)
    driver.advance(900)
    driver.join("2", rebalance=2500)
    driver.advance(100)
    assert not driver.answers, "somebody arrived during the delay, so it is prolonged"
    driver.advance(999)
    assert not driver.answers
    driver.advance(1)
    assert driver.answers["1"].generation == driver.answers["2"].generation == 1


def test_the_delay_of_the_first_rebalance_ends_with_the_rebalance_timeout() -> None:
    driver = Driver(initial_rebalance_delay_ms=1000)
    for number in range(6):
        driver.join(f"{number}", rebalance=2500)
        driver.advance(500)
    assert "0" in driver.answers


@pytest.mark.parametrize(
    ("generation", "member", "instance", "error"),
    [
        (-1, "", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (1, "nobody", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (0, "c-1", None, ErrorCode.ILLEGAL_GENERATION),
        (-1, "c-1", None, ErrorCode.ILLEGAL_GENERATION),
        (1, "c-1", "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        (1, "c-1", None, ErrorCode.NONE),
    ],
)
def test_only_members_of_this_generation_commit_to_a_group_that_has_members(
    driver: Driver, generation: int, member: str, instance: str | None, error: ErrorCode
) -> None:
    driver.form(1)
    assert driver.group.check_commit(generation, member, instance) is error


def test_anybody_commits_to_an_empty_group_without_a_generation(driver: Driver) -> None:
    assert driver.group.check_commit(-1, "", None) is ErrorCode.NONE
    assert driver.group.check_commit(0, "m", None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_before_the_assignment_is_known_is_told_to_wait(driver: Driver) -> None:
    driver.join("join")
    assert driver.group.check_commit(1, "c-1", None) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.group.check_commit(1, "c-1", None, transactional=True) is ErrorCode.NONE


def test_a_restored_group_has_its_members_and_they_have_a_session_to_be_heard_of(driver: Driver) -> None:
    first, second = driver.form(2, instances=True)
    members = list(driver.group.members.values())
    restored = Group.restore("g", "consumer", "range", 7, second, members)
    restored.start(1000)
    assert (restored.state, restored.generation, restored.leader) == (GroupState.STABLE, 7, second)
    assert restored.heartbeat(7, first, "i0", 2000) is ErrorCode.NONE
    restored.advance(11_000)
    assert list(restored.members) == [first]


def test_a_restored_group_over_the_limit_is_rebalanced(driver: Driver) -> None:
    driver.form(2)
    restored = Group.restore("g", "consumer", "range", 7, None, list(driver.group.members.values()), max_size=1)
    restored.start(0)
    assert restored.state is GroupState.PREPARING_REBALANCE


def test_whoever_waits_hears_that_the_group_is_served_elsewhere(driver: Driver) -> None:
    first, second = driver.form(2)
    driver.join("first", first)
    driver.group.end(ErrorCode.NOT_COORDINATOR)
    driver.collect()
    assert driver.answers["first"].error is ErrorCode.NOT_COORDINATOR
    assert driver.heartbeat(second) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.sync("sync", second).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    late = driver.join("late")
    assert late is not None and late.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.check_commit(-1, "", None) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.wake_ms == NEVER
