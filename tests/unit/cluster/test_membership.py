"""Joining a tree, losing the session, and coming back; with the embedded store, whose sessions can be ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kbroker.cluster import members
from kbroker.cluster.config_notifications import KEPT_S, notification
from kbroker.cluster.joining import CannotJoin, InterBrokerListeners
from kbroker.cluster.membership import RETRY_S, Membership, MembershipOptions
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore, store_path
from kbroker.coordination.store import AnswerLost, Create, SetData, Store, StoreUnavailable
from kbroker.model import Endpoint

WAIT_S = 30.0


class FrozenClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class Seen:
    """A member that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def session_ended(self) -> None:
        self.told.append(("ended",))

    def registered(self, store: Store, broker_epoch: int) -> None:
        self.told.append(("registered", broker_epoch))

    def configs_changed(self, entity_paths: Sequence[str]) -> None:
        self.told.append(("configs", *entity_paths))

    def group_configs_changed(self) -> None:
        self.told.append(("groups",))

    def brokers_changed(self, kbroker_versions: Mapping[int, str | None]) -> None:
        self.told.append(("brokers", dict(kbroker_versions)))

    def must_stop(self, reason: str) -> None:
        self.told.append(("stop", reason))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told


class Ensemble:
    """One embedded store for several members."""

    def __init__(self, folder: Path):
        self.store = EmbeddedStore(store_path(str(folder)))
        self.admin = self.store.connect()
        self.clock = FrozenClock()
        self.is_away = False
        self.sessions: list[EmbeddedSession] = []

    def open_session(self) -> Store:
        if self.is_away:
            raise StoreUnavailable("ZooKeeper is away")
        self.sessions.append(self.store.connect())
        return self.sessions[-1]

    def member(self, seen: Seen | None = None, listener: str = "PLAINTEXT", timeout_s: float = 0.02) -> Membership:
        options = MembershipOptions("zk:1", timeout_s, InterBrokerListeners(listener), "9.9")
        return Membership(options, self.open_session, self.clock, seen or Seen())

    def joined(self, node_id: int, seen: Seen, listener: str = "PLAINTEXT") -> Membership:
        member = self.member(seen, listener)
        member.connect(node_id, None)
        member.register(endpoints(node_id, listener), None)
        member.step()
        return member


def endpoints(node_id: int, listener: str = "PLAINTEXT") -> list[Endpoint]:
    return [Endpoint(listener, "PLAINTEXT", "h", 9000 + node_id)]


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    made = Ensemble(tmp_path)
    yield made
    made.store.stop()


def next_step(member: Membership) -> float:
    """Step when something has happened."""
    assert member.woken.wait(WAIT_S)
    return member.step()


