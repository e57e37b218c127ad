"""The coordinator: who is served, what happens if the log refuses, and what happens as time passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups import given_ids
from kbroker.groups.answers import DescribedGroup, ListedGroup
from kbroker.groups.shard import GroupShard, ServedGroup
from kbroker.model import TopicPartition
from kbroker.rules.group import Group
from kbroker.rules.group_member import JoinAnswer, Leaving, Member, SyncAnswer
from kbroker.rules.group_offsets import CommittedOffset
from kbroker.state_log.deadlines import MOST_CANCELLED
from kbroker.state_log.shards import Refusal
from kbroker.state_log.state_partition import Producer
from tests.kit.parts.replica import MemoryOffsetsTopic
from tests.kit.parts.shards import await_loaded

from .conftest import Home, subscription

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
DAY = 24 * 3_600_000


# --- who is served -----------------------------------------------------------------------------------------
def test_nobody_is_served_before_the_topic_exists_and_opening_creates_it() -> None:
    home = Home(MemoryOffsetsTopic(exists=False))
    assert home.coordinator.heartbeat("g", 1, "m", None) is ErrorCode.NOT_COORDINATOR
    assert home.coordinator.describe("g").error is ErrorCode.NOT_COORDINATOR
    assert not home.coordinator.shards.is_open_for("g")
    assert home.coordinator.shards.open_for("g") is ErrorCode.NONE
    assert home.coordinator.shards.is_open_for("g")
    assert [home.form(group_id).generation for group_id in "ghijk"] == [1] * 5, "every partition is served at once"


def test_a_topic_that_cannot_be_created_makes_no_coordinator_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = Home(MemoryOffsetsTopic(exists=False))
    home.topic.cannot_be_created = True
    for _ in range(3):
        assert home.coordinator.shards.open_for("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.messages == ["the topic of the group coordinator cannot be created: no space"]


def test_members_need_a_group_with_a_name(home: Home) -> None:
    assert home.join("")[0].error is ErrorCode.INVALID_GROUP_ID
    assert home.sync("", 1, "m")[0].error is ErrorCode.INVALID_GROUP_ID
    assert home.coordinator.heartbeat("", 1, "m", None) is ErrorCode.INVALID_GROUP_ID
    assert home.coordinator.leave("", [Leaving("m")]) == (ErrorCode.INVALID_GROUP_ID, [])
    assert home.coordinator.offsets.delete("", [P0]) == (ErrorCode.INVALID_GROUP_ID, {})


def test_the_empty_group_id_is_allowed_where_only_offsets_are_concerned(home: Home) -> None:
    assert home.commit({P0: 5}, group_id="") == [(ErrorCode.NONE, frozenset())]
    assert home.fetch("", P0) == {"t-0": 5}
    assert home.coordinator.describe("").state == "Empty"
    assert home.coordinator.delete_group("") is ErrorCode.NONE


@pytest.mark.parametrize("session_timeout_ms", [5999, 1_800_001, -1])
def test_session_timeouts_out_of_bounds_are_refused(home: Home, session_timeout_ms: int) -> None:
    assert home.join(session_timeout_ms=session_timeout_ms)[0].error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert home.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_a_member_of_a_group_that_does_not_exist_is_unknown(home: Home) -> None:
    assert home.join(member_id="m")[0] == JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, "m")
    assert home.sync("g", 1, "m")[0] == SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
    assert home.coordinator.heartbeat("g", 1, "m", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert home.coordinator.leave("g", [Leaving("m")]) == (ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID])


def test_a_stopped_coordinator_serves_nobody(home: Home) -> None:
    home.coordinator.stop()
    assert home.coordinator.heartbeat("g", 1, "m", None) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert home.coordinator.list_groups()[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert home.coordinator.shards.open_for("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_whoever_waits_hears_when_the_coordinator_stops(home: Home) -> None:
    home.form()
    waiting = home.join()
    home.coordinator.stop()
    assert waiting == [JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, "c-2")]


def test_while_a_partition_is_loading_clients_are_kept_waiting(home: Home) -> None:
    home.form()
    home.coordinator.stop()
    loads: list[Callable[[], None]] = []
    home.start()
    partition_id = home.coordinator.shards.partition_for("g")
    home.coordinator.shards.resign(partition_id)
    home.coordinator.shards._loader.submit = loads.append  # type: ignore[method-assign]
    home.coordinator.shards.lead(partition_id)
    assert home.join()[0].error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert home.sync("g", 1, "m")[0].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert home.coordinator.heartbeat("g", 1, "c-1", None) is ErrorCode.NONE
    assert home.commit({P0: 1})[0][0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert home.coordinator.offsets.fetch("g", None, False)[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert home.coordinator.describe("g").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert home.coordinator.delete_group("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert home.coordinator.list_groups()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    loads[0]()
    assert home.coordinator.heartbeat("g", 1, "c-1", None) is ErrorCode.NONE
    assert home.coordinator.list_groups() == (ErrorCode.NONE, [ListedGroup("g", "consumer", "Stable")])


def test_whoever_waits_hears_when_the_partition_is_led_by_somebody_else(home: Home) -> None:
    home.form()
    waiting = home.join()
    home.coordinator.shards.resign(home.coordinator.shards.partition_for("g"))
    assert waiting == [JoinAnswer(ErrorCode.NOT_COORDINATOR, "c-2")]


def test_a_new_leader_epoch_loads_the_partition_anew(home: Home) -> None:
    home.commit({P0: 5})
    replica = home.replica_of("g")
    replica.lead_again(1)
    assert home.commit({P0: 6}) == [(ErrorCode.NOT_COORDINATOR, frozenset())], "appends of the old epoch are fenced"
    home.coordinator.shards.lead(home.coordinator.shards.partition_for("g"))
    await_loaded(home.coordinator.shards)
    assert home.fetch() == {"t-0": 5}
    assert home.commit({P0: 7}) == [(ErrorCode.NONE, frozenset())]


def test_a_partition_that_cannot_be_read_is_tried_again_when_somebody_asks(home: Home) -> None:
    home.commit({P0: 5})
    replica = home.replica_of("g")
    replica.fail_reads = True
    partition_id = home.coordinator.shards.partition_for("g")
    home.coordinator.shards.resign(partition_id)
    assert home.coordinator.shards.open_for("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    replica.fail_reads = False
    assert home.coordinator.shards.open_for("g") is ErrorCode.NONE
    assert home.fetch() == {"t-0": 5}


# --- members -------------------------------------------------------------------------------------------------
def test_sessions_end_by_themselves(home: Home) -> None:
    home.form()
    home.advance(9_999)
    assert home.coordinator.describe("g").state == "Stable"
    home.advance(1)
    assert home.coordinator.describe("g").state == "Empty"


def test_heartbeats_keep_a_member_and_cost_no_deadline_each(home: Home) -> None:
    joined = home.form()
    for _ in range(1000):
        home.advance(100)
        assert home.coordinator.heartbeat("g", 1, joined.member_id, None) is ErrorCode.NONE
    assert len(home.deadlines._heap) < 5


def test_members_are_told_when_the_last_one_joins(home: Home) -> None:
    first = home.form()
    newcomer = home.join()
    assert newcomer == []
    (again,) = home.join(member_id=first.member_id)
    assert again.generation == newcomer[0].generation == 2
    assert len(again.members) == 2 and newcomer[0].members == ()


def test_an_assignment_waits_for_the_log(home: Home) -> None:
    (joined,) = home.join()
    home.replica_of("g").hold = True
    synced = home.sync("g", 1, joined.member_id, {joined.member_id: b"all"})
    assert synced == []
    assert home.coordinator.describe("g").state == "CompletingRebalance"
    home.replica_of("g").release()
    assert synced == [SyncAnswer(ErrorCode.NONE, "consumer", "range", b"all")]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
    ],
)
def test_an_assignment_that_the_log_refuses_is_told_to_the_members(
    home: Home, refused: ErrorCode, told: ErrorCode
) -> None:
    (joined,) = home.join()
    home.replica_of("g").refuse = refused
    assert home.sync("g", 1, joined.member_id)[0].error is told
    assert home.coordinator.describe("g").state == "PreparingRebalance"


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_id": "i" * 32_731},
        {"client_id": "ü" * 16_366},
    ],
)
def test_names_that_would_make_too_long_a_member_id_are_refused(home: Home, fields: dict[str, Any]) -> None:
    assert home.join(**fields)[0].error is ErrorCode.INVALID_REQUEST
    assert home.form().error is ErrorCode.NONE


def test_a_rebalance_of_two_hundred_members_tells_each_of_them_once(home: Home) -> None:
    first = home.form()
    waiting = [home.join() for _ in range(199)]
    assert not any(waiting)
    (leader,) = home.join(member_id=first.member_id)
    assert [len(answers) for answers in waiting] == [1] * 199
    assert len(leader.members) == 200 and {answers[0].generation for answers in waiting} == {2}
    ids = [member.member_id for member in leader.members]
    syncs = [home.sync("g", 2, member_id) for member_id in ids[1:]]
    (assigned,) = home.sync("g", 2, ids[0], {member_id: member_id.encode() for member_id in ids})
    assert [answers[0].assignment for answers in (*syncs, [assigned])] == [i.encode() for i in (*ids[1:], ids[0])]
    assert home.coordinator.leave("g", [Leaving(ids[7])]) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert home.coordinator.heartbeat("g", 2, ids[3], None) is ErrorCode.REBALANCE_IN_PROGRESS


def test_several_members_leave_at_once_each_with_its_own_result(home: Home) -> None:
    joined = home.form(instance_id="s")
    leaving = [Leaving("nobody"), Leaving(joined.member_id, "s"), Leaving("", "s")]
    expected = [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert home.coordinator.leave("g", leaving) == (ErrorCode.NONE, expected)


# --- offsets -------------------------------------------------------------------------------------------------
def test_offsets_are_committed_and_fetched(home: Home) -> None:
    assert home.commit({P0: 5, P1: 7}) == [(ErrorCode.NONE, frozenset())]
    assert home.fetch() == {"t-0": 5, "t-1": 7}
    assert home.fetch("g", P1, TopicPartition("u", 0)) == {"t-1": 7, "u-0": -1}
    assert home.fetch("unknown", P0) == {"t-0": -1}
    assert home.fetch("unknown") == {}


def test_metadata_too_long_is_refused_for_its_partition_only(make_home: Callable[..., Home]) -> None:
    home = make_home(offset_metadata_max_bytes=3)
    offsets = {P0: CommittedOffset(1, -1, "üü", 0), P1: CommittedOffset(2, -1, "üx", 0)}
    assert home.commit(offsets) == [(ErrorCode.NONE, frozenset({P0}))]
    assert home.fetch("g", P0, P1) == {"t-0": -1, "t-1": 2}
    assert home.commit({P0: CommittedOffset(1, -1, "long", 0)}) == [(ErrorCode.NONE, frozenset({P0}))]


def test_a_commit_waits_for_the_log_and_stable_readers_for_the_commit(home: Home) -> None:
    home.commit({P0: 5})
    home.replica_of("g").hold = True
    answers = home.commit({P0: 6})
    assert answers == [] and home.fetch("g", P0) == {"t-0": 5}
    error, fetched = home.coordinator.offsets.fetch("g", [P0, P1], require_stable=True)
    assert error is ErrorCode.NONE
    assert [one.error for one in fetched] == [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]
    home.replica_of("g").release()
    assert answers == [(ErrorCode.NONE, frozenset())]
    assert home.fetch("g", P0, stable=True) == {"t-0": 6}


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_the_log_refuses_changes_nothing(home: Home, refused: ErrorCode, told: ErrorCode) -> None:
    home.commit({P0: 5})
    home.replica_of("g").refuse = refused
    assert home.commit({P0: 6}) == [(told, frozenset())]
    assert home.fetch("g", P0, stable=True) == {"t-0": 5}


def test_commits_with_a_generation_are_for_members_only(home: Home) -> None:
    assert home.commit({P0: 1}, generation=0, member_id="m")[0][0] is ErrorCode.ILLEGAL_GENERATION
    joined = home.form()
    assert home.commit({P0: 1})[0][0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert home.commit({P0: 1}, generation=1, member_id="m")[0][0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert home.commit({P0: 1}, generation=0, member_id=joined.member_id)[0][0] is ErrorCode.ILLEGAL_GENERATION
    assert home.commit({P0: 1}, generation=1, member_id=joined.member_id)[0][0] is ErrorCode.NONE


def test_offsets_of_deleted_topics_are_forgotten_for_good(home: Home) -> None:
    home.commit({P0: 1, TopicPartition("u", 0): 2})
    home.coordinator.offsets.forget_topics(["t"])
    assert home.fetch() == {"u-0": 2}
    home.restart()
    assert home.fetch() == {"u-0": 2}


# --- administration ------------------------------------------------------------------------------------------
def test_groups_are_listed_by_state(home: Home) -> None:
    home.form("a")
    home.commit({P0: 1}, group_id="b")
    home.join("c", protocol_type="connect")
    everything = {
        ListedGroup("a", "consumer", "Stable"),
        ListedGroup("b", "", "Empty"),
        ListedGroup("c", "connect", "CompletingRebalance"),
    }
    error, listed = home.coordinator.list_groups()
    assert error is ErrorCode.NONE and set(listed) == everything
    assert [group.group_id for group in home.coordinator.list_groups(["STABLE", "nonsense"])[1]] == ["a"]
    assert home.coordinator.list_groups(["nonsense"]) == (ErrorCode.NONE, [])
    counts = {state: count for state, count in home.coordinator.group_counts().items() if count}
    assert counts == {"Empty": 1, "CompletingRebalance": 1, "Stable": 1}


def test_a_stable_group_is_described_with_its_members_and_what_they_have(home: Home) -> None:
    joined = home.form(instance_id="s")
    metadata = subscription("t")
    member = (joined.member_id, "s", "c", "/127.0.0.1", metadata, b"all")
    assert home.coordinator.describe("g") == DescribedGroup(ErrorCode.NONE, "Stable", "consumer", "range", (member,))
    home.join(member_id=joined.member_id, instance_id="s", protocols={"range": subscription("u")})
    described = home.coordinator.describe("g")
    assert (described.state, described.protocol_name) == ("CompletingRebalance", "")
    assert described.members[0].metadata == b"" and described.members[0].assignment == b""


def test_an_unknown_group_is_dead(home: Home) -> None:
    assert home.coordinator.describe("g") == DescribedGroup(ErrorCode.NONE, "Dead")


def test_only_groups_without_members_are_deleted(home: Home) -> None:
    assert home.coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    joined = home.form()
    home.commit({P0: 1}, generation=1, member_id=joined.member_id)
    assert home.coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    home.coordinator.leave("g", [Leaving(joined.member_id)])
    assert home.coordinator.delete_group("g") is ErrorCode.NONE
    assert home.coordinator.list_groups()[1] == [] and home.fetch("g", P0) == {"t-0": -1}
    home.restart()
    assert home.coordinator.list_groups()[1] == [] and home.fetch("g", P0) == {"t-0": -1}


def test_a_group_that_cannot_be_deleted_in_the_log_stays(home: Home) -> None:
    home.commit({P0: 1})
    home.replica_of("g").refuse = ErrorCode.KAFKA_STORAGE_ERROR
    assert home.coordinator.delete_group("g") is ErrorCode.NOT_COORDINATOR
    assert home.fetch("g", P0) == {"t-0": 1}


def test_deleting_many_offsets_is_not_one_batch_too_large(home: Home) -> None:
    for first in range(0, 3000, 500):
        home.commit({TopicPartition("t" * 200, first + n): 1 for n in range(500)})
    home.replica_of("g").max_batch_size = 200_000
    assert home.coordinator.delete_group("g") is ErrorCode.NONE
    home.restart()
    assert home.coordinator.list_groups()[1] == []


def test_offsets_are_deleted_but_for_topics_that_a_member_is_subscribed_to(home: Home) -> None:
    other = TopicPartition("u", 0)
    assert home.coordinator.offsets.delete("g", [P0]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    home.commit({P0: 1, other: 2})
    joined = home.form()
    expected = {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, other: ErrorCode.NONE}
    assert home.coordinator.offsets.delete("g", [P0, other]) == (ErrorCode.NONE, expected)
    assert home.fetch() == {"t-0": 1}
    home.coordinator.leave("g", [Leaving(joined.member_id)])
    never = TopicPartition("never", 3)
    assert home.coordinator.offsets.delete("g", [P0, never])[1] == {P0: ErrorCode.NONE, never: ErrorCode.NONE}
    assert home.coordinator.list_groups()[1] == [], "a group with neither members nor offsets is no more"
    home.restart()
    assert home.fetch() == {} and home.coordinator.list_groups()[1] == []


def test_offsets_of_a_group_of_another_kind_stay_while_it_has_members(home: Home) -> None:
    home.commit({P0: 1})
    home.form(protocol_type="connect")
    assert home.coordinator.offsets.delete("g", [P0]) == (ErrorCode.NON_EMPTY_GROUP, {})


def test_offsets_stay_when_the_members_subscriptions_cannot_be_read(home: Home) -> None:
    home.commit({P0: 1})
    home.form(protocols={"range": b"\0"})
    assert home.coordinator.offsets.delete("g", [P0])[1] == {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_subscriptions_of_versions_to_come_are_understood(home: Home) -> None:
    home.commit({P0: 1, TopicPartition("u", 0): 2})
    home.form(protocols={"range": subscription("t", version=9)})
    assert home.coordinator.offsets.delete("g", [TopicPartition("u", 0)])[1] == {TopicPartition("u", 0): ErrorCode.NONE}


# --- expiry --------------------------------------------------------------------------------------------------
def test_offsets_of_a_simple_consumer_expire_after_their_commit(home: Home) -> None:
    home.commit({P0: 1})
    home.advance(6 * DAY)
    home.commit({P1: 2})
    home.advance(DAY)
    assert home.fetch() == {"t-1": 2}
    home.advance(6 * DAY)
    assert home.coordinator.list_groups()[1] == []
    home.restart()
    assert home.coordinator.list_groups()[1] == []


def test_offsets_of_a_group_expire_after_it_became_empty(home: Home) -> None:
    joined = home.form()
    home.commit({P0: 1}, generation=1, member_id=joined.member_id)
    for _ in range(8 * 24):
        home.advance(3_600_000 - 9000)
        home.advance(9000)
        joined = home.form() if home.coordinator.describe("g").state == "Empty" else joined
    home.coordinator.leave("g", [Leaving(m.member_id) for m in home.coordinator.describe("g").members])
    assert home.fetch() == {"t-0": 1}
    home.restart()
    home.advance(7 * DAY - 1)
    assert home.fetch() == {"t-0": 1}
    home.advance(600_000)
    assert home.fetch() == {} and home.coordinator.list_groups()[1] == []


def test_members_keep_the_offsets_of_what_they_are_subscribed_to(make_home: Callable[..., Home]) -> None:
    home = make_home(max_session_timeout_ms=20 * DAY)
    joined = home.form(session_timeout_ms=20 * DAY)
    home.commit({P0: 1, TopicPartition("u", 0): 2}, generation=1, member_id=joined.member_id)
    home.advance(8 * DAY)
    assert home.fetch() == {"t-0": 1}


def test_a_retention_time_of_the_commit_itself_is_kept_over_a_restart(home: Home) -> None:
    now = home.clock.wall_ms()
    home.commit({P0: CommittedOffset(5, -1, "m", now, now + DAY), P1: CommittedOffset(6, 3, "m", now)})
    home.restart()
    home.advance(DAY)
    assert home.fetch() == {"t-1": 6}


def test_groups_with_nothing_go_at_the_next_check(home: Home) -> None:
    joined = home.form()
    home.coordinator.leave("g", [Leaving(joined.member_id)])
    home.advance(600_000)
    assert home.coordinator.list_groups()[1] == []


# --- what nobody has used ----------------------------------------------------------------------------------------
def groups_of(home: Home) -> set[str]:
    return {group_id for shard in home.coordinator.shards.active() for group_id in shard.groups}


def test_a_group_that_nothing_has_come_of_is_forgotten_at_once(home: Home) -> None:
    home.join("no-protocol", protocols={})
    home.join("no-type", protocol_type="")
    home.commit({P0: CommittedOffset(1, -1, "x" * 5000, 0)}, "too-long")
    home.commit({P0: 1}, "a-generation", generation=3)
    assert groups_of(home) == set()


def test_a_group_of_ids_that_nobody_came_back_with_goes_with_them(home: Home) -> None:
    (given,) = home.join("g", known_member_id_required=True)
    (used,) = home.join("used", known_member_id_required=True)
    home.join("used", used.member_id, known_member_id_required=True)
    assert groups_of(home) == {"g", "used"}
    home.advance(10_001)
    assert groups_of(home) == {"used"}
    (answer,) = home.join("g", given.member_id)
    assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_that_were_given_away_are_bounded_whatever_groups_they_are_of(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_ids, "MOST_GIVEN_IDS", 50)
    first = home.join("g", known_member_id_required=True)[0].member_id
    for number in range(500):
        home.join(f"h{number}", known_member_id_required=True, session_timeout_ms=10_000 + number)
    assert groups_of(home) == {f"h{number}" for number in range(450, 500)}
    assert home.join("g", first)[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(home.deadlines._heap) < 50 + 2 * MOST_CANCELLED
    last = home.join("h499", known_member_id_required=True)[0].member_id
    assert home.join("h499", last)[0].error is ErrorCode.NONE


def test_a_rebalance_does_not_wait_for_an_id_that_is_forgotten(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_ids, "MOST_GIVEN_IDS", 1)
    first = home.form()
    home.join(known_member_id_required=True)
    waiting = home.join(member_id=first.member_id, protocols={"range": subscription("t", "u")})
    assert waiting == []
    home.join("other", known_member_id_required=True)
    assert [answer.error for answer in waiting] == [ErrorCode.NONE]


def test_a_large_group_is_not_looked_at_for_each_of_its_members(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand sessions end one after the other; looking at the group means looking at all members that are left."""
    looks = 0
    advance = Group.advance

    def counted(group: Group, now_ms: int) -> None:
        nonlocal looks
        looks += 1
        advance(group, now_ms)

    monkeypatch.setattr(Group, "advance", counted)
    members = [Member(f"m{number}", None, "c", "/h", 10**9, 10_000 + number, {"range": b""}) for number in range(1000)]
    group = Group.restore("g", "consumer", "range", 1, "m0", members)
    with home.coordinator._hold("g") as shard:
        assert isinstance(shard, GroupShard)
        shard.groups["g"] = ServedGroup(group)
        group.start(home.deadlines.now_ms())
        home.coordinator._settle(shard, shard.groups["g"])
    for _ in range(11_100):
        home.advance(1)
    assert (len(group.members), looks < 500) == (0, True)


