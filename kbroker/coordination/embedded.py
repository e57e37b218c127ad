"""The coordination store of a single broker: a tree in memory, durable in one SQLite file.

One writer thread takes the changes that are queued, tries each against the tree in order, and commits all that passed
as one SQLite transaction (WAL, synchronous=FULL). Only then do their calls return and readers see them. Ephemeral nodes
are never written: they end with the process. The tree is small (a broker with 5,000 partitions has some 15,000 nodes)
and kept in memory, so reads never touch the disk.

SQLite has no checksums: a flipped bit in a row changes a name, number or config, and one in a page's header loses a
row. So the file also has the XOR of the CRCs of all rows. It is written with each change and compared at each start.

The file is opened in exclusive mode: a second process is refused, and there is no shared-memory file beside it.

On a full disk the store lives on its reserve (`reserve.py`). Changes that delete or set nodes go on. Changes that
create nodes are refused, except marks of deletion and configs.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kbroker._core.wire.crc import crc32_of, crc32_of_rows
from kbroker.coordination import paths
from kbroker.coordination.reserve import CHECKPOINT_PAGES, StoreReserve
from kbroker.coordination.store import (
    ANY_VERSION,
    Create,
    Delete,
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
    check_paths,
    parent_of,
)
from kbroker.coordination.tree import HEADER, Draft, Node, Tree
from kbroker.errors import DiskDamaged, KbrokerError

log = logging.getLogger(__name__)

FILE_NAME = "coordination.sqlite"
"""The name of the store's file. It is in the first log directory, unless it was moved to another one."""

DISK_FULL = "the disk is full"

FORMAT = 2
"""On disk, as SQLite's user_version. Do not renumber. Format 1 has no sum; it is added when the file is opened."""

_SCHEMA = """
CREATE TABLE node (path TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE opened (epoch INTEGER NOT NULL, sum INTEGER);
INSERT INTO opened VALUES (0, NULL);
INSERT INTO node VALUES ('/', zeroblob(40));
"""


_RESERVED_FOR = tuple(
    f"{path}/" for path in (paths.DELETE_TOPICS, paths.TOPIC_CONFIGS, paths.BROKER_CONFIGS, paths.GROUP_CONFIGS)
)
"""Prefixes of the paths below which nodes may be created on a full disk too."""


class StoreDamaged(DiskDamaged):
    """The database cannot be read or is not as it was written; the message says what can be done."""

    def __init__(self, path: str, what: str):
        KbrokerError.__init__(
            self, f"{path} is damaged ({what}): put a copy back, or move it away to start anew from the logs on disk"
        )
        self.path = path
        self.position = -1
        self.what = what


class _Change:
    """A change whose caller waits for the writer.

    `operations` None: the session has ended, and its ephemeral nodes are to be deleted.
    """

    __slots__ = ("_done", "error", "operations", "results", "session_id")

    def __init__(self, session_id: int, operations: Sequence[Operation] | None):
        self.session_id = session_id
        self.operations = operations
        self.results: list[Result] = []
        self.error: KbrokerError | None = None
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()

    def wait(self) -> list[Result]:
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.results