def test_the_first_broker_makes_the_layout_and_the_cluster(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    assert len(member.cluster_id) == 22
    data, stat = ensemble.admin.get("/brokers/ids/3")
    registration = paths.decode_broker("/brokers/ids/3", data)
    assert registration == (tuple(endpoints(3)), None, ensemble.clock.wall_ms(), "9.9")
    assert stat.version == 1, "made empty, then set"
    assert seen.take() == [("registered", stat.creation_id)]
    for path in paths.PERSISTENT:
        assert ensemble.admin.exists(path) is not None
    assert ensemble.admin.get(paths.CONTROLLER_EPOCH)[0] == b"0"


def test_a_second_broker_is_noticed_and_a_kafka_is_none_of_ours(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    kafka = paths.BrokerRegistration(tuple(endpoints(4)), None, 0)
    ensemble.admin.create("/brokers/ids/4", paths.encode_broker(kafka), ephemeral=True)
    next_step(member)
    assert seen.take() == [("brokers", {4: None})]
    ensemble.joined(5, Seen())
    next_step(member)
    assert seen.take() == [("brokers", {4: None, 5: "9.9"})]


def register_kafka(ensemble: Ensemble, node_id: int, *listeners: str) -> None:
    """Register a broker that nobody checks, with the listeners of `endpoints` unless others are given."""
    given = [Endpoint(each, "PLAINTEXT", "h", 9100 + at) for at, each in enumerate(listeners)] or endpoints(node_id)
    kafka = paths.encode_broker(paths.BrokerRegistration(tuple(given), None, 0))
    ensemble.admin.create(paths.broker_path(node_id), kafka, ephemeral=True)


def test_a_kafka_that_is_there_is_told_before_the_registration(ensemble: Ensemble) -> None:
    """The controller gives roles to whoever is registered, and what a coordinator serves depends on who is there."""
    member = ensemble.member(seen := Seen())
    member.connect(3, None)
    register_kafka(ensemble, 4)
    epoch = member.register(endpoints(3), None)
    assert seen.take() == [("brokers", {4: None}), ("registered", epoch)]
    member.step()
    assert seen.take() == []
    register_kafka(ensemble, 5)
    next_step(member)
    assert seen.take() == [("brokers", {4: None, 5: None})]


def test_a_registration_that_cannot_be_read_is_told_once_and_its_broker_stays_what_it_was(
    ensemble: Ensemble, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    register_kafka(ensemble, 4)
    ensemble.joined(6, Seen())
    next_step(member)
    seen.take()
    for node_id in (4, 6):
        ensemble.admin.set(paths.broker_path(node_id), b"rubbish")
    for node_id in (5, 7):
        ensemble.admin.create(paths.broker_path(node_id), b"rubbish", ephemeral=True)
        next_step(member)
    ensemble.store.expire(ensemble.sessions[0].session_id)
    next_step(member)
    assert [each[0] for each in seen.take()] == ["ended", "registered"]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.args[0] for record in errors if isinstance(record.args, tuple)] == [4, 5, 6, 7]
    ensemble.admin.delete(paths.broker_path(4))
    next_step(member)
    assert seen.take() == [("brokers", {6: "9.9"})]


def test_log_directories_of_another_cluster_change_nothing(ensemble: Ensemble) -> None:
    with pytest.raises(CannotJoin, match=r"zookeeper\.connect=zk:1: the log directories .* it holds no cluster"):
        ensemble.member().connect(1, "some-cluster")
    assert ensemble.admin.children("/") == []


def test_an_id_that_is_taken_is_waited_for_and_then_refused(ensemble: Ensemble) -> None:
    ensemble.joined(3, Seen())
    with pytest.raises(CannotJoin, match=r"broker\.id=3 is registered already \(PLAINTEXT://h:9003\), and alive: each"):
        ensemble.member().connect(3, None)


def test_a_former_life_of_the_same_broker_is_waited_for(ensemble: Ensemble) -> None:
    ensemble.joined(3, Seen())
    dying = ensemble.sessions[-1]
    late = ensemble.member(timeout_s=WAIT_S)
    thread = threading.Thread(target=late.connect, args=(3, None))
    thread.start()
    ensemble.store.expire(dying.session_id)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    late.register(endpoints(3), None)


def test_the_address_of_another_broker_is_refused(ensemble: Ensemble) -> None:
    ensemble.joined(3, Seen())
    other = ensemble.member()
    other.connect(4, None)
    with pytest.raises(
        CannotJoin, match=r"broker 3 is registered with an address of this broker \(h:9003\), and alive"
    ):
        other.register(endpoints(3), None)
    assert ensemble.admin.children("/brokers/ids") == ["3"]


def test_a_missing_inter_broker_listener_is_refused_before_the_registration(ensemble: Ensemble) -> None:
    ensemble.joined(3, Seen(), listener="INSIDE")
    other = ensemble.member(listener="OUTSIDE")
    other.connect(4, None)
    with pytest.raises(CannotJoin, match="listener OUTSIDE"):
        other.register(endpoints(4, "OUTSIDE"), None)
    assert ensemble.admin.children("/brokers/ids") == ["3"]


LATER_LISTENERS = {
    "listener PLAINTEXT (inter.broker.listener.name": ("OTHER",),
    "listener NEW is missing here": ("PLAINTEXT", "NEW"),
}
"""What a start would be refused with, by the listeners with which another broker came while a member served."""


@pytest.mark.parametrize("misfit", LATER_LISTENERS)
def test_a_member_whose_session_is_lost_comes_back_although_others_came_with_other_listeners(
    ensemble: Ensemble, caplog: pytest.LogCaptureFixture, misfit: str
) -> None:
    """An outage of ZooKeeper in a rolling change of listeners ends all sessions: nobody may stay out for that."""
    member = ensemble.joined(3, seen := Seen())
    register_kafka(ensemble, 4, *LATER_LISTENERS[misfit])
    next_step(member)
    seen.take()
    ensemble.store.expire(ensemble.sessions[-1].session_id)
    next_step(member)
    epoch = ensemble.admin.get(paths.broker_path(3))[1].creation_id
    assert seen.take()[:2] == [("ended",), ("registered", epoch)]
    assert member.is_registered
    told = [record.message for record in caplog.records if misfit in record.message]
    assert [each.split(": ")[0] for each in told] == ["this broker serves on, although a start would be refused now"]


@pytest.mark.parametrize("misfit", LATER_LISTENERS)
def test_a_registration_that_somebody_removes_is_made_again_although_others_came_with_other_listeners(
    ensemble: Ensemble, misfit: str
) -> None:
    member = ensemble.joined(3, seen := Seen())
    register_kafka(ensemble, 4, *LATER_LISTENERS[misfit])
    next_step(member)
    seen.take()
    ensemble.admin.delete(paths.broker_path(3))
    while not seen.told or not member.is_registered:
        assert next_step(member) != RETRY_S
    assert [each[0] for each in seen.take()] == ["ended", "registered"]


def test_an_address_that_only_its_own_machine_reaches_is_refused_before_the_registration(ensemble: Ensemble) -> None:
    ensemble.joined(1, Seen())
    member = ensemble.member()
    member.connect(2, None)
    with pytest.raises(CannotJoin, match=r"zookeeper.connect=zk:1: advertised.listeners .*PLAINTEXT://localhost:9002"):
        member.register([Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9002)], None)
    assert ensemble.admin.children(paths.BROKER_IDS) == ["1"]


def test_a_registered_address_that_only_its_own_machine_reaches_is_told(
    ensemble: Ensemble, caplog: pytest.LogCaptureFixture
) -> None:
    local = [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9000 + each) for each in range(4)]
    for node_id in (1, 2):
        member = ensemble.member()
        member.connect(node_id, None)
        member.register([local[node_id]], None)
    assert "only its own machine" not in caplog.text
    ensemble.joined(3, Seen())
    assert [record.args for record in caplog.records if "only its own machine" in record.message] == [(1,), (2,)]


