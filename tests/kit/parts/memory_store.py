"""A coordination store in memory, on one thread: the model of a tree with sessions, watches and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.coordination.store import (
    Create,
    EventKind,
    NoNode,
    Operation,
    Outcome,
    Result,
    SessionExpired,
    SetData,
    Stat,
    StoreError,
    StoreUnavailable,
    Watcher,
    WatchEvent,
    parent_of,
)
from tests.kit.models.coordination import CoordinationModel


class MemoryTree:
    """The tree that several sessions share. Watchers are called at once, by whoever makes the change."""

    def __init__(self) -> None:
        self.model = CoordinationModel(numbers_every_child=True)
        self.writes: list[list[Operation]] = []
        """Every transaction that was made."""
        self._ids: dict[str, tuple[int, int]] = {"/": (0, 0)}
        self._last_id = 0
        self._last_session = 0
        self._watches: dict[tuple[str, bool], dict[tuple[int, Watcher], None]] = {}

    def connect(self) -> MemorySession:
        self._last_session += 1
        return MemorySession(self, self._last_session)

    def put(self, path: str, data: bytes = b"") -> None:
        """Create or set a node, with its parents, as somebody else would."""
        if path not in self.model.nodes:
            if parent_of(path) not in self.model.nodes:
                self.put(parent_of(path))
            self.change(0, [Create(path, data)])
        else:
            self.change(0, [SetData(path, data)])

    def change(self, owner: int, operations: Sequence[Operation]) -> list[Result]:
        created = [each.path for each in operations if isinstance(each, Create)]
        before = {path: self.model.children(parent_of(path)) for path in created}
        events = self.model.multi(owner, list(operations))
        self._last_id += 1
        self.writes.append(list(operations))
        for kind, path in events:
            if kind is EventKind.CREATED:
                self._ids[path] = (self._last_id, self._last_id)
            elif kind is EventKind.CHANGED:
                self._ids[path] = (self._ids[path][0], self._last_id)
        results: list[Result] = []
        for each in operations:
            if isinstance(each, Create):
                named = [name for name in self.model.children(parent_of(each.path)) if name not in before[each.path]]
                results.append(f"{parent_of(each.path).rstrip('/')}/{named[0]}" if each.sequential else each.path)
            else:
                results.append(self.stat(each.path) if isinstance(each, SetData) else None)
        self._tell(events)
        return results

    def end(self, session_id: int) -> None:
        """End a session: its ephemeral nodes are gone, and its watches."""
        for watches in self._watches.values():
            for key in [key for key in watches if key[0] == session_id]:
                del watches[key]
        self._tell(self.model.end_session(session_id))

    def stat(self, path: str) -> Stat | None:
        node = self.model.nodes.get(path)
        return None if node is None else Stat(node.version, *self._ids[path], node.owner)

    def watch(self, session_id: int, path: str, watcher: Watcher | None, *, of_children: bool = False) -> None:
        if watcher is not None:
            self._watches.setdefault((path, of_children), {})[session_id, watcher] = None

    def _tell(self, events: Sequence[tuple[EventKind, str]]) -> None:
        for kind, path in events:
            self._fire((path, False), WatchEvent(kind, path))
            if kind is EventKind.DELETED:
                self._fire((path, True), WatchEvent(kind, path))
            if kind is not EventKind.CHANGED:
                self._fire((parent_of(path), True), WatchEvent(EventKind.CHILDREN, parent_of(path)))

    def _fire(self, key: tuple[str, bool], event: WatchEvent) -> None:
        for _, watcher in self._watches.pop(key, {}):
            watcher(event)


class MemorySession:
    """One session: a `store.Store`. `fault` is asked before each call, and may raise or cut the call's answer off."""

    def __init__(self, tree: MemoryTree, session_id: int):
        self._tree = tree
        self._session_id = session_id
        self._end_callbacks: list[Callable[[], None]] = []
        self.is_over = False
        self.fault: Callable[[], str | None] = lambda: None
        """None: none; "before": the call does nothing and fails; "after": it is made, and its answer is lost."""

    @property
    def session_id(self) -> int:
        return self._session_id

    def _begin(self) -> str | None:
        if self.is_over:
            raise SessionExpired
        fault = self.fault()
        if fault == "before":
            raise StoreUnavailable("no connection; nothing was changed")
        return fault

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        result = self.multi([Create(path, data, ephemeral, sequential)])[0]
        assert isinstance(result, str)
        return result

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        found = self.get_many([path], watch)[0]
        if found is None:
            raise NoNode(path)
        return found

    def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        result = self.multi([SetData(path, data, version)])[0]
        assert isinstance(result, Stat)
        return result

    def delete(self, path: str, version: int = -1) -> None:
        raise NotImplementedError

    def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        self._begin()
        self._tree.watch(self.session_id, path, watch)
        return self._tree.stat(path)

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        self._begin()
        if path not in self._tree.model.nodes:
            raise NoNode(path)
        self._tree.watch(self.session_id, path, watch, of_children=True)
        return self._tree.model.children(path)

    def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        self._begin()
        found: list[tuple[bytes, Stat] | None] = []
        for path in paths:
            stat = self._tree.stat(path)
            if stat is not None:
                self._tree.watch(self.session_id, path, watch)
            found.append(None if stat is None else (self._tree.model.nodes[path].data, stat))
        return found

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        outcome = self.multi_many([operations])[0]
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def multi_many(self, transactions: Sequence[Sequence[Operation]]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for operations in transactions:
            fault = self._begin()
            try:
                outcomes.append(self._tree.change(self.session_id, operations))
            except StoreError as error:
                outcomes.append(error)
            if fault == "after":
                raise StoreUnavailable("the connection was lost; the change may have been made")
        return outcomes

    @property
    def may_have_ended(self) -> bool:
        return self.is_over

    def on_end(self, callback: Callable[[], None]) -> None:
        self._end_callbacks.append(callback)

    def expire(self) -> None:
        self.is_over = True
        self._tree.end(self.session_id)
        for callback in self._end_callbacks:
            callback()

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._tree.end(self.session_id)
