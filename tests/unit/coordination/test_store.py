"""What every coordination store promises, of the embedded one and of a real ZooKeeper."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.coordination.embedded import EmbeddedStore, store_path
from kbroker.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventKind,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SetData,
    Store,
    WatchEvent,
)
from kbroker.coordination.zookeeper import ZooKeeperStore
from tests.kit.kafka.zookeeper import ZooKeeperProcess

WAIT_S = 30.0
COUNT = itertools.count()


class Embedded:
    def __init__(self, folder: Path):
        self.store = EmbeddedStore(store_path(str(folder)))

    def connect(self) -> Store:
        return self.store.connect()

    def expire(self, session: Store) -> None:
        self.store.expire(session.session_id)

    def stop(self) -> None:
        self.store.stop()


class InZooKeeper:
    def __init__(self, server: ZooKeeperProcess):
        self.server = server
        self.address = f"{server.address}/store/{next(COUNT)}"
        self.sessions: list[ZooKeeperStore] = []
        self.connect().make_chroot()

    def connect(self) -> ZooKeeperStore:
        self.sessions.append(ZooKeeperStore(self.address, WAIT_S))
        return self.sessions[-1]

    def expire(self, session: Store) -> None:
        assert isinstance(session, ZooKeeperStore)
        self.server.expire(session)

    def stop(self) -> None:
        for session in self.sessions:
            session.close()


@pytest.fixture(params=["embedded", "zookeeper"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded | InZooKeeper]:
    if request.param == "embedded":
        store: Embedded | InZooKeeper = Embedded(tmp_path)
    else:
        store = InZooKeeper(request.getfixturevalue("zookeeper"))
    yield store
    store.stop()


class Heard:
    """What a session's watchers have heard, once all has been delivered."""

    def __init__(self, session: Store):
        self.session = session
        self.events: list[tuple[str, EventKind, str]] = []

    def __call__(self, name: str = "") -> Callable[[WatchEvent], None]:
        return lambda event: self.events.append((name, *event))

    def all(self) -> list[tuple[str, EventKind, str]]:
        done = threading.Event()
        self.session.exists("/done", lambda _event: done.set())
        self.session.create("/done")
        assert done.wait(WAIT_S)
        self.session.delete("/done")
        return self.events


def test_the_end_of_a_session_removes_its_ephemeral_nodes_and_tells_watchers(store: Embedded | InZooKeeper) -> None:
    first, second = store.connect(), store.connect()
    first.create("/alive", ephemeral=True)
    assert second.get("/alive")[1].owner == first.session_id != second.session_id
    heard = Heard(second)
    second.exists("/alive", heard())
    first.close()
    assert heard.all() == [("", EventKind.DELETED, "/alive")]
    assert second.exists("/alive") is None


def test_a_session_that_expired_hears_of_it_once_and_can_do_nothing(store: Embedded | InZooKeeper) -> None:
    session, other = store.connect(), store.connect()
    session.create("/kept")
    session.create("/alive", ephemeral=True)
    heard: list[str] = []
    done, late = threading.Event(), threading.Event()
    session.on_end(lambda: (heard.append("end"), done.set()))  # type: ignore[func-returns-value]
    session.get("/kept", lambda _event: heard.append("watch"))
    store.expire(session)
    store.expire(session)
    assert done.wait(WAIT_S)
    assert other.exists("/alive") is None
    other.set("/kept", b"x")
    for call in (
        lambda: session.get("/kept"),
        lambda: session.get_many(["/kept"]),
        lambda: session.children("/"),
        lambda: session.exists("/kept"),
        lambda: session.create("/new", ephemeral=True),
        lambda: session.multi([]),
    ):
        with pytest.raises(SessionExpired):
            call()
    session.on_end(late.set)
    assert late.wait(WAIT_S)
    session.close()
    store.stop()
    assert heard == ["end"]