def test_there_is_room_for_so_many_groups_whatever_makes_them(make_home: Callable[..., Home]) -> None:
    home = make_home(most_groups=3)
    home.commit({P0: 1}, "a", host="/10.0.0.7")
    home.form("b")
    home.beat("m", 0, "c", topics=("t",))
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert home.join("d", client_host="/10.0.0.8")[0].error is full
    assert home.commit({P0: 1}, "d", host="/10.0.0.8")[0][0] is full
    assert home.beat("m", 0, "d", topics=("t",), client_host="/10.0.0.8").error is full
    assert home.commit({P0: 2}, "a")[0][0] is ErrorCode.NONE
    assert groups_of(home) == {"a", "b", "c"}


def transactional(home: Home, group_id: str) -> ErrorCode:
    """Return the answer to a TxnOffsetCommit."""
    answers: list[ErrorCode] = []
    home.coordinator.offsets.commit_transactional(
        group_id, Producer(1, 0), -1, "", None, {P0: CommittedOffset(1, -1, "", home.clock.wall_ms())},
        lambda partition, asked: asked(ErrorCode.NONE), lambda error, long: answers.append(error),
        client_host="/127.0.0.1",
    )  # fmt: skip
    (answer,) = answers
    return answer


def test_one_host_makes_half_of_the_groups_whatever_makes_them_and_gets_them_back(
    make_home: Callable[..., Home], caplog: pytest.LogCaptureFixture
) -> None:
    home = make_home(most_groups=6)
    home.commit({P0: 1}, "a")
    home.form("b")
    transactional(home, "c")
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert home.join("d")[0].error is full
    assert home.commit({P0: 1}, "d")[0][0] is full
    assert home.beat("m", 0, "d", topics=("t",), client_host="/127.0.0.1").error is full
    assert transactional(home, "d") is full
    assert "127.0.0.1" in caplog.text and "kbroker.groups.max" in caplog.text and len(caplog.records) == 1
    assert home.commit({P0: 2}, "a")[0][0] is ErrorCode.NONE  # what is there goes on
    assert home.commit({P0: 1}, "d", host="/10.0.0.7")[0][0] is ErrorCode.NONE
    assert home.coordinator.delete_group("a") is ErrorCode.NONE
    assert home.beat("m", 0, "e", topics=("t",), client_host="/127.0.0.1").error is ErrorCode.NONE
    assert home.join("f")[0].error is full


