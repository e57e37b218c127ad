"""The watches of a session with ZooKeeper, which survive lost connections.

After a reconnect each watch is set again, and its watcher is called if the node has changed meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback, EventType, KeeperState, WatchedEvent

from kbroker.coordination import store

log = logging.getLogger(__name__)

_KINDS = {
    EventType.CREATED: store.EventKind.CREATED,
    EventType.CHANGED: store.EventKind.CHANGED,
    EventType.DELETED: store.EventKind.DELETED,
    EventType.CHILD: store.EventKind.CHILDREN,
}


class Mark(NamedTuple):
    """The state of a node when a watch was set; if it differs later, the node has changed."""

    creation_id: int
    change_id: int
    """The id of the last change of the node's data; for a watch of children, of its children."""


class Watch:
    """One watcher on one path. It is set once; `again` makes another one to be set anew."""

    def __init__(
        self, on_event: Callable[[Watch, WatchedEvent], None], path: str, watcher: store.Watcher, *, of_children: bool
    ):
        self.path = path
        self.watcher = watcher
        self.of_children = of_children
        self.mark: Mark | None = None
        self.is_settled = threading.Event()
        """Set when `mark` is known, or when the watch is void, so that its events are ignored."""
        self.is_void = False
        self._on_event = on_event

    @property
    def key(self) -> tuple[str, bool, store.Watcher]:
        return self.path, self.of_children, self.watcher

    def __call__(self, event: WatchedEvent) -> None:
        self._on_event(self, event)

    def settle(self, mark: Mark | None, *, void: bool = False) -> None:
        self.mark = mark
        self.is_void = void
        self.is_settled.set()

    def again(self) -> Watch:
        return Watch(self._on_event, self.path, self.watcher, of_children=self.of_children)


class Watches:
    """The watches of one session, and the calls on kazoo's event thread.

    `inner` returns a path as ZooKeeper has it. `wait_s` is the longest time that an answer is waited for.
    """

    def __init__(self, client: KazooClient, inner: Callable[[str], str], wait_s: float):
        self._client = client
        self._inner = inner
        self._wait_s = wait_s
        self._lock = threading.Lock()  # guards `_set`; taken alone
        self._set: dict[tuple[str, bool, store.Watcher], Watch] = {}
        self._dropped: list[Watch] = []
        self._told: tuple[WatchedEvent | None, list[store.Watcher]] = None, []
        self.event_thread = 0
        """The thread that has made the last call."""

    # --- for the session ----------------------------------------------------------------------------------------------

    def make(self, path: str, watcher: store.Watcher, *, of_children: bool) -> Watch:
        """A watch to give to kazoo with a request; `settle` it when the request is answered."""
        return Watch(self._on_event, path, watcher, of_children=of_children)

    def settle(self, watch: Watch, mark: Mark | None, *, is_set: bool) -> None:
        """Finish the setting of a watch, which has succeeded if `is_set`.

        A watch that was set replaces an earlier one of the same watcher that has not fired yet.
        """
        watch.settle(mark, void=not is_set)
        if is_set:
            with self._lock:
                earlier = self._set.get(watch.key)
                self._set[watch.key] = watch
            if earlier is not None:
                self._withdraw(earlier)

    def _withdraw(self, watch: Watch) -> None:
        """Remove a watch from kazoo, which has no call for this and would keep it until the node changes."""
        watches = self._client._child_watchers if watch.of_children else self._client._data_watchers
        if (of_path := watches.get(self._inner(watch.path))) is not None:
            of_path.discard(watch)

    def _unset(self, watch: Watch) -> None:
        with self._lock:
            if self._set.get(watch.key) is watch:
                del self._set[watch.key]

    def post(self, call: Callable[[], None]) -> None:
        """Have kazoo's event thread make the call, after those that wait already."""
        self._client.handler.dispatch_callback(Callback("session", self.deliver, (call,)))

    def deliver(self, call: Callable[[], None]) -> None:
        """Make the call on this thread. What it raises is logged."""
        self.event_thread = threading.get_ident()
        try:
            call()
        except Exception:
            log.exception("a watcher of the coordination store failed")

    # --- on kazoo's event thread, one call after the other ------------------------------------------------------------

    def _on_event(self, watch: Watch, event: WatchedEvent) -> None:
        """Take an event of one watch from kazoo, and call its watcher."""
        watch.is_settled.wait()
        self._unset(watch)
        if watch.is_void:
            return
        if event.type == EventType.NONE:
            # The connection is lost, and kazoo forgets its watches with it.
            if event.state == KeeperState.CONNECTING:
                self._dropped.append(watch)
            return
        last, told = self._told
        if last is not event:
            told = []
            self._told = event, told
        if watch.watcher not in told:  # a watcher of both data and children is told of a deletion once
            told.append(watch.watcher)
            self._fire(watch, _KINDS[event.type])

    def _fire(self, watch: Watch, kind: store.EventKind) -> None:
        self.deliver(lambda: watch.watcher(store.WatchEvent(kind, watch.path)))

    def set_again(self) -> None:
        """Set the watches again that the last connection had, and report changes since. Called after a reconnect."""
        dropped, self._dropped = {each.key: each for each in self._dropped}, []
        asked = []
        for old in dropped.values():
            new = old.again()
            ask = self._client.get_children_async if old.of_children else self._client.exists_async
            more = {"include_data": True} if old.of_children else {}
            asked.append((old, new, ask(self._inner(old.path), new, **more)))
        told: set[tuple[str, store.Watcher]] = set()
        for old, new, answer in asked:
            mark: Mark | None = None
            is_set = True
            try:
                found = answer.get(timeout=self._wait_s)
                mark = children_mark(found[1]) if old.of_children else data_mark(found)
            except NoNodeError:
                is_set = False
            except (KazooException, KazooTimeoutError):
                # The connection is lost again: set it with the next one.
                self.settle(new, None, is_set=False)
                self._dropped.append(old)
                continue
            kind = _happened(old, mark)
            self.settle(new, mark, is_set=is_set and kind is None)
            if kind is None:
                continue
            self._withdraw(new)
            if kind is store.EventKind.DELETED:
                if (old.path, old.watcher) in told:
                    continue
                told.add((old.path, old.watcher))
            self._fire(old, kind)
        # A watcher of both data and children is told of a deletion once, even if only one of the answers has come.
        self._dropped = [old for old in self._dropped if (old.path, old.watcher) not in told]


def data_mark(stat: Any) -> Mark | None:
    return None if stat is None else Mark(stat.czxid, stat.mzxid)


def children_mark(stat: Any) -> Mark:
    return Mark(stat.czxid, stat.pzxid)


def _happened(watch: Watch, now: Mark | None) -> store.EventKind | None:
    """Return what has happened to the node since the watch was set; None if nothing has."""
    if now == watch.mark:
        return None
    if watch.mark is None:
        return store.EventKind.CREATED
    if now is None or now.creation_id != watch.mark.creation_id:
        return store.EventKind.DELETED
    return store.EventKind.CHILDREN if watch.of_children else store.EventKind.CHANGED
