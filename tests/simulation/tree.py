"""A virtual ZooKeeper: one tree, sessions that expire, watches, and clients that lose connections and answers.

The server keeps nodes as `kbroker.coordination.tree` does. A client (`Session`, a `store.Store`) has one connection at
a time; answers and watch events come over it in order, so that nobody reads a change before the event of a change that
was earlier. A task of the client's process waits for its answer; a call outside of a task is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kbroker.coordination.store import (
    ANY_VERSION,
    Create,
    Delete,
    EventKind,
    NoNode,
    Operation,
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
from kbroker.coordination.tree import Draft, Node, Tree
from tests.simulation.network import BROKEN, Connection, Network, Refusal
from tests.simulation.scheduler import MS, Process, Scheduler, Task

TREE = "zk"
"""The machine's name."""

RECONNECT_DELAY = 100 * MS


@dataclass
class Served:
    """What the server knows of a session."""

    session_id: int
    timeout: int
    heard_at: int
    connection: Connection | None = None
    event_number: int = 0
    outbox: list[tuple[int, Watcher, WatchEvent]] = field(default_factory=list)
    """Events that the client has not confirmed, by number: they are sent again on its next connection."""

    def confirm(self, number: int) -> None:
        self.outbox = [event for event in self.outbox if event[0] > number]


Change = Callable[[int, Sequence[Operation], Tree], None]
"""Told of each committed change: the session, its operations, and the tree after it."""


class TreeServer:
    """The tree and its sessions. It never fails; only the ways to it do."""

    def __init__(self, scheduler: Scheduler, network: Network):
        self.scheduler, self.network = scheduler, network
        self.process = Process(TREE)
        self.tree = Tree({"/": Node(b"", 0, 0, 0, 0).encode()})
        self.sessions: dict[int, Served] = {}
        self.changed: list[Change] = []
        self.lost_answers = 0.0
        """Which share of changes is carried out and their connection broken before the answer."""
        self.hold_event: Callable[[Served, WatchEvent], int | None] = lambda served, event: 0
        """How long an event is held back; None: it gets lost, against all rules. For tests of the simulator."""
        self._last_id = 0
        self._last_session = 1000
        self._watches: dict[tuple[bool, str], dict[tuple[int, Watcher], None]] = {}
        """(of children, path) -> (session, watcher)."""
        network.listen(self.process, self._accept)

    # --- sessions

    def _accept(self, peer: Process, connection: Connection) -> Callable[[Any], None]:
        served: Served | None = None

        def arrive(thing: Any) -> None:
            nonlocal served
            if thing is BROKEN:
                if served is not None and served.connection is connection:
                    served.connection = None
                return
            kind, number, body = thing
            if kind == "hello":
                session_id, timeout, seen = body
                served = self._begin(session_id, timeout)
                if served is None:
                    connection.send(1, ("expired", 0, None))
                    return
                if served.connection is not None:
                    served.connection.close(1)
                served.connection = connection
                connection.send(1, ("welcome", 0, served.session_id))
                served.confirm(seen)
                for event in served.outbox:
                    connection.send(1, ("event", 0, event))
                return
            if served is None or served.session_id not in self.sessions or served.connection is not connection:
                return
            served.heard_at = self.scheduler.now
            if kind == "beat":
                served.confirm(body)
                connection.send(1, ("beat", 0, None))
            elif kind == "ask":
                self._answer(served, connection, number, body)

        return arrive

    def _begin(self, session_id: int, timeout: int) -> Served | None:
        if session_id:
            served = self.sessions.get(session_id)
            if served is not None:
                served.heard_at = self.scheduler.now
            return served
        self._last_session += 1
        served = self.sessions[self._last_session] = Served(self._last_session, timeout, self.scheduler.now)
        self._watch_over(served)
        return served

    def _watch_over(self, served: Served) -> None:
        """Expire the session once it has been silent for its timeout."""
        left = served.heard_at + served.timeout - self.scheduler.now
        if served.session_id not in self.sessions:
            return
        if left <= 0:
            self.expire(served.session_id)
        else:
            self.scheduler.after(left, lambda: self._watch_over(served))

    def expire(self, session_id: int) -> None:
        """End a session: its ephemeral nodes and watches go."""
        served = self.sessions.pop(session_id, None)
        if served is None:
            return
        for watchers in self._watches.values():
            for key in [key for key in watchers if key[0] == session_id]:
                del watchers[key]
        # In the order of their names: sets have none.
        operations = [Delete(path) for path in sorted(self.tree.ephemerals.get(session_id, ()), reverse=True)]
        if operations:
            self.apply(session_id, operations)
        if served.connection is not None:
            served.connection.send(1, ("expired", 0, None))
            served.connection.close(1)

    def _answer(self, served: Served, connection: Connection, number: int, ask: Callable[[Served], Any]) -> None:
        try:
            answer = ask(served)
        except StoreError as error:
            answer = error
        if self.lost_answers and self.scheduler.chance.random() < self.lost_answers:
            connection.reset()
            return
        connection.send(1, ("answer", number, answer))

    # --- the tree

    def apply(self, session_id: int, operations: Sequence[Operation]) -> list[Result]:
        """Carry out all or none, and send the events. Raises StoreError."""
        draft = Draft(self.tree)
        self._last_id += 1
        results = [draft.apply(operation, session_id, self._last_id) for operation in operations]
        self.tree.merge(draft)
        for event in draft.events:
            self._notify(event)
        for told in self.changed:
            told(session_id, operations, self.tree)
        return results

    def _notify(self, event: WatchEvent) -> None:
        for of_children in (False, True) if event.kind is EventKind.DELETED else (False,):
            self._fire(of_children, event.path, event)
        if event.kind is not EventKind.CHANGED:
            parent = parent_of(event.path)
            self._fire(True, parent, WatchEvent(EventKind.CHILDREN, parent))

    def _fire(self, of_children: bool, path: str, event: WatchEvent) -> None:
        for session_id, watcher in self._watches.pop((of_children, path), {}):
            served = self.sessions[session_id]
            delay = self.hold_event(served, event)
            if delay:
                self.scheduler.after(delay, partial(self._tell, served, watcher, event))
            elif delay is not None:
                self._tell(served, watcher, event)

    def _tell(self, served: Served, watcher: Watcher, event: WatchEvent) -> None:
        if served.session_id in self.sessions:
            served.event_number += 1
            served.outbox.append((served.event_number, watcher, event))
            if served.connection is not None:
                served.connection.send(1, ("event", 0, served.outbox[-1]))

    def watch(self, served: Served, path: str, watcher: Watcher | None, *, of_children: bool = False) -> None:
        if watcher is not None:
            self._watches.setdefault((of_children, path), {})[served.session_id, watcher] = None

    def get(self, path: str) -> tuple[bytes, Stat] | None:
        node = self.tree.node(path)
        return None if node is None else (node.data, node.stat())

    def names(self, path: str) -> list[str]:
        if path not in self.tree.values:
            raise NoNode(path)
        return sorted(self.tree.children.get(path, ()))