class EmbeddedStore:
    """The tree and its file. Brokers in this process use it through sessions (`connect`).

    Locks: `_lock` guards the tree, sessions and watches, `_queued` the queue of changes. They are never held together.
    """

    def __init__(self, path: str):
        self._path = path
        self._lock = threading.Lock()
        self._queue: deque[_Change] = deque()
        self._queued = threading.Condition(threading.Lock())
        self._stopping = False
        self._failure: str | None = None
        self._sessions: dict[int, EmbeddedSession] = {}
        self._data_watches: dict[str, dict[tuple[int, Watcher], None]] = {}
        self._child_watches: dict[str, dict[tuple[int, Watcher], None]] = {}
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._event_thread: threading.Thread | None = None
        self._reserve = StoreReserve(path)
        self._lives_on_reserve = False
        """Whether the disk is full. Only the writer uses it."""
        self._database = self._open()
        with self._reading():
            self._sum = 0
            """XOR of the CRCs of the nodes' rows. The sum on disk is this XOR the epoch."""
            self._tree = Tree(self._load())
            self._epoch = epoch = self._next_epoch()
        self._last_id = epoch << 32
        self._last_session_id = epoch << 32
        self._writer = threading.Thread(target=self._write_changes, name="coordination-writer", daemon=True)
        self._writer.start()

    def connect(self) -> EmbeddedSession:
        """Begin a session. It lasts until it is closed or expires, or the store stops."""
        with self._lock:
            self._last_session_id += 1
            session = EmbeddedSession(self, self._last_session_id)
            self._sessions[session.session_id] = session
        return session

    def expire(self, session_id: int) -> None:
        """Expire a session, as ZooKeeper does with a session that it does not hear from."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            self._end(session, expired=True)

    def fail(self, reason: str) -> None:
        """Refuse changes from now on: it is not certain that they would survive a restart. Reads go on."""
        if self._failure is None:
            log.error("%s takes no more changes until the broker is started again: %s", self._path, reason)
            self._failure = f"{self._path} takes no more changes: {reason}"

    def stop(self) -> None:
        """Finish the queued changes, end all sessions, close the file. Idempotent."""
        with self._queued:
            self._stopping = True
            self._queued.notify()
        self._writer.join()
        with self._lock:
            thread, self._event_thread = self._event_thread, None
            self._sessions.clear()
        if thread is not None:
            self._events.put(None)
            if thread is not threading.current_thread():
                thread.join()
        self._reserve.close(self._database)

    # --- the file -----------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        with self._reading():
            self._reserve.take_up()
            database = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                database.execute("PRAGMA locking_mode=EXCLUSIVE")
                database.execute("PRAGMA journal_mode=WAL")
                database.execute("PRAGMA synchronous=FULL")
                database.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
                database.execute("BEGIN IMMEDIATE")
                found = database.execute("PRAGMA user_version").fetchone()[0]
                if found not in (0, 1, FORMAT):
                    raise StoreUnavailable(f"{self._path} has format {found}; this version of kbroker reads {FORMAT}")
                if found == 0:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        database.execute(statement)
                if found == 1:
                    database.execute("ALTER TABLE opened ADD COLUMN sum INTEGER")
                if found != FORMAT:
                    database.execute(f"PRAGMA user_version={FORMAT}")
            except BaseException:
                database.close()
                raise
        return database

    def _load(self) -> dict[str, bytes]:
        values: dict[str, bytes] = dict(self._database.execute("SELECT path, value FROM node"))
        if "/" not in values or min(map(len, values.values())) < HEADER.size:
            raise StoreDamaged(self._path, "nodes are missing or cut short")
        epoch, told = self._database.execute("SELECT epoch, sum FROM opened").fetchone()
        self._sum = crc32_of_rows(values)
        if told is not None and told != self._sum ^ epoch:
            raise StoreDamaged(self._path, "its rows are not those that were written")
        return values

    def _next_epoch(self) -> int:
        """Count this opening of the file, so that ids of sessions and changes (of ephemeral nodes too) never repeat."""
        epoch = int(self._database.execute("SELECT epoch FROM opened").fetchone()[0]) + 1
        self._database.execute("UPDATE opened SET epoch = ?, sum = ?", (epoch, self._sum ^ epoch))
        if not self._reserve.is_needed():
            self._reserve.hold_pages(self._database)
        self._database.execute("COMMIT")
        with contextlib.suppress(OSError):  # the disk is full: the reserve stays as large as the last run has left it
            self._reserve.hold_log()
        return epoch

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A context manager that turns SQLite's errors about the file into StoreUnavailable or StoreDamaged."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreUnavailable(f"{self._path} is in use by another process") from error
            raise StoreUnavailable(f"{self._path} cannot be opened: {error}") from error
        except (sqlite3.DatabaseError, TypeError) as error:
            # TypeError: a table lacks its row.
            raise StoreDamaged(self._path, str(error)) from error
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be opened: {error}") from error

    def _commit(self, draft: Draft) -> None:
        """Make the persistent part of `draft` durable. Raises sqlite3.Error, with nothing changed, if that fails."""
        removed: list[tuple[str]] = []
        written: list[tuple[str, bytes]] = []
        new_sum = self._sum
        for path, node in draft.nodes.items():
            before = self._tree.node(path)
            if before is not None and not before.owner:
                new_sum ^= _crc_of(path, self._tree.values[path])
            if node is not None and not node.owner:
                written.append((path, node.encode()))
                new_sum ^= _crc_of(*written[-1])
            elif before is not None and not before.owner:
                removed.append((path,))
        if not removed and not written:
            return
        try:
            self._transact(removed, written, new_sum)
        except sqlite3.OperationalError as error:
            if not _is_full(error):
                raise
            # A checkpoint moves pages into the database, and the write-ahead log can use their room again.
            self._database.execute("PRAGMA wal_checkpoint(RESTART)")
            self._transact(removed, written, new_sum)

    def _transact(self, removed: list[tuple[str]], written: list[tuple[str, bytes]], new_sum: int) -> None:
        execute, executemany = self._database.execute, self._database.executemany
        execute("BEGIN IMMEDIATE")
        try:
            executemany("DELETE FROM node WHERE path = ?", removed)
            executemany("INSERT OR REPLACE INTO node VALUES (?, ?)", written)
            execute("UPDATE opened SET sum = ?", (new_sum ^ self._epoch,))
            if not self._lives_on_reserve:
                self._reserve.hold_pages(self._database)
            execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                execute("ROLLBACK")
            raise
        self._sum = new_sum

    # --- the writer ---------------------------------------------------------------------------------------------------

    def submit(self, change: _Change) -> list[Result]:
        """Queue a change and wait until it is durable. Raises its error if it is refused."""
        self._queue_all([change])
        return change.wait()

    def submit_many(self, changes: Sequence[_Change]) -> list[Outcome]:
        """Queue changes and wait until all are durable. Raises, once all are done, an error that is no StoreError."""
        self._queue_all(changes)
        outcomes: list[Outcome] = []
        refusal: KbrokerError | None = None
        for change in changes:
            try:
                outcomes.append(change.wait())
            except SessionExpired as error:
                refusal = error
            except StoreError as error:
                outcomes.append(error)
            except KbrokerError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return outcomes

    def _queue_all(self, changes: Sequence[_Change]) -> None:
        with self._queued:
            if self._stopping:
                raise StoreUnavailable(f"{self._path} is closed; nothing was changed")
            self._queue.extend(changes)
            self._queued.notify()

    def _write_changes(self) -> None:
        while True:
            with self._queued:
                while not self._queue and not self._stopping:
                    self._queued.wait()
                if not self._queue:
                    return
                changes = list(self._queue)
                self._queue.clear()
            try:
                self._write_group(changes)
            except Exception as error:
                # A bug of ours between commit and answer: the file is whole, the tree in memory may not be.
                for change in changes:
                    change.error = StoreUnavailable(self._refusal(error))
            finally:
                for change in changes:
                    change.finish()
            with contextlib.suppress(OSError):
                self._reserve.hold_log()

    def _write_group(self, changes: list[_Change]) -> None:
        """Try each change on top of those before it, commit all that passed, then show them to readers and watchers.

        The outcome of each is in `results` or `error`.
        """
        group = Draft(self._tree)
        self._lives_on_reserve = self._reserve.is_needed()
        passed: list[_Change] = []
        for change in changes:
            draft = Draft(group)
            try:
                if self._failure is not None and change.operations is not None:
                    raise StoreUnavailable(self._failure)
                change_id = self._last_id + 1
                operations = self._operations_of(change, group)
                if self._lives_on_reserve and not all(map(_fits_reserve, operations)):
                    raise StoreUnavailable(f"{self._path}: {DISK_FULL}; nothing was changed")
                change.results = [draft.apply(operation, change.session_id, change_id) for operation in operations]
            except KbrokerError as error:
                change.error = error
                continue
            self._last_id = change_id
            group.merge(draft)
            passed.append(change)
        try:
            self._commit(group)
        except Exception as error:
            refused = self._refusal(error)
            for change in passed:
                if change.operations is None:
                    # Ephemeral nodes are not on disk: delete them although the commit has failed.
                    self._write_group([change])
                else:
                    change.error = StoreUnavailable(refused)
            return
        with self._lock:
            self._tree.merge(group)
            for event in group.events:
                self._fire_locked(event)

    def _operations_of(self, change: _Change, group: Draft) -> Sequence[Operation]:
        if change.operations is not None:
            # Checked here and not when queued: no ephemeral node may be made after those of its session are removed.
            with self._lock:
                self._check_session_locked(change.session_id)
            return change.operations
        # This group cannot have created any of them: the session has ended, so its changes were refused above.
        mine = sorted(self._tree.ephemerals.get(change.session_id, ()))
        return [Delete(path) for path in mine if group.node(path) is not None]

    def _refusal(self, error: Exception) -> str:
        """Return the error message for callers. After any error but a full disk the store takes no more changes.

        A failed fsync is final: the system may have dropped the data.
        """
        if isinstance(error, sqlite3.Error) and _is_full(error):
            return f"{self._path}: {DISK_FULL}; nothing was changed"
        log.error("%s takes no more changes until the broker is started again: %r", self._path, error)
        self._failure = f"{self._path} takes no more changes: it failed with {error}"
        return f"{self._path} failed with {error}; whether the change was made will show after a restart"

    # --- reading, sessions and watches --------------------------------------------------------------------------------

    def _check_session_locked(self, session_id: int) -> None:
        if session_id not in self._sessions:
            raise SessionExpired

    def read(self, session_id: int, paths: Iterable[str], watch: Watcher | None = None) -> list[Node | None]:
        """The nodes at one moment, None for one that does not exist; a watch is set in both cases."""
        with self._lock:
            self._check_session_locked(session_id)
            nodes = [self._tree.node(path) for path in paths]
            if watch is not None:
                for path in paths:
                    self._watch_locked(self._data_watches, path, session_id, watch)
            return nodes

    def read_many(
        self, session_id: int, paths: Sequence[str], watch: Watcher | None
    ) -> list[tuple[bytes, Stat] | None]:
        """Data and stat of many nodes, without making `Node` objects: for the start with thousands of topics."""
        with self._lock:
            self._check_session_locked(session_id)
            values = list(map(self._tree.values.get, paths))
            if watch is not None:
                for path, value in zip(paths, values, strict=True):
                    if value is not None:
                        self._watch_locked(self._data_watches, path, session_id, watch)
        return [None if value is None else Node.split(value) for value in values]

    def read_existing(self, session_id: int, path: str, watch: Watcher | None) -> Node:
        with self._lock:
            self._check_session_locked(session_id)
            node = self._tree.node(path)
            if node is None:
                raise NoNode(path)
            if watch is not None:
                self._watch_locked(self._data_watches, path, session_id, watch)
            return node

    def read_children(self, session_id: int, path: str, watch: Watcher | None) -> list[str]:
        with self._lock:
            self._check_session_locked(session_id)
            if self._tree.node(path) is None:
                raise NoNode(path)
            if watch is not None:
                self._watch_locked(self._child_watches, path, session_id, watch)
            return sorted(self._tree.children.get(path, ()))

    def call_at_end(self, session: EmbeddedSession, callback: Callable[[], None]) -> None:
        with self._lock:
            if session.session_id in self._sessions:
                session.end_callbacks.append(callback)
            elif session.expired:
                self._post_locked(callback)

    def close_session(self, session: EmbeddedSession) -> None:
        with self._lock:
            known = self._sessions.pop(session.session_id, None)
        if known is not None:
            self._end(session, expired=False)

    def _end(self, session: EmbeddedSession, *, expired: bool) -> None:
        """End a session. Its watches are removed first, so that it does not hear of its own nodes' deletion."""
        with self._lock:
            for watches in (self._data_watches, self._child_watches):
                for path in list(watches):
                    mine = [key for key in watches[path] if key[0] == session.session_id]
                    for key in mine:
                        del watches[path][key]
                    if not watches[path]:
                        del watches[path]
            session.expired = expired
            if expired:
                for callback in session.end_callbacks:
                    self._post_locked(callback)

        try:
            self.submit(_Change(session.session_id, None))
        except StoreUnavailable as error:
            # The file is closed or failed; ephemeral nodes were never in it.
            log.debug("session %d ended without its writer: %s", session.session_id, error)

    def _watch_locked(
        self, watches: dict[str, dict[tuple[int, Watcher], None]], path: str, session_id: int, watch: Watcher
    ) -> None:
        watches.setdefault(path, {})[session_id, watch] = None
        self._start_events_locked()

    def _fire_locked(self, event: WatchEvent) -> None:
        watchers = self._data_watches.pop(event.path, {})
        if event.kind is EventKind.DELETED:
            watchers |= self._child_watches.pop(event.path, {})
        self._notify_locked(watchers, event)
        if event.kind is not EventKind.CHANGED:
            parent_path = parent_of(event.path)
            above = WatchEvent(EventKind.CHILDREN, parent_path)
            self._notify_locked(self._child_watches.pop(parent_path, {}), above)

    def _notify_locked(self, watchers: Iterable[tuple[int, Watcher]], event: WatchEvent) -> None:
        for session_id, watch in watchers:
            if session_id in self._sessions:
                self._post_locked(lambda watch=watch: watch(event))  # type: ignore[misc]

    def _start_events_locked(self) -> None:
        if self._event_thread is None and not self._stopping:
            self._event_thread = threading.Thread(target=self._deliver, name="coordination-events", daemon=True)
            self._event_thread.start()

    def _post_locked(self, callback: Callable[[], None]) -> None:
        self._start_events_locked()
        self._events.put(callback)

    def _deliver(self) -> None:
        while (callback := self._events.get()) is not None:
            try:
                callback()
            except Exception:
                log.exception("a watcher of the coordination store failed")


