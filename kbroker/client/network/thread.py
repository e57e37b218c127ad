"""A client's background thread: an asyncio loop whose selector is the compiled pump (`_core/client/pump.pxd`).

The pump owns the sockets to brokers and serves them without the GIL. Everything that is not steady state is a coroutine
on the loop. Other threads hand coroutines over by `submit`, or wait for them by `call`, which Ctrl-C interrupts.

How a thread ends:

* `stop` ends it, bounded in time.
* A client that is collected without being closed ends its thread (`ThreadOwner`).
* When the interpreter exits, every thread still running has its `at_exit` called (a producer flushes) and is stopped;
  all of them together may take EXIT_TIMEOUT_S.
* In a child process after a fork the client raises ForkedClient. Its sockets are closed there without a word to the
  brokers, so the parent's connections go on.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import selectors
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any, NoReturn, SupportsIndex, TypeVar

from kbroker._core.client.pump import Pump
from kbroker.client.errors import ClientClosed, ForkedClient, TimedOut, UsageError
from kbroker.protocol.api import ApiKey, request_class, response_header_version

T = TypeVar("T")
log = logging.getLogger("kbroker.client")

EXIT_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0

_threads: weakref.WeakSet[ClientThread] = weakref.WeakSet()
_left: list[object] = []  #: in a child process, the parent's loops and pumps: they must be neither closed nor collected


class PumpSelector(selectors.BaseSelector):
    """The pump as a selector of asyncio: `select` serves brokers and engines until Python is needed."""

    def __init__(self, pump: Pump):
        self._pump = pump
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is registered already")
        self._pump.watch(fd, events)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self.get_key(fileobj)
        del self._keys[key.fd]
        self._pump.unwatch(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self.get_key(fileobj)
        if events != key.events:
            self._pump.watch(key.fd, events)
        key = self._keys[key.fd] = key._replace(events=events, data=data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._pump.run(timeout)
        return [(self._keys[fd], events & self._keys[fd].events) for fd, events in ready if fd in self._keys]

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd < 0:  # the file object has been closed meanwhile
            fd = next((key.fd for key in self._keys.values() if key.fileobj is fileobj), fd)
        return self._keys[fd]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
        self._pump.close("the client is closed")


class ClientThread:
    """The loop and the pump of one client.

    Any thread may use `submit`, `call`, `awaited`, `call_soon`, `stop`; `loop` and `pump` are for the thread itself.
    """

    def __init__(self, client_id: str, max_response_size: int = 100_000_000, name: str | None = None):
        """`name` is the thread's; None: one with the client id."""
        self.pump = Pump(_flexible_from(), max_response_size)
        self.loop = asyncio.SelectorEventLoop(PumpSelector(self.pump))
        self.loop.set_exception_handler(_log_failure)
        self.at_exit: Callable[[float], object] | None = None
        """Called when the interpreter exits before `stop`, with the seconds that it may take."""
        self.at_fork: Callable[[], object] | None = None
        """Called in a child process after a fork."""
        self.connecting: set[socket.socket] = set()
        # Guards _accepts: everything submitted before the end is run. Re-entrant, because the garbage collector may end
        # a client while this thread holds it.
        self._lock = threading.RLock()
        self._accepts = True
        self._ended: list[asyncio.Future[None]] | None = []  # futures that wait for the thread's end; None after it
        self._pid = os.getpid()
        self.name = name or f"kbroker-client-{client_id}"
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        _watch_process()
        _threads.add(self)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._accepts and not self.is_forked

    @property
    def native_id(self) -> int | None:
        """The system's id of the thread."""
        return self._thread.native_id

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on this thread. Waiting for the thread would never end there."""
        return threading.current_thread() is self._thread

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that has made the client. Its locks may be held for ever here."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise ForkedClient in a child process."""
        if self.is_forked:
            raise ForkedClient(f"this client was made in process {self._pid}, before a fork")

    def check(self) -> None:
        """Raise ForkedClient in a child process, and ClientClosed when the client is closed."""
        self.check_process()
        if not self._accepts:
            raise ClientClosed("the client is closed")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop. Cancelling the returned future cancels it. Raises what `check` raises."""
        try:
            self.check()
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None, what: str = "the call") -> T:
        """Run a coroutine on the loop, wait, and return its result. `what` names the call in messages.

        Raises TimedOut after `timeout_s` seconds, UsageError on the thread itself, ClientClosed when the client is
        closed meanwhile, and what the coroutine raises. A timeout and Ctrl-C cancel the coroutine.
        """
        if self.is_own_thread:
            coroutine.close()
            raise UsageError(
                "a blocking call on the client's own thread",
                hint="in a callback hand the work to another thread, or use the asyncio client",
            )
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClientClosed(f"the client was closed during {what}") from None
        except TimeoutError:
            if future.done():
                raise
            raise TimedOut(f"{what} took longer than {timeout_s:g} s") from None
        finally:
            future.cancel()

    async def awaited(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result to a task of any event loop.

        Cancelling the task cancels the coroutine. Raises ClientClosed when the client is closed meanwhile.
        """
        future = self.submit(coroutine)
        waiter = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: _end_soon(waiter))
        try:
            await waiter
            return future.result()
        except concurrent.futures.CancelledError:
            if waiter.cancelled():
                raise
            raise ClientClosed("the client was closed during the call") from None
        finally:
            future.cancel()

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> bool:
        """Run a callback on the thread. Returns False, and does not run it, when the thread has ended."""
        if not self.is_running:
            return False
        with self._lock:
            if self._accepts:
                self.loop.call_soon_threadsafe(callback, *arguments)
            return self._accepts

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Cancel all coroutines, close all connections and end the thread. Returns whether it has ended in time."""
        if self.is_forked:
            return True
        with self._lock:
            if self._accepts:
                self._accepts = False
                self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_own_thread:
            self._thread.join(max(timeout_s, 0))
        return not self._thread.is_alive()

    async def stopped(self) -> None:
        """Stop the thread as `stop` does, and wait for its end in a task of any other event loop."""
        if self.is_forked:
            return
        if self.is_own_thread:
            self.stop()
            return
        waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            self.stop(0)
            if self._ended is None:
                waiter.set_result(None)
            else:
                self._ended.append(waiter)
        await waiter
        self._thread.join()  # does not block for long: telling its waiters is the last thing that the thread does

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            with self._lock:
                self._accepts = False
            try:
                self._cancel_all()
            finally:
                self.loop.close()
                _threads.discard(self)
                with self._lock:
                    waiters, self._ended = self._ended or [], None
                for waiter in waiters:
                    _end_soon(waiter)

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        # In this turn coroutines that were submitted just before the end become tasks. The next round cancels them.
        self.loop.run_until_complete(_settle(tasks))
        late = asyncio.all_tasks(self.loop)
        if late:
            for task in late:
                task.cancel()
            self.loop.run_until_complete(_settle(late))

    def _forked(self) -> None:
        """Make the client unusable in a child process, without touching what the parent uses."""
        _left.append((self.loop, self.pump))
        self._lock = threading.RLock()  # another thread of the parent may have held the old one
        self.pump.abandon()
        if self.at_fork is not None:
            self.at_fork()
        for sock in self.connecting:
            with contextlib.suppress(OSError):
                os.close(sock.detach())


class ThreadOwner:
    """Base of clients. A client that is collected without `close` ends its thread at once, with a ResourceWarning.

    For that, nothing that runs on the thread may hold a reference to the client: give it weak references, or objects
    that do not know the client.
    """

    _thread: ClientThread

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise TypeError: neither pickle nor copy can take a thread and its connections along."""
        raise TypeError(f"{type(self).__name__} has a thread and connections: make one where it is needed")

    def __del__(self) -> None:
        thread: ClientThread | None = self.__dict__.get("_thread")
        if thread is None or not thread.is_running:
            return
        warnings.warn(
            f"{type(self).__name__} was not closed: {thread.name}", ResourceWarning, stacklevel=2, source=self
        )
        # The garbage collector may run in any thread, this one included. So nothing is waited for here.
        thread.stop(0)


