"""The store in a real ZooKeeper, whose connections are cut, whose server is killed, and whose sessions run out."""

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from kazoo.exceptions import ConnectionLoss

from kbroker.coordination.store import (
    Create,
    EventKind,
    NoNode,
    SessionExpired,
    StoreUnavailable,
    WatchEvent,
)
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.errors import ConfigError
from tests.kit.brokers.process import free_port
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.processors import wait_until
from tests.kit.proxies.dropping import DroppingProxy

SESSION_TIMEOUT_S = 30.0
WAIT_S = 30.0
COUNT = itertools.count()


@dataclass
class Line:
    """The way to a ZooKeeper, which can be cut, and another session that nobody cuts."""

    server: ZooKeeperProcess
    proxy: DroppingProxy
    chroot: str
    other: ZooKeeperStore
    sessions: list[ZooKeeperStore] = field(default_factory=list)

    def connect(self, session_timeout_s: float = SESSION_TIMEOUT_S, wait_s: float = WAIT_S) -> ZooKeeperStore:
        address = f"127.0.0.1:{self.proxy.port}{self.chroot}"
        made = ZooKeeperStore(address, session_timeout_s, connect_timeout_s=WAIT_S, wait_s=wait_s)
        self.sessions.append(made)
        return made

    def cut(self) -> None:
        """Until `mend` nobody comes through."""
        self.proxy.target_port = free_port()
        self.drop()

    def mend(self) -> None:
        self.proxy.target_port = self.server.port

    def drop(self) -> None:
        self.proxy.drop(1.0, random.Random(0))

    def lose_answer(self) -> None:
        self.proxy.lose_answers(1.0, random.Random(0))


@pytest.fixture
def line(zookeeper: ZooKeeperProcess) -> Iterator[Line]:
    chroot = f"/line/{next(COUNT)}"
    other = ZooKeeperStore(zookeeper.address + chroot, SESSION_TIMEOUT_S)
    other.make_chroot()
    with DroppingProxy(zookeeper.port) as proxy:
        made = Line(zookeeper, proxy, chroot, other)
        yield made
        for session in [*made.sessions, other]:
            session.close()


class Told:
    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self.come = threading.Semaphore(0)

    def __call__(self, event: WatchEvent) -> None:
        self.events.append(event)
        self.come.release()

    def wait(self, count: int) -> list[WatchEvent]:
        for _ in range(count):
            assert self.come.acquire(timeout=WAIT_S), self.events
        return self.events


def test_a_connection_that_is_cut_costs_no_session_and_no_read(line: Line) -> None:
    session = line.connect()
    session.create("/alive", b"x", ephemeral=True)
    for _ in range(5):
        line.drop()
        assert session.get("/alive")[0] == b"x"
        assert session.children("/") == ["alive"]
        assert session.get_many(["/alive", "/gone"]) == [session.get("/alive"), None]
    assert line.other.get("/alive")[1].owner == session.session_id
    session.close()
    assert line.other.exists("/alive") is None


def test_a_change_whose_answer_is_lost_may_have_been_made_and_that_is_said(line: Line) -> None:
    session = line.connect()
    line.lose_answer()
    with pytest.raises(StoreUnavailable, match="the change may have been made"):
        session.create("/a")
    assert line.other.exists("/a") is not None
    session.create("/b")  # over the next connection


def test_a_read_whose_answer_is_lost_is_asked_again(line: Line) -> None:
    session = line.connect()
    session.create("/a", b"x")
    line.lose_answer()
    assert session.get("/a")[0] == b"x"
    line.lose_answer()
    assert session.get_many(["/a"] * 1200) == [session.get("/a")] * 1200


def test_a_call_waits_for_a_connection_up_to_its_bound_and_then_nothing_was_changed(line: Line) -> None:
    session = line.connect(wait_s=0.5)
    line.cut()
    while True:  # until the session has noticed
        try:
            session.exists("/")
        except StoreUnavailable:
            break
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        session.create("/a")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        session.get("/")
    assert 0.9 < time.monotonic() - started < WAIT_S
    line.mend()
    patient = line.connect()
    assert patient.exists("/a") is None


def test_a_session_may_have_ended_once_nothing_was_heard_for_its_timeout(line: Line) -> None:
    """ZooKeeper says so with the next connection only."""
    session, patient = line.connect(session_timeout_s=2.0), line.connect()
    asked_at = time.monotonic()
    session.exists("/")
    assert not session.may_have_ended
    line.cut()
    wait_until(lambda: session.may_have_ended, "the session's timeout is over", WAIT_S)
    assert time.monotonic() - asked_at > 2.0
    assert not patient.is_connected and not patient.may_have_ended
    ended = threading.Event()
    session.on_end(ended.set)
    line.mend()
    wait_until(lambda: ended.is_set() or not session.may_have_ended, "the next connection tells", WAIT_S)
    assert session.may_have_ended == ended.is_set()


