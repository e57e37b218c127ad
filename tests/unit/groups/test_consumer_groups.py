"""Groups of the consumer protocol in the coordinator: the log, restarts, offsets, the other protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups import consumer_groups
from kbroker.groups.answers import ListedGroup
from kbroker.model import TopicPartition
from kbroker.rules.consumer_group_member import Beat, BeatAnswer
from kbroker.rules.consumer_group_state import ConsumerLimits
from kbroker.rules.group_member import Leaving
from kbroker.rules.group_state import GroupState
from tests.kit.parts.consumer_members import Topics, topic_id
from tests.kit.parts.processors import wait_until

from .conftest import Home
from .test_transactions import DONE, commit, end, stable

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
T = topic_id("t")
DAY = 24 * 3_600_000


def form_two(home: Home) -> None:
    """Make a group with members a and b in epoch 3, two partitions each."""
    home.enter("a")
    home.enter("b")
    home.beat("a", 2)
    home.beat("a", 2, owned={T: frozenset({0, 1})})
    home.beat("b", 3)


# --- who is served -----------------------------------------------------------------------------------------
def test_only_who_joins_makes_a_group(home: Home) -> None:
    assert home.beat("a", 1) == BeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found.")
    assert home.beat("a", -1) == BeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")
    assert home.enter("a", regex="(").error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert home.coordinator.list_groups() == (ErrorCode.NONE, [])


def test_a_member_without_an_id_is_given_one(home: Home) -> None:
    answer = home.enter("")
    assert answer.error is ErrorCode.NONE and len(answer.member_id or "") == 36
    assert home.beat(answer.member_id or "", answer.member_epoch).error is ErrorCode.NONE


def test_a_stopped_coordinator_serves_nobody(home: Home) -> None:
    home.enter("a")
    home.coordinator.stop()
    assert home.beat("a", 2).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert home.coordinator.consumers.describe("g").error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_group_without_a_name_is_refused(home: Home) -> None:
    assert home.enter("a", group_id="").error is ErrorCode.INVALID_GROUP_ID


# --- the log -----------------------------------------------------------------------------------------------
def test_nobody_hears_of_a_change_before_the_log_has_it_for_good(home: Home) -> None:
    replica = home.replica_of("g")
    replica.hold = True
    answers: list[BeatAnswer] = []
    beat = Beat("a", 0, "c", "/h", rebalance_timeout_ms=1, topics=("t",), owned={})
    home.coordinator.consumers.heartbeat("g", beat, answers.append)
    assert answers == []
    replica.release()
    assert [answer.member_epoch for answer in answers] == [2]


def test_who_asks_meanwhile_hears_of_it_when_it_is_committed(home: Home) -> None:
    replica = home.replica_of("g")
    replica.hold = True
    answers: list[BeatAnswer] = []
    beat = Beat("a", 0, "c", "/h", rebalance_timeout_ms=1, topics=("t",), owned={})
    home.coordinator.consumers.heartbeat("g", beat, answers.append)
    home.coordinator.consumers.heartbeat("g", Beat("a", 2, "c", "/h"), answers.append)
    assert answers == []
    replica.release()
    assert [(answer.error, answer.member_epoch) for answer in answers] == [(ErrorCode.NONE, 2)] * 2


def test_who_asks_meanwhile_does_not_hear_of_what_may_be_lost(home: Home) -> None:
    replica = home.replica_of("g")
    replica.hold = True
    answers: list[BeatAnswer] = []
    beat = Beat("a", 0, "c", "/h", rebalance_timeout_ms=1, topics=("t",), owned={})
    home.coordinator.consumers.heartbeat("g", beat, answers.append)
    replica.led_since = replica.leader_epoch = 1
    replica.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    home.coordinator.consumers.heartbeat("g", Beat("a", 2, "c", "/h"), answers.append)
    assert [answer.error for answer in answers] == [ErrorCode.NOT_COORDINATOR]
    home.advance(100)
    assert [answer.error for answer in answers] == [ErrorCode.NOT_COORDINATOR] * 2
    home.coordinator.consumers.heartbeat("g", Beat("a", 2, "c", "/h"), answers.append)
    home.coordinator.shards.resign(home.coordinator.shards.partition_for("g"))
    assert [answer.error for answer in answers] == [ErrorCode.NOT_COORDINATOR] * 3


def test_a_change_that_the_log_refuses_has_not_happened(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    home.enter("a")
    replica = home.replica_of("g")
    for error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT):
        replica.refuse = error
        for _ in range(3):
            assert home.enter("b").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.messages == [
        f"group 'g' could not be stored: {why}" for why in ("NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT")
    ]
    replica.refuse = None
    assert [m.member_id for m, _ in home.coordinator.consumers.describe("g").members] == ["a"]
    assert home.enter("b").member_epoch == 3


def test_a_heartbeat_that_changes_nothing_appends_nothing(home: Home) -> None:
    form_two(home)
    replica = home.replica_of("g")
    before = len(replica.batches)
    for _ in range(10):
        home.advance(4000)
        assert home.beat("a", 3).error is ErrorCode.NONE
        assert home.beat("b", 3).error is ErrorCode.NONE
    assert len(replica.batches) == before


def test_each_step_is_one_batch(home: Home) -> None:
    home.enter("a")
    assert len(home.replica_of("g").batches) == 1
    home.beat("a", -1)
    assert len(home.replica_of("g").batches) == 2


# --- restarts ----------------------------------------------------------------------------------------------
def test_a_restart_in_the_middle_of_a_rebalance_changes_nothing(home: Home) -> None:
    home.enter("a", instance_id="i", rack_id="r", assignor="range")
    home.enter("b")
    home.beat("a", 2)
    before = home.coordinator.consumers.describe("g")
    home.restart()
    after = home.coordinator.consumers.describe("g")
    assert after._replace(members=(), topics=home.topics) == before._replace(members=(), topics=home.topics)
    assert sorted(map(repr, after.members)) == sorted(map(repr, before.members))
    assert home.beat("a", 2, owned={T: frozenset({0, 1})}).member_epoch == 3
    assert home.beat("b", 3).assignment == {T: {2: 3, 3: 3}}


def test_members_have_a_session_to_be_heard_of_after_a_restart(home: Home) -> None:
    form_two(home)
    home.restart()
    home.advance(40_000)
    home.beat("a", 3)
    home.advance(6_000)
    assert [m.member_id for m, _ in home.coordinator.consumers.describe("g").members] == ["a"]


def test_a_member_that_has_to_give_up_partitions_has_its_timeout_again_after_a_restart(home: Home) -> None:
    home.enter("a")
    home.enter("b")
    home.beat("a", 2)
    home.restart()
    home.advance(999)
    home.beat("a", 2)
    home.advance(1)
    assert [m.member_id for m, _ in home.coordinator.consumers.describe("g").members] == ["b"]


def test_a_deleted_group_is_not_there_again_after_a_restart(home: Home) -> None:
    home.enter("a")
    home.commit({P0: 5}, generation=2, member_id="a")
    assert home.coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    home.beat("a", -1)
    assert home.coordinator.delete_group("g") is ErrorCode.NONE
    assert home.coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    home.restart()
    assert home.coordinator.list_groups() == (ErrorCode.NONE, [])


# --- offsets -----------------------------------------------------------------------------------------------
def test_offsets_are_committed_and_fetched_with_member_epochs(home: Home) -> None:
    form_two(home)
    assert home.commit({P0: 5}, generation=3, member_id="a") == [(ErrorCode.NONE, frozenset())]
    assert home.commit({P0: 6}, generation=2, member_id="a") == [(ErrorCode.NONE, frozenset())], "it has it since then"
    assert home.commit({P0: 7}, generation=2, member_id="b")[0][0] is ErrorCode.STALE_MEMBER_EPOCH
    assert home.commit({P0: 7}, generation=4, member_id="a")[0][0] is ErrorCode.STALE_MEMBER_EPOCH
    assert home.commit({P0: 7}, generation=3, member_id="x")[0][0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert home.commit({P0: 7})[0][0] is ErrorCode.UNKNOWN_MEMBER_ID
    fetch = home.coordinator.offsets.fetch
    assert [one.offset for one in fetch("g", [P0], False, "a", 3)[1]] == [6]
    assert fetch("g", [P0], False, "a", 2) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    assert fetch("g", [P0], False, "x", 3) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    assert [one.offset for one in fetch("g", [P0], False)[1]] == [6], "an administrator may ask"


def test_who_commits_to_a_group_that_is_gone_is_told_so_as_before(home: Home) -> None:
    assert home.commit({P0: 5}, generation=1, member_id="a")[0][0] is ErrorCode.ILLEGAL_GENERATION
    assert home.coordinator.list_groups() == (ErrorCode.NONE, [])
    assert commit(home, {P0: 5}, generation=1, member_id="a")[0][0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_transactions_are_committed_with_member_epochs(home: Home) -> None:
    """Zombies get the error of an old generation, which is the one that producers know."""
    form_two(home)
    assert commit(home, {P0: 5}, generation=3, member_id="a") == DONE
    assert commit(home, {P1: 6}, generation=2, member_id="a") == DONE, "it has it since then"
    for epoch in (-1, 1, 4, 99):
        assert commit(home, {P0: 7}, generation=epoch, member_id="a")[0][0] is ErrorCode.ILLEGAL_GENERATION
    assert commit(home, {P0: 7}, generation=2, member_id="b")[0][0] is ErrorCode.ILLEGAL_GENERATION, "nor has had it"
    for epoch in (-1, 3):
        assert commit(home, {P0: 7}, generation=epoch, member_id="x")[0][0] is ErrorCode.UNKNOWN_MEMBER_ID
    home.restart()
    assert stable(home, P0, P1) == ["UNSTABLE_OFFSET_COMMIT"] * 2
    end(home, True)
    assert stable(home, P0, P1) == [5, 6]
    home.beat("a", -1)
    assert commit(home, {P0: 8}, generation=3, member_id="a")[0][0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_of_an_old_version_is_refused_to_members(home: Home) -> None:
    home.enter("a")
    heard: list[ErrorCode] = []
    home.coordinator.offsets.commit("g", 2, "a", None, {}, lambda error, _: heard.append(error), 8)
    assert heard == [ErrorCode.UNSUPPORTED_VERSION]


def test_offsets_do_not_expire_while_a_member_wants_them(make_home: type[Home]) -> None:
    home = make_home(consumer=ConsumerLimits(session_timeout_ms=100 * DAY))
    home.topics = Topics(t=4, u=1)
    other = TopicPartition("u", 0)
    home.enter("a")
    home.commit({P0: 5, other: 6}, generation=2, member_id="a")
    home.advance(7 * DAY - 600_000)
    assert home.fetch() == {"t-0": 5, "u-0": 6}
    home.advance(600_000)
    assert home.fetch() == {"t-0": 5}, "nobody wants the other"
    home.beat("a", -1)
    home.advance(600_000)
    assert home.fetch() == {} and home.coordinator.list_groups()[1] == []
    home.restart()
    assert home.fetch() == {} and home.coordinator.list_groups()[1] == []


def test_offsets_of_topics_that_members_want_are_not_deleted(home: Home) -> None:
    home.enter("a")
    other = TopicPartition("u", 0)
    home.commit({P0: 5, other: 6}, generation=2, member_id="a")
    error, errors = home.coordinator.offsets.delete("g", [P0, other])
    assert error is ErrorCode.NONE
    assert errors == {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, other: ErrorCode.NONE}


# --- settings of single groups -----------------------------------------------------------------------------
@pytest.fixture
def own() -> dict[str, dict[str, int]]:
    return {}


@pytest.fixture
def set_home(own: dict[str, dict[str, int]]) -> Iterator[Home]:
    home = Home(own_limits=lambda group_id: own.get(group_id, {}))
    yield home
    home.coordinator.stop()


def test_a_group_has_what_was_set_for_it_and_others_have_not(set_home: Home, own: dict[str, dict[str, int]]) -> None:
    own["g"] = {"heartbeat_interval_ms": 7, "session_timeout_ms": 100}
    assert set_home.enter("a").heartbeat_interval_ms == 7
    assert set_home.enter("a", group_id="other").heartbeat_interval_ms == 5000
    set_home.advance(100)
    assert set_home.coordinator.consumers.describe("g").members == ()
    assert len(set_home.coordinator.consumers.describe("other").members) == 1


def test_what_is_set_holds_from_the_next_heartbeat_on(set_home: Home, own: dict[str, dict[str, int]]) -> None:
    set_home.enter("a")
    own["g"] = {"heartbeat_interval_ms": 7, "session_timeout_ms": 100}
    set_home.coordinator.consumers.update_limits("g")
    set_home.coordinator.consumers.update_limits("nobody")
    set_home.coordinator.consumers.update_limits("")
    set_home.advance(1000)
    assert set_home.beat("a", 2).heartbeat_interval_ms == 7
    set_home.advance(100)
    assert set_home.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    del own["g"]
    set_home.coordinator.consumers.update_limits("g")
    assert set_home.enter("a").heartbeat_interval_ms == 5000


def test_what_is_set_holds_after_a_restart(set_home: Home, own: dict[str, dict[str, int]]) -> None:
    set_home.enter("a")
    own["g"] = {"session_timeout_ms": 100}
    set_home.restart()
    set_home.advance(100)
    assert set_home.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_assignments_are_made_as_often_as_is_set(set_home: Home, own: dict[str, dict[str, int]]) -> None:
    own["g"] = {"assignment_interval_ms": 50}
    set_home.enter("a")
    assert set_home.enter("b").member_epoch == 2
    set_home.advance(50)
    assert set_home.beat("b", 2).member_epoch == 3


# --- patterns ----------------------------------------------------------------------------------------------
def find(home: Home, member_id: str, **fields: object) -> BeatAnswer:
    """Send a heartbeat that starts a search for topics, and wait for the end of the search."""
    answer = home.enter(member_id, **fields)  # type: ignore[arg-type]
    thread = home.coordinator.consumers._resolver._thread
    if thread is not None:
        thread.join(10)
    return answer


def test_topics_of_a_pattern_are_found_beside_the_heartbeat(home: Home) -> None:
    home.topics = Topics(t=1, t2=1, other=1)
    assert find(home, "a", topics=(), regex="t[0-9]?").assignment == {}
    assert home.beat("a", 1).assignment == {T: {0: 2}, topic_id("t2"): {0: 2}}
    home.restart()
    assert home.beat("a", 2) == BeatAnswer(ErrorCode.NONE, None, "a", 2, 5000, None)
    assert home.coordinator.offsets.delete("g", [P0])[1] == {P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_a_pattern_that_is_too_costly_matches_nothing_and_is_told_of(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_groups, "MAX_PATTERN_CPU_S", 0.0)
    find(home, "a", topics=(), regex="t")
    assert home.beat("a", 1).assignment is None
    assert "takes too long to match" in caplog.text


def test_a_look_for_topics_that_fails_is_not_the_last(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(consumer_groups, "_matching", lambda *_: 1 // 0)
        find(home, "a", topics=(), regex="t")
    home.beat("a", 1)
    thread = home.coordinator.consumers._resolver._thread
    if thread is not None:
        thread.join(10)
    assert home.beat("a", 1).assignment == {T: {0: 2, 1: 2, 2: 2, 3: 2}}


# --- administration ----------------------------------------------------------------------------------------
def test_groups_of_both_kinds_are_listed_and_described_as_what_they_are(home: Home) -> None:
    home.enter("a", group_id="new")
    home.form("old")
    listed = home.coordinator.list_groups()[1]
    assert set(listed) == {
        ListedGroup("new", "consumer", GroupState.STABLE, "consumer"),
        ListedGroup("old", "consumer", GroupState.STABLE, "classic"),
    }
    assert [group.group_id for group in home.coordinator.list_groups(kinds=["Consumer"])[1]] == ["new"]
    assert [group.group_id for group in home.coordinator.list_groups(["stable"], ["classic"])[1]] == ["old"]
    assert home.coordinator.describe("new").state == "Dead"
    assert home.coordinator.consumers.describe("old").message == "Group old is not a consumer group."
    assert home.coordinator.consumers.describe("none").message == "Group none not found."
    described = home.coordinator.consumers.describe("new")
    assert (described.state, described.epoch, described.target_epoch, described.assignor) == ("Stable", 2, 2, "uniform")


# --- the other protocol ------------------------------------------------------------------------------------
def test_a_group_without_members_goes_over_to_the_consumer_protocol_with_its_offsets(home: Home) -> None:
    joined = home.form()
    home.commit({P0: 5}, generation=joined.generation, member_id=joined.member_id)
    home.coordinator.leave("g", [Leaving(joined.member_id)])
    assert home.enter("a").member_epoch == 2
    assert home.coordinator.list_groups()[1][0].kind == "consumer"
    home.restart()
    assert home.coordinator.list_groups()[1][0].kind == "consumer"
    assert home.fetch("g", P0) == {"t-0": 5}


def test_a_group_without_members_goes_over_to_the_classic_protocol_with_its_offsets(home: Home) -> None:
    home.enter("a")
    home.commit({P0: 5}, generation=2, member_id="a")
    home.beat("a", -1)
    joined = home.form()
    assert joined.generation == 1
    home.restart()
    assert home.coordinator.list_groups()[1] == [ListedGroup("g", "consumer", GroupState.STABLE, "classic")]
    assert home.fetch("g", P0) == {"t-0": 5}


def test_who_is_refused_does_not_make_a_group_classic(home: Home) -> None:
    home.enter("a")
    home.beat("a", -1)
    (refused,) = home.join(session_timeout_ms=1)
    assert refused.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert home.coordinator.list_groups()[1][0].kind == "consumer"


def test_a_change_over_that_the_log_refuses_has_not_happened(home: Home) -> None:
    joined = home.form()
    home.coordinator.leave("g", [Leaving(joined.member_id)])
    home.replica_of("g").refuse = ErrorCode.KAFKA_STORAGE_ERROR
    assert home.enter("a").error is ErrorCode.NOT_COORDINATOR
    home.replica_of("g").refuse = None
    assert home.coordinator.describe("g").state == "Empty"
    assert home.form().generation == 3


# --- several threads ---------------------------------------------------------------------------------------
# --- beside a Kafka --------------------------------------------------------------------------------------
def test_groups_end_when_a_kafka_joins_and_classic_members_go_on_at_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    form_two(home)
    assert home.commit({P0: 5}, generation=3, member_id="b") == DONE
    home.become(only_kbrokers=False)
    assert [line.message for line in caplog.records] == [
        "groups that use KIP-848 end, since a Kafka is a member of the cluster: 'g'. Their offsets stay, and consumers "
        "with group.protocol=classic go on from them"
    ]
    for epoch in (0, 3, -1):
        told = home.beat("a", epoch, rebalance_timeout_ms=1000, topics=("t",), owned={})
        assert told == BeatAnswer(ErrorCode.UNSUPPORTED_VERSION, consumer_groups.NOT_SERVED)
    assert home.form().error is ErrorCode.NONE
    assert home.fetch() == {"t-0": 5}
    assert home.coordinator.list_groups()[1] == [ListedGroup("g", "consumer", GroupState.STABLE, "classic")]


def test_groups_that_are_loaded_beside_a_kafka_have_no_members(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    form_two(home)
    home.only_kbrokers = False
    home.restart()
    # A group is served a moment before the thread that has loaded it removes its members, and says so.
    wait_until(lambda: any("end, since a Kafka" in line.message for line in caplog.records), "the members' end")
    assert home.form().error is ErrorCode.NONE
    assert home.coordinator.list_groups()[1] == [ListedGroup("g", "consumer", GroupState.STABLE, "classic")]


def test_classic_members_of_a_group_of_both_kinds_stay_when_a_kafka_joins(make_home: type[Home]) -> None:
    home = make_home(migration_policy="bidirectional")
    home.enter("a")
    (joined,) = home.join(session_timeout_ms=30_000)
    assert joined.error is ErrorCode.NONE
    home.become(only_kbrokers=False)
    (again,) = home.join(member_id=joined.member_id, session_timeout_ms=30_000)
    assert (again.error, again.member_id) == (ErrorCode.NONE, joined.member_id)
    assert home.coordinator.list_groups()[1] == [
        ListedGroup("g", "consumer", GroupState.COMPLETING_REBALANCE, "classic")
    ]


def test_groups_are_served_again_when_the_last_kafka_has_left(home: Home) -> None:
    form_two(home)
    home.become(only_kbrokers=False)
    home.become(only_kbrokers=True)
    assert home.enter("a").error is ErrorCode.NONE
    assert len(home.coordinator.consumers.describe("g").members) == 1


def test_members_that_come_and_go_at_once_end_with_everything_assigned_once(home: Home) -> None:
    home.topics = Topics(t=32)
    failures: list[BaseException] = []

    def live(number: int) -> None:
        try:
            member_id, owned = f"m{number}", frozenset[int]()
            answer = home.enter(member_id)
            for _ in range(60):
                owned = frozenset(answer.assignment.get(T, ())) if answer.assignment is not None else owned
                answer = home.beat(member_id, answer.member_epoch, owned={T: owned} if owned else {})
                assert answer.error is ErrorCode.NONE
            if number % 3 == 0:
                home.beat(member_id, -1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    having = [p for m, _ in home.coordinator.consumers.describe("g").members for p in m.current.assigned.get(T, ())]
    assert len(having) == len(set(having))
