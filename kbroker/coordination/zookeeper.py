"""The coordination store in a real ZooKeeper: a `store.Store` on kazoo. `zookeeper_watches.py` has its watches.

A session survives lost connections until ZooKeeper expires it. While there is no connection, calls wait for one, for up
to `wait_s`; then they raise StoreUnavailable, which says whether the change may have been made. Reads whose connection
is lost are repeated. Watches survive too.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Create as CreateRequest
from kazoo.protocol.serialization import GetData
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from kbroker.coordination import store
from kbroker.coordination.parcels import size_of
from kbroker.coordination.store import check_path, parent_of
from kbroker.coordination.zookeeper_watches import Mark, Watch, Watches, children_mark, data_mark
from kbroker.errors import ConfigError, KbrokerError

log = logging.getLogger(__name__)

MAX_REQUEST_SIZE = 1_000_000
"""Most bytes of one `multi`: ZooKeeper drops a connection that sends more than its jute.maxbuffer."""
IN_FLIGHT = 500
"""Most reads that are sent before the first answer is waited for."""
WRITES_IN_FLIGHT = 200
"""Most transactions that are sent before the first answer is waited for; ZooKeeper slows down above 1,000 requests."""
BYTES_IN_FLIGHT = 4 * MAX_REQUEST_SIZE
"""Most bytes of transactions that are sent before the first answer is waited for."""
MAY_BE_MADE = "; the change may have been made"
RECONNECT_DELAY_S = 1.0
"""The longest pause between two attempts to connect."""
CLOSE_S = 5.0
"""How long a close waits for ZooKeeper to end the session.