def test_a_silence_begins_with_the_last_answer_and_not_with_the_loss_of_the_connection(line: Line) -> None:
    """Bytes that vanish are noticed late: the connection is given up after half of the session's timeout, or more."""
    session = line.connect(session_timeout_s=6.0)
    asked_at = time.monotonic()
    session.exists("/")
    line.proxy.stall()
    try:
        wait_until(lambda: not session.is_connected, "the silence is noticed", WAIT_S)
        lost_at = time.monotonic()
        wait_until(lambda: session.may_have_ended, "the session's timeout is over", WAIT_S)
        over_at = time.monotonic()
    finally:
        line.proxy.flow()
    assert over_at - asked_at > 6.0
    assert over_at - lost_at < 5.0


def test_watches_hear_of_what_happened_while_the_connection_was_away(line: Line) -> None:
    session, other = line.connect(), line.other
    other.multi(
        [Create(path) for path in ("/set", "/gone", "/again", "/parent", "/still", "/still-parent", "/parents")]
    )
    told = Told()
    still = Told()
    for path in ("/set", "/gone", "/again", "/new"):
        session.exists(path, told)
    session.children("/parent", told)
    session.children("/parents", told)
    session.get("/parents", told)
    session.get("/still", still)
    session.children("/still-parent", still)
    line.cut()
    other.set("/set", b"x")
    other.delete("/gone")
    other.delete("/again")
    other.create("/again")
    other.create("/new")
    other.create("/parent/child")
    other.delete("/parent/child")
    other.delete("/parents")
    line.mend()
    assert sorted(told.wait(6), key=str) == sorted(
        [
            WatchEvent(EventKind.CHANGED, "/set"),
            WatchEvent(EventKind.DELETED, "/gone"),
            WatchEvent(EventKind.DELETED, "/again"),
            WatchEvent(EventKind.CREATED, "/new"),
            WatchEvent(EventKind.CHILDREN, "/parent"),
            WatchEvent(EventKind.DELETED, "/parents"),
        ],
        key=str,
    )
    line.drop()
    # Those that heard of nothing are still there, through any number of connections, and nobody hears twice.
    session.exists("/")
    other.set("/set", b"y")
    other.set("/still", b"x")
    other.create("/still-parent/child")
    assert sorted(still.wait(2), key=str) == sorted(
        [WatchEvent(EventKind.CHANGED, "/still"), WatchEvent(EventKind.CHILDREN, "/still-parent")], key=str
    )
    assert len(told.events) == 6