class Session:
    """One session of a process: a `store.Store`."""

    def __init__(
        self,
        server: TreeServer,
        process: Process,
        timeout: int,
        *,
        connected: Callable[[Session], None] = lambda s: None,
    ):
        """Begin to connect. `connected` is called once, when the session is there."""
        self._server, self._process, self._timeout = server, process, timeout
        self._scheduler, self._network = server.scheduler, server.network
        self._connected: Callable[[Session], None] | None = connected
        self._connection: Connection | None = None
        self._is_over = False
        self._heard_at = 0
        self._last_event = 0
        self._ends: list[Callable[[], None]] = []
        self._asked: dict[int, Task] = {}
        self._number = 0
        self._waiting: list[Task] = []
        """Tasks that wait for a connection."""
        self.session_id = 0
        self.deliver: Callable[[Callable[[], None]], None] = lambda action: action()
        """Runs a callback as the event thread does; set by the process, which has one."""
        self._connect()
        self._beat()

    # --- the connection

    def _connect(self) -> None:
        if not self._is_over:
            self._network.connect(self._process, TREE, self._arrive, self._on_connection, timeout=self._timeout // 3)

    def _on_connection(self, result: Connection | Refusal) -> None:
        if self._is_over:
            return
        if isinstance(result, Refusal):
            self._scheduler.after(RECONNECT_DELAY, self._connect, self._process)
            return
        self._connection = result
        self._heard_at = self._scheduler.now
        result.send(0, ("hello", 0, (self.session_id, self._timeout, self._last_event)))

    def _beat(self) -> None:
        """Say that this session lives, and give up a connection on which nothing is heard."""
        if self._is_over:
            return
        connection = self._connection
        if connection is not None:
            if self._scheduler.now - self._heard_at > self._timeout * 2 // 3:
                self._connection = None
                connection.close(0)
                self._lost()
            else:
                connection.send(0, ("beat", 0, self._last_event))
        self._scheduler.after(self._timeout // 4, self._beat, self._process)

    def _lost(self) -> None:
        asked, self._asked = self._asked, {}
        self._connect()
        for task in asked.values():
            self._resume(task, StoreUnavailable("the connection was lost; the change may have been made"))

    def _arrive(self, thing: Any) -> None:
        if self._is_over:
            return
        if thing is BROKEN:
            self._connection = None
            self._lost()
            return
        self._heard_at = self._scheduler.now
        kind, number, body = thing
        if kind == "answer":
            task = self._asked.pop(number, None)
            if task is not None:
                self._resume(task, body)
        elif kind == "event":
            self._last_event, watcher, event = body
            self.deliver(lambda: watcher(event))
        elif kind == "welcome":
            self.session_id = body
            connected, self._connected = self._connected, None
            if connected is not None:
                connected(self)
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                self._resume(task, None)
        elif kind == "expired":
            self._expired()

    def _expired(self) -> None:
        self._is_over = True
        for task in [*self._asked.values(), *self._waiting]:
            self._resume(task, SessionExpired())
        self._asked.clear()
        for callback in self._ends:
            self.deliver(callback)

    def _resume(self, task: Task, value: Any) -> None:
        self._scheduler.after(0, lambda: task.answer(value) if task.is_waiting else None, self._process)

    def _call(self, ask: Callable[[Served], Any], *, reads: bool) -> Any:
        if self._is_over:
            raise SessionExpired
        task = next((task for task in self._process.tasks if task.is_current), None)
        if task is None:
            # Nobody could wait: as if the way were very short.
            served = self._server.sessions.get(self.session_id)
            if served is None or self._connection is None:
                raise StoreUnavailable("no connection; nothing was changed")
            return ask(served)
        deadline = self._scheduler.now + self._timeout
        while True:
            while not self._is_over and (self._connection is None or not self.session_id):
                if self._scheduler.now >= deadline:
                    raise StoreUnavailable("no connection; nothing was changed")
                self._waiting.append(task)
                timer = self._scheduler.after(self._timeout, lambda: self._give_up(task), self._process)
                try:
                    task.wait()
                finally:
                    timer.cancel()
            if self._is_over:
                raise SessionExpired
            self._number += 1
            self._asked[self._number] = task
            self._connection.send(0, ("ask", self._number, ask))
            try:
                return task.wait()
            except StoreUnavailable:
                if not reads:
                    raise

    def _give_up(self, task: Task) -> None:
        if task in self._waiting:
            self._waiting.remove(task)
            task.answer(StoreUnavailable("no connection; nothing was changed"))

    # --- the store

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        return str(self.multi([Create(path, data, ephemeral, sequential)])[0])

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        def ask(served: Served) -> tuple[bytes, Stat]:
            found = self._server.get(path)
            if found is None:
                raise NoNode(path)
            self._server.watch(served, path, watch)
            return found

        return self._call(ask, reads=True)

    def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        def ask(served: Served) -> Stat | None:
            self._server.watch(served, path, watch)
            found = self._server.get(path)
            return None if found is None else found[1]

        return self._call(ask, reads=True)

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        def ask(served: Served) -> list[str]:
            names = self._server.names(path)
            self._server.watch(served, path, watch, of_children=True)
            return names

        return self._call(ask, reads=True)

    def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        def ask(served: Served) -> list[tuple[bytes, Stat] | None]:
            found = [self._server.get(path) for path in paths]
            for path, node in zip(paths, found, strict=True):
                if watch is not None and node is not None:
                    self._server.watch(served, path, watch)
            return found

        return self._call(ask, reads=True)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        result = self.multi([SetData(path, data, version)])[0]
        assert isinstance(result, Stat)
        return result

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        operations = list(operations)
        return self._call(lambda served: self._server.apply(served.session_id, operations), reads=False)

    def multi_many(self, transactions: Sequence[Sequence[Operation]]) -> list[list[Result] | StoreError]:
        """Carry out the transactions one after the other; each has its own outcome."""
        wanted = [list(operations) for operations in transactions]

        def ask(served: Served) -> list[list[Result] | StoreError]:
            return [self._outcome(served, operations) for operations in wanted]

        return self._call(ask, reads=False)

    def _outcome(self, served: Served, operations: Sequence[Operation]) -> list[Result] | StoreError:
        try:
            return self._server.apply(served.session_id, operations)
        except StoreError as error:
            return error

    @property
    def may_have_ended(self) -> bool:
        return self._is_over or self._scheduler.now - self._heard_at > self._timeout

    def on_end(self, callback: Callable[[], None]) -> None:
        self._ends.append(callback)

    def close(self) -> None:
        """End the session at once, as a clean stop does."""
        if not self._is_over:
            self._is_over = True
            self._server.expire(self.session_id)
            if self._connection is not None:
                self._connection.close(0)