Without a connection it does not wait: the session times out."""


class _Link(Enum):
    """The state of the session."""

    CONNECTED = "connected"
    LOST = "lost"
    EXPIRED = "expired"
    CLOSED = "closed"


class _Threads(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, with names and with a bound on the wait for one server.

    A ZooKeeper that is just starting may accept a connection and never answer on it. Kazoo would wait for the whole
    session timeout, and the session would be lost.
    """

    def __init__(self, patience_s: float):
        super().__init__()
        self._patience_s = patience_s
        self.heard_s = time.monotonic()
        """When something came from a server last, be it the end of a connection."""

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._patience_s), **kwargs)

    def select(
        self, read: Sequence[Any], write: Sequence[Any], other: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the sockets that are ready. Wait for them, but for at most `patience_s` if only one is to be read.

        Kazoo passes one socket while it waits for an answer of the server: the answer to its handshake, or the rest of
        an answer that has begun to come. It passes two, the connection and its wake-up pipe, when it is idle: then it
        waits until there is something to do, or until a ping is due.

        Kazoo comes here five times for each request. Its own function makes an epoll set each time, which was half of
        the CPU time of a session with many requests.
        """
        if len(read) == 1:
            timeout = min(timeout, self._patience_s)
        poll = select.poll()
        for one in read:
            poll.register(one, select.POLLIN)
        for one in write:
            poll.register(one, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(math.ceil(timeout * 1000))}
        if read and read[0].fileno() in ready:  # the connection; the wake-up pipe comes second
            self.heard_s = time.monotonic()
        return [one for one in read if one.fileno() in ready], [one for one in write if one.fileno() in ready], []

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name="zookeeper", daemon=True)
        thread.start()
        return thread


class ZooKeeperStore:
    """A session with `HOST:PORT[,HOST:PORT...][/CHROOT]`. A chroot that does not exist is like an empty tree.

    Locks: `_changed` guards `_link`, `_heard_s`, `_is_heard` and `_end_callbacks`. No call is made while it is held.
    """

    def __init__(
        self,
        address: str,
        session_timeout_s: float,
        *,
        connect_timeout_s: float | None = None,
        wait_s: float | None = None,
        connects: bool = True,
    ):
        """Connect; the session is there when this returns. Raises StoreUnavailable after `connect_timeout_s`.

        `wait_s` is the longest time that a call waits. Both are `session_timeout_s` if not given. With `connects` false
        it returns at once, and `connect` has to be called. Raises ConfigError if the address is malformed.
        """
        self._address = address
        hosts, slash, chroot = address.partition("/")
        self._chroot = f"/{chroot.strip('/')}" if slash and chroot.strip("/") else ""
        check_path(self._chroot or "/")
        self._wait_s = session_timeout_s if wait_s is None else wait_s
        self._changed = threading.Condition(threading.Lock())
        self._link = _Link.LOST
        self._session_timeout_s = session_timeout_s
        self._heard_s = time.monotonic()
        """When the server was last heard of over the connection that was lost last."""
        self._end_callbacks: list[Callable[[], None]] = []
        self._is_started = False
        self._stopped: threading.Thread | None = None
        self._is_heard = True
        """Whether `close` waits for the session's end. Without a connection it does not: kazoo may be connecting."""
        # Kazoo's log lines about every attempt to connect add nothing to those of this module.
        quiet = logging.getLogger("kbroker.zookeeper")
        quiet.setLevel(logging.CRITICAL + 1)
        retry = KazooRetry(
            max_tries=-1, max_delay=RECONNECT_DELAY_S, interrupt=lambda: self._link in (_Link.CLOSED, _Link.EXPIRED)
        )
        self._threads = threads = _Threads(max(1.0, session_timeout_s / 4))
        try:
            self._client = KazooClient(
                hosts, timeout=session_timeout_s, logger=quiet, handler=threads, connection_retry=retry
            )
        except ValueError as error:
            what = str(error).lower()
            raise ConfigError(f"zookeeper {address!r}: not HOST:PORT[,HOST:PORT...][/CHROOT]: {what}") from None
        self._watches = Watches(self._client, self._inner, self._wait_s)
        self._client.add_listener(self._on_state)
        self._connect_timeout_s = connect_timeout_s or session_timeout_s
        self._session_id = 0
        if connects:
            self.connect()

    def connect(self) -> None:
        """Connect; the session is there when this returns.

        Raises StoreUnavailable if that takes too long, SessionExpired if the session is closed meanwhile.
        """
        try:
            self._client.start_async()
            self._await_link(time.monotonic() + self._connect_timeout_s)
        except BaseException:
            self.close()
            raise
        self._session_id = int(self._client.client_id[0])
        self._is_started = True

    @property
    def session_id(self) -> int:
        return self._session_id

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, path: str, watch: store.Watcher | None = None) -> tuple[bytes, store.Stat]:
        inner = self._inner(path)
        data, stat = self._read(
            lambda each: self._client.get_async(inner, each), path, watch, lambda found: data_mark(found[1])
        )
        return data or b"", _stat(stat)

    def exists(self, path: str, watch: store.Watcher | None = None) -> store.Stat | None:
        inner = self._inner(path)
        found = self._read(lambda each: self._client.exists_async(inner, each), path, watch, data_mark)
        return None if found is None else _stat(found)

    def children(self, path: str, watch: store.Watcher | None = None) -> list[str]:
        """Return the sorted names of a node's children; the contract is that of `Store.children`."""
        inner = self._inner(path)
        names, _ = self._read(
            lambda each: self._client.get_children_async(inner, each, include_data=True),
            path, watch, lambda found: children_mark(found[1]), of_children=True,
        )  # fmt: skip
        return sorted(names)

    def get_many(
        self, paths: Sequence[str], watch: store.Watcher | None = None
    ) -> list[tuple[bytes, store.Stat] | None]:
        """Return data and stat of each node; the contract is that of `Store.get_many`."""
        found: list[tuple[bytes, store.Stat] | None] = []
        deadline = time.monotonic() + self._wait_s
        while len(found) < len(paths):
            self._await_link(deadline)
            made: deque[Watch] = deque()
            asked = []
            for path in paths[len(found) : len(found) + IN_FLIGHT]:
                if watch is not None:
                    made.append(self._watches.make(path, watch, of_children=False))
                asked.append(GetData(self._inner(path), made[-1] if made else None))
            try:
                for answer in self._ask_all(asked):
                    mark: Mark | None = None
                    try:
                        with self._errors():
                            data, stat = answer.get(timeout=_left(deadline))
                    except NoNodeError:
                        found.append(None)
                    else:
                        mark = data_mark(stat)
                        found.append((data or b"", _stat(stat)))
                    if made:
                        self._watches.settle(made.popleft(), mark, is_set=mark is not None)
            except ConnectionLoss:
                continue
            finally:
                for one in made:
                    self._watches.settle(one, None, is_set=False)
        return found

    def _ask_all(self, requests: Sequence[Any]) -> list[Any]:
        """Send requests, and return kazoo's pending answers.

        Kazoo's own call wakes its thread for each request, by a byte that tells it to send one: with thousands of them
        the two threads do little else. Here the bytes come at once.
        """
        answers = [self._client.handler.async_result() for _ in requests]
        wake = self._client._connection._write_sock
        if self._client.state != KazooState.CONNECTED or wake is None:
            for request, answer in zip(requests, answers, strict=True):
                self._client._call(request, answer)
            return answers
        self._client._queue.extend(zip(requests, answers, strict=True))
        try:
            wake.sendall(bytes(len(requests)))
        except OSError:
            for answer in answers:
                answer.set_exception(ConnectionClosedError("the connection is closed"))
        return answers

    def _read(
        self,
        ask: Callable[[Watch | None], Any],
        path: str,
        watcher: store.Watcher | None,
        mark_of: Callable[[Any], Mark | None],
        *,
        of_children: bool = False,
    ) -> Any:
        """Return the answer to `ask`, which is asked again if the connection is lost.

        `mark_of` makes from the answer the mark of a watch.
        """
        deadline = time.monotonic() + self._wait_s
        while True:
            self._await_link(deadline)
            watch = None if watcher is None else self._watches.make(path, watcher, of_children=of_children)
            mark, is_set = None, False
            try:
                with self._errors():
                    found = ask(watch).get(timeout=_left(deadline))
                mark, is_set = mark_of(found), True
                return found
            except NoNodeError:
                raise store.NoNode(path) from None
            except ConnectionLoss:
                continue
            finally:
                if watch is not None:
                    self._watches.settle(watch, mark, is_set=is_set)

    # --- changing -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        result = self.multi([store.Create(path, data, ephemeral, sequential)])[0]
        assert isinstance(result, str), result
        return result

    def set(self, path: str, data: bytes, version: int = store.ANY_VERSION) -> store.Stat:
        result = self.multi([store.SetData(path, data, version)])[0]
        assert isinstance(result, store.Stat), result
        return result

    def delete(self, path: str, version: int = store.ANY_VERSION) -> None:
        self.multi([store.Delete(path, version)])

    def multi(self, operations: Sequence[store.Operation]) -> list[store.Result]:
        outcome = self.multi_many([operations])[0]
        if isinstance(outcome, store.StoreError):
            raise outcome
        return outcome

    def multi_many(self, transactions: Sequence[Sequence[store.Operation]]) -> list[store.Outcome]:
        """Carry out each transaction; the contract is that of `Store.multi_many`."""
        sizes = [self._checked_size(operations) for operations in transactions]
        outcomes: list[store.Outcome] = []
        while (begin := len(outcomes)) < len(transactions):
            end, size = begin + 1, sizes[begin]
            while end < min(len(sizes), begin + WRITES_IN_FLIGHT) and size + sizes[end] <= BYTES_IN_FLIGHT:
                size += sizes[end]
                end += 1
            deadline = time.monotonic() + self._wait_s
            self._await_link(deadline, MAY_BE_MADE if outcomes else "; nothing was changed")
            answers = [self._send(operations) for operations in transactions[begin:end]]
            for operations, answer in zip(transactions[begin:end], answers, strict=True):
                outcomes.append(self._outcome(operations, answer, deadline))
        return outcomes

    def _checked_size(self, operations: Sequence[store.Operation]) -> int:
        """Return an upper bound of the transaction's bytes. Raises StoreUnavailable if ZooKeeper does not take it."""
        store.check_paths(operations)
        if (size := sum(map(size_of, operations))) > MAX_REQUEST_SIZE:
            raise store.StoreUnavailable(
                f"ZooKeeper {self._address}: {size} bytes at once are more than it takes "
                f"({MAX_REQUEST_SIZE}); nothing was changed"
            )
        return size

    def _send(self, operations: Sequence[store.Operation]) -> Any:
        """Send a transaction and return kazoo's pending answer; None if there is nothing to ask ZooKeeper."""
        if not operations or any(isinstance(each, store.Delete) and each.path == "/" for each in operations):
            return None
        return self._transaction(operations).commit_async()

    def _outcome(self, operations: Sequence[store.Operation], answer: Any, deadline: float) -> store.Outcome:
        """Wait for the answer. Raises StoreUnavailable or SessionExpired if there is none."""
        if answer is None:
            return store.NotEmpty("/") if operations else []
        try:
            with self._errors(MAY_BE_MADE):
                results = answer.get(timeout=_left(deadline))
        except ConnectionLoss:
            raise store.AnswerLost(f"the connection to ZooKeeper {self._address} was lost{MAY_BE_MADE}") from None
        try:
            return self._results(operations, results)
        except store.SessionExpired:
            raise
        except store.StoreError as error:
            return error

    def make_chroot(self) -> None:
        """Create the nodes of the chroot that are missing, so that nodes can be created below."""
        path = ""
        for name in self._chroot.split("/")[1:]:
            path = f"{path}/{name}"
            self._make_node(path)

    def _make_node(self, path: str) -> None:
        """Create a node outside of the chroot, if it is missing."""
        deadline = time.monotonic() + self._wait_s
        while True:
            self._await_link(deadline)
            with contextlib.suppress(ConnectionLoss):
                with contextlib.suppress(NodeExistsError), self._errors():
                    self._client.create_async(path, b"").get(timeout=_left(deadline))
                return

    def _transaction(self, operations: Sequence[store.Operation]) -> Any:
        request = self._client.transaction()
        for each in operations:
            if isinstance(each, store.Create):
                # Not with kazoo's own call, which strips the final slash of a sequential node without a name.
                path = self._chroot + each.path if each.sequential else self._inner(each.path)
                flags = (1 if each.ephemeral else 0) | (2 if each.sequential else 0)
                request.operations.append(CreateRequest(path, each.data, OPEN_ACL_UNSAFE, flags))
            elif isinstance(each, store.SetData):
                request.set_data(self._inner(each.path), each.data, each.version)
            elif isinstance(each, store.Check):
                request.check(self._inner(each.path), each.version)
            else:
                request.delete(self._inner(each.path), each.version)
        return request

    def _results(self, operations: Sequence[store.Operation], results: Sequence[Any]) -> list[store.Result]:
        made: list[store.Result] = []
        for each, result in zip(operations, results, strict=True):
            if isinstance(result, RolledBackError | RuntimeInconsistency):
                continue
            if isinstance(result, Exception):
                raise self._refusal(each, result)
            if isinstance(each, store.Create):
                made.append(str(result).removeprefix(self._chroot))
            else:
                made.append(_stat(result) if isinstance(each, store.SetData) else None)
        return made

    def _refusal(self, operation: store.Operation, error: Exception) -> KbrokerError:
        path = operation.path
        parent = parent_of(path)
        if isinstance(error, NoNodeError):
            return store.NoNode(parent if isinstance(operation, store.Create) else path)
        if isinstance(error, NodeExistsError):
            return store.NodeExists(path)
        if isinstance(error, BadVersionError) and not isinstance(operation, store.Create):
            return store.BadVersion(path, operation.version)
        if isinstance(error, NotEmptyError):
            return store.NotEmpty(path)
        if isinstance(error, NoChildrenForEphemeralsError):
            return store.NoChildrenForEphemerals(parent)
        if isinstance(error, BadArgumentsError):
            return store.InvalidPath(path, "ZooKeeper does not take it")
        if isinstance(error, SessionExpiredError):
            return store.SessionExpired()
        if isinstance(error, NoAuthError):
            protected = f"refuses access to {path}: its nodes are protected"
            return store.StoreUnavailable(f"ZooKeeper {self._address} {protected}; nothing was changed")
        return store.StoreUnavailable(f"ZooKeeper {self._address}, node {path}: {_said(error)}; nothing was changed")

    # --- the session --------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to a server now."""
        return self._link is _Link.CONNECTED

    @property
    def may_have_ended(self) -> bool:
        """Whether the session has ended, or the server was not heard for longer than the session timeout.

        ZooKeeper ends a session that it does not hear, and its client learns of this with the next connection only.
        """
        with self._changed:
            if self._link is _Link.LOST:
                return time.monotonic() - self._heard_s > self._session_timeout_s
            return self._link is not _Link.CONNECTED

    def on_end(self, callback: Callable[[], None]) -> None:
        with self._changed:
            if self._link is not _Link.EXPIRED:
                self._end_callbacks.append(callback)
                return
        # On a new thread, since kazoo's event thread may have ended.
        threading.Thread(target=self._watches.deliver, args=(callback,), name="zookeeper-end", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            if self._link not in (_Link.EXPIRED, _Link.CLOSED):
                self._is_heard = self._link is _Link.CONNECTED
                self._link = _Link.CLOSED
                self._changed.notify_all()
        self._stop_client()
        # A watcher that closes its own session runs on the event thread, and must not wait for that thread's end.
        if self._is_heard and self._stopped is not None and threading.get_ident() != self._watches.event_thread:
            self._stopped.join(CLOSE_S)

    def _stop_client(self) -> None:
        """Stop kazoo on a separate thread: its stop waits for its threads, one of which may be the caller."""
        with self._changed:
            if self._stopped is not None:
                return
            self._stopped = threading.Thread(target=self._end_client, name="zookeeper-close", daemon=True)
            self._stopped.start()

    def _end_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            log.debug("ZooKeeper %s: the session was not closed: %r", self._address, error)

    def _on_state(self, state: str) -> None:
        """Take a change of the connection's state. Called on kazoo's connection thread; must not block."""
        with self._changed:
            before = self._link
            if before in (_Link.EXPIRED, _Link.CLOSED):
                return
            if state == KazooState.CONNECTED:
                self._link = _Link.CONNECTED
            elif state == KazooState.SUSPENDED:
                self._link = _Link.LOST
                self._heard_s = self._threads.heard_s
            else:
                self._link = _Link.EXPIRED
            callbacks = list(self._end_callbacks) if self._link is _Link.EXPIRED else []
            self._changed.notify_all()
        if self._link is _Link.CONNECTED:
            if self._is_started:
                log.info("the connection to ZooKeeper %s is back", self._address)
            self._watches.post(self._watches.set_again)
        elif self._link is _Link.LOST:
            log.warning("the connection to ZooKeeper %s is lost", self._address)
        else:
            log.warning("the session with ZooKeeper %s has expired", self._address)
            self._watches.post(lambda: self._announce_end(callbacks))
            self._stop_client()

    def _announce_end(self, callbacks: list[Callable[[], None]]) -> None:
        """Call all callbacks of the session's end.

        They run in one call: if one closes the session, the event thread ends after this call.
        """
        for callback in callbacks:
            self._watches.deliver(callback)

    def _await_link(self, deadline: float, outcome: str = "") -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._link is not _Link.LOST, _left(deadline))
            link = self._link
        if link is _Link.LOST:
            raise store.StoreUnavailable(f"ZooKeeper {self._address} cannot be reached, or does not answer{outcome}")
        if link is not _Link.CONNECTED:
            raise store.SessionExpired

    # --- shared -------------------------------------------------------------------------------------------------------

    def _inner(self, path: str) -> str:
        check_path(path)
        return (self._chroot + path.rstrip("/")) or "/"

    @contextmanager
    def _errors(self, outcome: str = "") -> Iterator[None]:
        """A context manager that turns kazoo's errors into ours, each with one clear line.

        Errors that the callers handle pass unchanged.
        """
        try:
            yield
        except (ConnectionLoss, NoNodeError, NodeExistsError):
            raise
        except KazooTimeoutError:
            raise store.StoreUnavailable(f"ZooKeeper {self._address} does not answer{outcome}") from None
        except (SessionExpiredError, ConnectionClosedError):
            raise store.SessionExpired from None
        except (NoAuthError, AuthFailedError):
            raise store.StoreUnavailable(f"ZooKeeper {self._address} refuses access: its nodes are protected") from None
        except KazooException as error:
            raise store.StoreUnavailable(f"ZooKeeper {self._address}: {_said(error)}") from error


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _stat(stat: Any) -> store.Stat:
    return store.Stat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)