def test_a_closed_session_does_not_hear_of_its_end_and_can_do_nothing(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    heard: list[str] = []
    session.on_end(lambda: heard.append("end"))
    session.close()
    session.close()
    with pytest.raises(SessionExpired):
        session.exists("/")
    with pytest.raises(SessionExpired):
        session.create("/a")
    store.stop()
    assert heard == []


def test_each_kind_of_watch_hears_what_concerns_it_once_and_in_order(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.create("/a")
    heard = Heard(session)
    session.exists("/a/new", heard("exists"))
    session.children("/a", heard("children"))
    session.get("/a", heard("get"))
    session.create("/a/new")
    session.children("/a", heard("children"))
    session.set("/a", b"x")
    session.set("/a", b"y")
    session.delete("/a/new")
    session.children("/a", heard("children"))
    session.get("/a", heard("get"))
    session.delete("/a")
    assert heard.all() == [
        ("exists", EventKind.CREATED, "/a/new"),
        ("children", EventKind.CHILDREN, "/a"),
        ("get", EventKind.CHANGED, "/a"),
        ("children", EventKind.CHILDREN, "/a"),
        ("get", EventKind.DELETED, "/a"),
        ("children", EventKind.DELETED, "/a"),
    ]


def test_a_watcher_that_is_set_several_times_hears_once(store: Embedded | InZooKeeper) -> None:
    session, other = store.connect(), store.connect()
    session.create("/a")
    heard = Heard(session)
    watch = heard()
    for _ in range(3):
        session.get("/a", watch)
        session.exists("/a", watch)
        session.children("/a", watch)
    other.set("/a", b"x")
    assert heard.all() == [("", EventKind.CHANGED, "/a")]
    session.get("/a", watch)
    other.delete("/a")  # the watch of the children is still there
    assert heard.all()[1:] == [("", EventKind.DELETED, "/a")]


def test_a_watch_is_not_set_by_a_call_that_finds_no_node(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    heard = Heard(session)
    for call in (session.get, session.children):
        with pytest.raises(NoNode):
            call("/a", heard())
    session.create("/a")
    session.create("/a/b")
    assert heard.all() == []


def test_a_watcher_that_fails_does_not_silence_the_others(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.create("/a")
    heard = Heard(session)

    def fail(_event: WatchEvent) -> None:
        raise ValueError("a watcher's own bug")

    session.get("/a", fail)
    session.get("/a", heard())
    session.set("/a", b"x")
    assert heard.all() == [("", EventKind.CHANGED, "/a")]


def test_a_watcher_may_call_the_store_and_close_its_session(store: Embedded | InZooKeeper) -> None:
    session, other = store.connect(), store.connect()
    session.create("/a")
    done = threading.Event()

    def answer(_event: WatchEvent) -> None:
        session.create("/answer")
        session.close()
        done.set()

    session.get("/a", answer)
    session.set("/a", b"x")
    assert done.wait(WAIT_S)
    assert other.exists("/answer") is not None
    with pytest.raises(SessionExpired):
        session.exists("/answer")


def test_a_parent_made_and_emptied_in_one_multi_can_go_in_it_too(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.multi([Create("/a"), Create("/a/b"), Delete("/a/b"), Delete("/a")])
    assert session.children("/") == []


def test_a_failed_check_undoes_what_came_before_it(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.create("/epoch", b"1")
    with pytest.raises(NoNode) as raised:
        session.multi([SetData("/epoch", b"2"), Create("/x"), Check("/gone"), Check("/gone-too")])
    assert raised.value.path == "/gone"
    assert session.get("/epoch")[0] == b"1"
    assert session.children("/") == ["epoch"]


def test_the_results_of_a_multi_are_those_of_single_calls(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    results = session.multi(
        [
            Create("/a"),
            Create("/a/", b"x", sequential=True),
            SetData("/a", b"y"),
            Check("/a", 1),
            Delete("/a/0000000000"),
        ]
    )
    assert results == ["/a", "/a/0000000000", session.exists("/a"), None, None]


@pytest.mark.parametrize("bad", ["", "a", "/a/", "//a", "/a/../b", "/./a", "/a\0"])
def test_paths_that_are_none_are_refused(store: Embedded | InZooKeeper, bad: str) -> None:
    with pytest.raises(InvalidPath):
        store.connect().create(bad)


def test_an_error_says_which_path_is_in_the_way(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.create("/a")
    session.create("/a/b")
    for call, wanted, path in (
        (lambda: session.create("/a"), NodeExists, "/a"),
        (lambda: session.create("/gone/child"), NoNode, "/gone"),
        (lambda: session.set("/gone", b""), NoNode, "/gone"),
        (lambda: session.set("/a", b"", version=7), BadVersion, "/a"),
        (lambda: session.delete("/a"), NotEmpty, "/a"),
        (lambda: session.delete("/"), NotEmpty, "/"),
    ):
        with pytest.raises(wanted) as raised:
            call()
        assert raised.value.path == path


def test_each_of_many_transactions_has_an_outcome_of_its_own(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    outcomes = session.multi_many(
        [
            [Create("/a", b"1"), Create("/a/b")],
            [Create("/gone/x")],
            [],
            [Check("/a", 0), SetData("/a", b"2", 0)],
            [Check("/a", 0), Delete("/a/b")],
            [Delete("/")],
            [Create("/n-", sequential=True)],
        ]
    )
    assert outcomes[0] == ["/a", "/a/b"]
    assert isinstance(outcomes[1], NoNode)
    assert outcomes[1].path == "/gone"
    assert outcomes[2] == []
    assert outcomes[3] == [None, session.get("/a")[1]]
    assert isinstance(outcomes[4], BadVersion)
    assert isinstance(outcomes[5], NotEmpty)
    assert outcomes[6] in (["/n-0000000000"], ["/n-0000000001"])
    assert session.children("/a") == ["b"]
    assert session.multi_many([]) == []


def test_more_transactions_than_are_sent_at_once_are_done_in_order(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.create("/a", b"")
    outcomes = session.multi_many([[SetData("/a", str(each).encode(), each)] for each in range(1000)])
    assert [outcome[0].version for outcome in outcomes] == list(range(1, 1001))  # type: ignore[index, union-attr]
    assert session.get("/a")[0] == b"999"


def test_one_malformed_path_refuses_all_transactions(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    with pytest.raises(InvalidPath):
        session.multi_many([[Create("/a")], [Create("b")]])
    assert session.exists("/a") is None


def test_many_transactions_of_a_session_that_has_ended_are_refused(store: Embedded | InZooKeeper) -> None:
    session = store.connect()
    session.close()
    with pytest.raises(SessionExpired):
        session.multi_many([[Create("/a")]])
    assert store.connect().exists("/a") is None