def test_who_watches_a_node_and_its_children_hears_of_a_deletion_once_though_the_connection_goes_in_between(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other, told = line.connect(), line.other, Told()
    other.create("/both")
    session.get("/both", told)
    session.children("/both", told)
    get_children, lost = session._client.get_children_async, threading.Event()

    def lose_the_answer_once(*args: object, **kwargs: object) -> object:
        answer = get_children(*args, **kwargs)
        if not lost.is_set():
            lost.set()
            answer = session._client.handler.async_result()
            answer.set_exception(ConnectionLoss())
        return answer

    monkeypatch.setattr(session._client, "get_children_async", lose_the_answer_once)
    line.cut()
    other.delete("/both")
    line.mend()
    assert told.wait(1) == [WatchEvent(EventKind.DELETED, "/both")]
    assert lost.wait(WAIT_S)
    other.create("/after")
    session.get("/after", told)
    line.drop()
    other.set("/after", b"x")
    assert told.wait(1)[1:] == [WatchEvent(EventKind.CHANGED, "/after")]


def test_a_watch_that_is_set_again_and_again_is_kept_once(line: Line) -> None:
    session = line.connect()
    session.create("/a")
    told = Told()
    for _ in range(100):
        session.get("/a", told)
        session.children("/a", told)
    client = session._client
    kept = [each for watches in (client._data_watchers, client._child_watchers) for each in watches.values()]
    assert sum(map(len, kept)) == 2


def test_a_session_that_was_away_for_too_long_has_ended_once(line: Line) -> None:
    session = line.connect(session_timeout_s=1.0)
    session.create("/alive", ephemeral=True)
    ended, gone = Told(), Told()
    session.on_end(lambda: ended(WatchEvent(EventKind.DELETED, "/")))
    line.other.exists("/alive", gone)
    line.cut()
    gone.wait(1)
    line.mend()
    ended.wait(1)
    for _ in range(2):
        with pytest.raises(SessionExpired):
            session.create("/alive", ephemeral=True)
    session.close()
    assert len(ended.events) == 1
    assert line.other.children("/") == []


def test_all_hear_of_the_end_whatever_the_first_of_them_does(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    session = line.connect(session_timeout_s=1.0)
    session.create("/alive", ephemeral=True)
    post, gone, ended, closed = session._watches.post, Told(), Told(), threading.Event()

    def post_and_stand_still(call: Callable[[], None]) -> None:
        post(call)
        closed.wait(1)

    monkeypatch.setattr(session._watches, "post", post_and_stand_still)
    session.on_end(session.close)
    session.on_end(lambda: ended(WatchEvent(EventKind.DELETED, "/")))
    line.other.exists("/alive", gone)
    line.cut()
    gone.wait(1)
    line.mend()
    ended.wait(1)
    closed.set()


def test_a_server_that_takes_a_connection_and_says_nothing_costs_no_session(line: Line) -> None:
    """A ZooKeeper that is just starting may do so."""
    session = line.connect(session_timeout_s=8.0)
    session.create("/alive", ephemeral=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        line.proxy.target_port = silent.getsockname()[1]
        line.drop()
        taken, _ = silent.accept()
        line.mend()
        assert session.get("/alive")[1].owner == session.session_id
        taken.close()
    session.close()


def test_a_session_outlives_the_kill_of_its_server() -> None:
    with ZooKeeperProcess() as server:
        session = ZooKeeperStore(server.address, 30.0)
        session.create("/alive", ephemeral=True)
        session.create("/a")
        told = Told()
        for count in range(1, 4):
            session.get("/a", told)
            server.kill()
            waiting = threading.Thread(target=lambda: session.children("/"))
            waiting.start()
            server.start()
            waiting.join(WAIT_S)
            assert not waiting.is_alive()
            assert session.get("/alive")[1].owner == session.session_id
            session.set("/a", b"x")
            assert told.wait(1) == [WatchEvent(EventKind.CHANGED, "/a")] * count
        server.kill()
        started = time.monotonic()
        session.close()
        assert time.monotonic() - started < WAIT_S
        server.start()


def test_who_gives_up_on_a_zookeeper_that_never_answers_does_not_wait_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # An attempt ends after a quarter of it; a close that waits, when the attempt has ended.
        store = ZooKeeperStore(f"127.0.0.1:{silent.getsockname()[1]}", 16.0, connects=False)

        def connect_and_be_given_up() -> None:
            with pytest.raises(SessionExpired):
                store.connect()

        connecting = threading.Thread(target=connect_and_be_given_up)
        connecting.start()
        silent.settimeout(WAIT_S)
        peer, _ = silent.accept()
        store.close()
        connecting.join(WAIT_S)
        assert store._stopped is not None
        with peer:
            assert store._stopped.is_alive(), "the end of the attempt to connect was waited for"
            assert not connecting.is_alive()


def test_nobody_there_is_one_clear_error_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        ZooKeeperStore(f"127.0.0.1:{free_port()}", 30.0, connect_timeout_s=0.3)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("address", ["127.0.0.1:port", "127.0.0.1:99999999"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ZooKeeperStore(address, 1.0)


def test_more_than_a_zookeeper_takes_is_refused_and_the_session_lives(line: Line) -> None:
    session = line.connect()
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        session.multi([Create(f"/n{number}", bytes(600_000)) for number in range(2)])
    session.create("/n", bytes(900_000))
    assert len(session.get("/n")[0]) == 900_000


def test_a_chroot_that_is_not_there_holds_nothing_until_it_is_made(zookeeper: ZooKeeperProcess) -> None:
    session = ZooKeeperStore(f"{zookeeper.address}/not/there/{next(COUNT)}", SESSION_TIMEOUT_S)
    with pytest.raises(NoNode):
        session.children("/")
    assert session.get_many(["/", "/a"]) == [None, None]
    with pytest.raises(NoNode):
        session.create("/a")
    session.make_chroot()
    session.make_chroot()
    assert session.create("/a") == "/a"
    session.close()


def test_many_changes_whose_answers_are_lost_may_all_have_been_made(line: Line) -> None:
    session = line.connect()
    line.lose_answer()
    with pytest.raises(StoreUnavailable, match="the change may have been made"):
        session.multi_many([[Create(f"/n{each}")] for each in range(50)])
    made = line.other.children("/")
    assert made == sorted(f"n{each}" for each in range(len(made))), "one was made without those before it"
    assert made
    session.create("/after")


def test_one_transaction_that_is_too_large_refuses_all(line: Line) -> None:
    session = line.connect()
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        session.multi_many([[Create("/a")], [Create("/b", bytes(2_000_000))]])
    assert session.exists("/a") is None