def _crc_of(path: str, value: bytes) -> int:
    """The CRC of a node's row."""
    return crc32_of(value, crc32_of(path.encode()))


class EmbeddedSession:
    """One session with an `EmbeddedStore`. It implements `Store`."""

    def __init__(self, store: EmbeddedStore, session_id: int):
        self._store = store
        self._session_id = session_id
        self.end_callbacks: list[Callable[[], None]] = []
        self.expired = False

    @property
    def session_id(self) -> int:
        return self._session_id

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        result = self.multi([Create(path, data, ephemeral, sequential)])[0]
        assert isinstance(result, str), result
        return result

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        node = self._store.read_existing(self._session_id, path, watch)
        return node.data, node.stat()

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        result = self.multi([SetData(path, data, version)])[0]
        assert isinstance(result, Stat), result
        return result

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        node = self._store.read(self._session_id, (path,), watch)[0]
        return None if node is None else node.stat()

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        return self._store.read_children(self._session_id, path, watch)

    def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        return self._store.read_many(self._session_id, paths, watch)

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        check_paths(operations)
        return self._store.submit(_Change(self._session_id, operations))

    def multi_many(self, transactions: Sequence[Sequence[Operation]]) -> list[Outcome]:
        for operations in transactions:
            check_paths(operations)
        return self._store.submit_many([_Change(self._session_id, operations) for operations in transactions])

    @property
    def may_have_ended(self) -> bool:
        return self.expired

    def on_end(self, callback: Callable[[], None]) -> None:
        self._store.call_at_end(self, callback)

    def close(self) -> None:
        self._store.close_session(self)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _fits_reserve(operation: Operation) -> bool:
    """Whether the operation may be done when the disk is full: it may lead to free space, or takes none."""
    if not isinstance(operation, Create) or operation.ephemeral:
        return True
    return operation.path.startswith(_RESERVED_FOR)


def store_path(log_dir: str) -> str:
    """The path of the store in a log directory."""
    return str(Path(log_dir) / FILE_NAME)