def _end_soon(waiter: asyncio.Future[None]) -> None:
    """End a future from any thread. Does nothing when the future's loop is closed: then nobody waits for it."""
    with contextlib.suppress(RuntimeError):
        waiter.get_loop().call_soon_threadsafe(_end, waiter)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _settle(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.sleep(0)
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.error("%s", context.get("message", "a failure on a client's thread"), exc_info=context.get("exception"))


@cache
def _flexible_from() -> dict[int, int]:
    """Return by API key the first version whose response header has tagged fields."""
    found = {}
    for api_key in ApiKey:
        try:
            versions = range(request_class(api_key).MAX_VERSION + 1)
        except AttributeError:
            continue
        first = next((version for version in versions if response_header_version(api_key, version)), None)
        if first is not None:
            found[int(api_key)] = first
    return found


@cache
def _watch_process() -> None:
    """Register what happens after a fork and at the interpreter's exit; once in a process."""
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_at_exit)


def _after_fork() -> None:
    for thread in list(_threads):
        thread._forked()
    _threads.clear()


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for thread in list(_threads):
        if thread.at_exit is not None and thread.is_running:
            try:
                thread.at_exit(max(deadline - time.monotonic(), 0))
            except Exception:
                log.exception("a client could not end as it should")
        thread.stop(max(deadline - time.monotonic(), 0.1))