def test_an_id_is_generated_above_the_reserved_ones(ensemble: Ensemble) -> None:
    first, second = ensemble.member(), ensemble.member()
    first.connect(-1, None)
    second.connect(-1, None)
    assert (first.node_id, second.node_id) == (1001, 1002)


def test_a_lost_session_is_replaced_and_its_registration_too(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    (_, first_epoch), *_ = seen.take()
    ensemble.store.expire(ensemble.sessions[-1].session_id)
    next_step(member)
    epoch = ensemble.admin.get("/brokers/ids/3")[1].creation_id
    assert epoch > first_epoch
    assert seen.take()[:2] == [("ended",), ("registered", epoch)]


def test_a_long_absence_of_the_store_is_survived(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    ensemble.is_away = True
    ensemble.store.expire(ensemble.sessions[-1].session_id)
    assert next_step(member) == RETRY_S
    assert member.step() == RETRY_S
    assert seen.take() == [("ended",)], "the controller resigns once, before a new session is tried"
    assert not member.is_registered
    ensemble.is_away = False
    member.step()
    assert member.is_registered
    assert seen.take()[0][0] == "registered"


def test_a_session_that_may_have_ended_without_word_counts_as_no_registration(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store cannot tell a member that it does not reach; it may be reached again before the session ends."""
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    with monkeypatch.context() as cut_off:
        cut_off.setattr(EmbeddedSession, "may_have_ended", True)
        assert not member.is_registered
        member.step()
    assert member.is_registered
    assert seen.take() == [], "nobody resigns or registers for it"


def test_the_own_registration_of_an_ended_session_is_replaced_at_once(ensemble: Ensemble) -> None:
    """The client may know that its session has ended before ZooKeeper has removed its nodes (KAFKA-7165)."""
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    member._note("session")
    old = ensemble.sessions[-1]
    old.close = lambda: None  # type: ignore[method-assign]  # the store does not hear of the end
    member.step()
    assert ensemble.admin.get("/brokers/ids/3")[1].owner == ensemble.sessions[-1].session_id != old.session_id
    assert [each[0] for each in seen.take()][:2] == ["ended", "registered"]


def test_an_id_that_another_took_meanwhile_stays_theirs(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    ensemble.store.expire(ensemble.sessions[-1].session_id)
    thief = ensemble.admin
    thief.create("/brokers/ids/3", paths.encode_broker(paths.BrokerRegistration((), None, 0)), ephemeral=True)
    assert next_step(member) == RETRY_S
    assert ensemble.admin.get("/brokers/ids/3")[1].owner == thief.session_id
    thief.delete("/brokers/ids/3")
    member.step()
    assert ensemble.admin.get("/brokers/ids/3")[1].owner == ensemble.sessions[-1].session_id


def test_a_registration_that_somebody_removes_is_made_again(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    ensemble.admin.delete("/brokers/ids/3")
    while ensemble.admin.exists("/brokers/ids/3") is None:
        next_step(member)
    assert [each[0] for each in seen.take()][:2] == ["ended", "registered"]


def test_a_registration_is_finished_although_the_store_goes_away_in_the_middle_of_it(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    session = ensemble.sessions[-1]
    seen.take()
    children = session.children

    def away(path: str, *given: object) -> list[str]:
        if path == paths.CONFIG_CHANGES:
            session.children = children  # type: ignore[method-assign]
            raise StoreUnavailable("away")
        return children(path, *given)  # type: ignore[arg-type]

    session.children = away  # type: ignore[method-assign, assignment]
    ensemble.admin.delete(paths.broker_path(3))
    while not seen.told or member.is_registered:
        next_step(member)
    assert seen.take() == [("ended",)]
    epoch = ensemble.admin.get(paths.broker_path(3))[1].creation_id
    next_step(member)
    assert seen.take() == [("registered", epoch)]
    assert member.is_registered


def test_a_tree_of_another_cluster_after_the_outage_is_not_joined(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    ensemble.admin.set(paths.CLUSTER_ID, paths.encode_cluster_id("another"))
    ensemble.store.expire(ensemble.sessions[-1].session_id)
    assert next_step(member) == RETRY_S
    assert seen.take() == [("ended",)]
    assert ensemble.admin.children("/brokers/ids") == []


def test_config_changes_are_told_once_and_in_order(ensemble: Ensemble) -> None:
    ensemble.admin.multi([Create("/config"), Create(paths.CONFIG_CHANGES)])
    members.ensure_layout(ensemble.admin)
    ensemble.admin.multi([notification("topics/before")])
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    ensemble.admin.multi([notification("topics/a"), notification("brokers/3"), notification("topics/a")])
    ensemble.admin.create(paths.CONFIG_CHANGE_PREFIX, b"rubbish", sequential=True)
    next_step(member)
    assert seen.take() == [("configs", "topics/a", "brokers/3")]
    ensemble.admin.multi([notification("topics/b")])
    next_step(member)
    assert seen.take() == [("configs", "topics/b")]


def test_old_config_changes_are_removed_by_who_has_seen_them_long_enough(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    ensemble.admin.multi([notification("topics/a")])
    ensemble.admin.create(f"{paths.CONFIG_CHANGES}/note")
    next_step(member)
    ensemble.clock.now_s += KEPT_S - 1
    member.step()
    assert len(ensemble.admin.children(paths.CONFIG_CHANGES)) == 2
    ensemble.clock.now_s += 62
    member.step()
    assert ensemble.admin.children(paths.CONFIG_CHANGES) == ["note"]


def test_configs_of_groups_have_a_sign_of_their_own(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    ensemble.admin.create(paths.GROUP_CONFIGS)
    next_step(member)
    ensemble.admin.set(paths.GROUP_CONFIGS, b"")
    next_step(member)
    assert seen.take() == [("groups",), ("groups",)]


def test_a_feature_that_is_finalized_later_and_not_known_ends_the_broker(ensemble: Ensemble) -> None:
    seen = Seen()
    member = ensemble.joined(3, seen)
    seen.take()
    ensemble.admin.set(paths.FEATURE, b'{"features":{"later":1},"version":2,"status":1}')
    next_step(member)
    ((what, reason),) = seen.take()
    assert what == "stop"
    assert "later=1" in str(reason)


def test_a_registration_whose_answer_is_lost_counts(ensemble: Ensemble) -> None:
    member = ensemble.member(seen := Seen())
    session = member.connect(3, None)
    multi = session.multi

    def lose_answer(operations: Sequence[Create | SetData]) -> object:
        multi(operations)
        session.multi = multi  # type: ignore[method-assign]
        raise StoreUnavailable("the connection is lost; the change may have been made")

    session.multi = lose_answer  # type: ignore[method-assign, assignment]
    epoch = member.register(endpoints(3), None)
    assert ensemble.admin.get("/brokers/ids/3")[1].creation_id == epoch
    assert seen.take()[0] == ("registered", epoch)


@pytest.mark.parametrize("lost_at", range(4))
def test_a_start_goes_on_when_the_connection_is_lost_in_the_middle(ensemble: Ensemble, lost_at: int) -> None:
    """The connection is lost before the store has made one of the start's changes."""
    open_session, changes = ensemble.open_session, 0

    def open_unreliable() -> Store:
        session = open_session()
        multi = session.multi

        def lose_connection(operations: Sequence[Create | SetData]) -> object:
            nonlocal changes
            changes += 1
            if changes == lost_at + 1:
                raise AnswerLost("the connection is lost; the change may have been made")
            return multi(operations)

        session.multi = lose_connection  # type: ignore[method-assign, assignment]
        return session

    ensemble.open_session = open_unreliable  # type: ignore[method-assign]
    member = ensemble.member()
    assert member.connect(-1, None)
    member.register(endpoints(1001), None)
    assert changes > lost_at + 1
    assert ensemble.admin.exists("/brokers/ids/1001") or ensemble.admin.exists("/brokers/ids/1002")


def test_brokers_of_a_new_cluster_may_make_its_layout_at_the_same_time(ensemble: Ensemble) -> None:
    """Each node that one of them finds missing, the other one makes at once."""
    slow, quick = ensemble.store.connect(), ensemble.store.connect()
    exists = slow.exists

    def missing(path: str, *given: object) -> object:
        found = exists(path)
        if path in (paths.CONSUMERS, paths.CONFIG_CHANGES, paths.FEATURE):
            members.ensure_layout(quick)
        if path == paths.CLUSTER_ID:
            members.ensure_cluster_id(quick, None, tuple)
        return found

    slow.exists = missing  # type: ignore[method-assign, assignment]
    members.ensure_layout(slow)
    assert members.ensure_cluster_id(slow, None, tuple) == members.ensure_cluster_id(quick, None, tuple)
