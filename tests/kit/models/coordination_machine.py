"""A coordination store against a dict, for every order of calls that hypothesis finds; a subclass says which store."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.coordination.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventKind,
    Operation,
    SetData,
    Store,
    StoreError,
    WatchEvent,
)
from tests.kit.models.coordination import CoordinationModel

PATHS = st.sampled_from(["/a", "/a/a", "/a/b", "/a/a/a"])
VERSIONS = st.sampled_from([ANY_VERSION, ANY_VERSION, 0, 1])
DATA = st.binary(max_size=3)
CREATES = st.builds(Create, PATHS, DATA, st.sampled_from([False, False, True]), st.sampled_from([False, False, True]))
OPERATIONS = st.one_of(
    CREATES,
    st.builds(SetData, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


class CoordinationMachine(RuleBasedStateMachine):
    """Two sessions change the tree; a third one, which ends only with the store, watches it."""

    sessions: list[Store]
    watching: Store

    @initialize()
    def open(self) -> None:
        self.model = self.make_model()
        self.armed: dict[tuple[str, str], None] = {}
        self.expected: list[tuple[str, WatchEvent]] = []
        self.seen: list[tuple[str, WatchEvent]] = []
        self.start()
        self.change([Create("/a"), Create("/a/a"), Create("/a/b")], 0)

    def make_model(self) -> CoordinationModel:
        return CoordinationModel()

    def start(self) -> None:
        """Open the store and the sessions."""
        raise NotImplementedError

    def connect(self) -> Store:
        raise NotImplementedError

    def expire(self, session: Store) -> None:
        """End a session, as the store does when it hears nothing from it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Close the store, which delivers all notifications that are still on their way."""
        raise NotImplementedError

    def teardown(self) -> None:
        if hasattr(self, "sessions"):
            self.settle()

    def settle(self) -> None:
        """Stop the store and compare what the watches saw."""
        self.stop()
        assert self.seen == self.expected
        self.armed.clear()

    def watch_data(self, event: WatchEvent) -> None:
        self.seen.append(("data", event))

    def watch_children(self, event: WatchEvent) -> None:
        self.seen.append(("children", event))

    def happened(self, changes: list[tuple[EventKind, str]]) -> None:
        for kind, path in changes:
            for watch in ("data", "children") if kind is EventKind.DELETED else ("data",):
                if (watch, path) in self.armed:
                    del self.armed[watch, path]
                    self.expected.append((watch, WatchEvent(kind, path)))
            parent = path.rpartition("/")[0] or "/"
            if kind is not EventKind.CHANGED and ("children", parent) in self.armed:
                del self.armed["children", parent]
                self.expected.append(("children", WatchEvent(EventKind.CHILDREN, parent)))

    @rule(operation=CREATES, who=st.integers(0, 1))
    def create(self, operation: Create, who: int) -> None:
        self.change([operation], who)

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        self.change([Delete(path)], 0)

    @rule(operation=OPERATIONS, who=st.integers(0, 1))
    def change_one(self, operation: Operation, who: int) -> None:
        self.change([operation], who)

    @rule(operations=st.lists(OPERATIONS, max_size=4), who=st.integers(0, 1))
    def change_many(self, operations: list[Operation], who: int) -> None:
        self.change(operations, who)

    @rule(transactions=st.lists(st.lists(OPERATIONS, max_size=3), max_size=5), who=st.integers(0, 1))
    def change_in_one_go(self, transactions: list[list[Operation]], who: int) -> None:
        session = self.sessions[who]
        wanted: list[type[StoreError] | None] = []
        changes: list[tuple[EventKind, str]] = []
        for operations in transactions:
            try:
                changes += self.model.multi(session.session_id, operations)
                wanted.append(None)
            except StoreError as error:
                wanted.append(type(error))
        outcomes = session.multi_many(transactions)
        assert [type(each) if isinstance(each, StoreError) else None for each in outcomes] == wanted
        for operations, outcome in zip(transactions, outcomes, strict=True):
            assert isinstance(outcome, StoreError) or len(outcome) == len(operations)
        self.happened(changes)

    def change(self, operations: list[Operation], who: int) -> None:
        session = self.sessions[who]
        wanted: type[StoreError] | None = None
        changes: list[tuple[EventKind, str]] = []
        try:
            changes = self.model.multi(session.session_id, operations)
        except StoreError as error:
            wanted = type(error)
        try:
            session.multi(operations)
        except StoreError as error:
            assert type(error) is wanted
        else:
            assert wanted is None
        self.happened(changes)

    @rule(path=PATHS)
    def watch_node(self, path: str) -> None:
        self.watching.exists(path, self.watch_data)
        self.armed["data", path] = None

    @rule(paths=st.lists(PATHS, unique=True))
    def watch_nodes(self, paths: list[str]) -> None:
        found = self.watching.get_many(paths, self.watch_data)
        assert [node is not None for node in found] == [path in self.model.nodes for path in paths]
        for path in paths:
            if path in self.model.nodes:
                self.armed["data", path] = None

    @rule(path=PATHS)
    def watch_children_of(self, path: str) -> None:
        if path in self.model.nodes:
            self.watching.children(path, self.watch_children)
            self.armed["children", path] = None

    @rule(who=st.integers(0, 1), expire=st.booleans())
    def end_session(self, who: int, expire: bool) -> None:
        self.end(who, expire)

    def end(self, who: int, expire: bool) -> None:
        session = self.sessions[who]
        if expire:
            self.expire(session)
        else:
            session.close()
        self.happened(self.model.end_session(session.session_id))
        self.sessions[who] = self.connect()

    @rule()
    def restart(self) -> None:
        self.settle()
        for session in self.sessions:
            self.model.end_session(session.session_id)
        self.start()

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "sessions"):
            return
        session = self.sessions[0]
        paths = ["/", *sorted(self.model.nodes)]
        for path, found in zip(paths, session.get_many(paths), strict=True):
            node = self.model.nodes[path]
            assert found is not None, path
            assert (found[0], found[1].version, found[1].owner) == (node.data, node.version, node.owner)
            assert session.children(path) == self.model.children(path)
        for path in ("/a", "/a/a", "/a/b", "/a/a/a"):
            assert (session.exists(path) is not None) == (path in self.model.nodes)