def test_groups_that_nothing_has_come_of_or_that_were_loaded_are_no_hosts(make_home: Callable[..., Home]) -> None:
    home = make_home(most_groups=6)
    for number in range(100):
        assert home.commit({P0: 1}, f"g{number}", metadata="x" * 5000)[0][1]
        assert home.beat("m", 0, f"h{number}", topics=(), regex="(").error is not ErrorCode.NONE
        assert home.join(f"i{number}", protocols={})[0].error is not ErrorCode.NONE
    for group_id in "abc":
        home.commit({P0: 1}, group_id)
    home.restart()
    assert [home.commit({P0: 1}, group_id)[0][0] for group_id in "def"] == [ErrorCode.NONE] * 3
    assert groups_of(home) == set("abcdef")


def test_a_member_that_no_record_could_hold_is_refused(make_home: Callable[..., Home]) -> None:
    """The member would stay in memory for as long as its session."""
    home = make_home(member_metadata_max_bytes=1000)
    for protocols in ({f"p{number}": b"" for number in range(101)}, {"a": bytes(500), "b": bytes(501)}):
        assert home.join(protocols=protocols)[0].error is ErrorCode.INVALID_REQUEST
    assert groups_of(home) == set()
    assert home.join(protocols={"a": bytes(500), "b": bytes(500)})[0].error is ErrorCode.NONE


def test_other_groups_go_on_while_many_members_leave(home: Home) -> None:
    """The coordinator releases the lock of the partition in between."""
    taken = 0
    hold = home.coordinator._hold

    def counted(group_id: str) -> GroupShard | Refusal:
        nonlocal taken
        taken += 1
        return hold(group_id)

    home.coordinator._hold = counted  # type: ignore[method-assign]
    member_id = home.form().member_id
    taken = 0
    leaving = [*(Leaving(f"nobody-{number}") for number in range(5000)), Leaving(member_id)]
    error, errors = home.coordinator.leave("g", leaving)
    assert (error, taken) == (ErrorCode.NONE, 6)
    assert (set(errors[:-1]), errors[-1]) == ({ErrorCode.UNKNOWN_MEMBER_ID}, ErrorCode.NONE)
