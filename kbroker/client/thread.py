"""A client's background thread: an asyncio loop whose selector is the compiled pump (`_core/client/pump.pxd`).

Sockets of brokers are the pump's and are served without the GIL; everything that is not steady state is a coroutine on
the loop. Other threads hand coroutines over by `submit` and wait by `call`, which Ctrl-C interrupts.

Ends. `stop` is bounded in time. A client that is collected unclosed takes its thread with it (`ThreadOwner`). At the
interpreter's exit what was not stopped is, after its `at_exit` has run (a producer's flush), EXIT_TIMEOUT_S in all. In
a child process after a fork the client is unusable and says so; its sockets are closed there without a word to the
brokers, which go on with the parent.
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
_left: list[object] = []  #: loops of parents: nothing of them may be closed or collected in a child


class PumpSelector(selectors.BaseSelector):
    """asyncio's view of a pump: select serves brokers and engines until Python is needed."""

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
        if fd < 0:  # closed meanwhile
            fd = next((key.fd for key in self._keys.values() if key.fileobj is fileobj), fd)
        return self._keys[fd]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
        self._pump.close("the client is closed")


class ClientThread:
    """One client's loop and pump. `submit`, `call` and `stop` are for any thread; `loop` and `pump` for its own."""

    def __init__(self, client_id: str, max_response_size: int = 100_000_000):
        self.pump = Pump(_flexible_from(), max_response_size)
        self.loop = asyncio.SelectorEventLoop(PumpSelector(self.pump))
        self.loop.set_exception_handler(_log_failure)
        self.at_exit: Callable[[float], object] | None = None
        """Called with the seconds it has when the interpreter ends and nobody has called `stop`."""
        self.at_fork: Callable[[], object] | None = None
        """Called in a child process."""
        self.connecting: set[socket.socket] = set()
        # Guards _accepts: what was submitted before the end is run. The collector may end a client under it.
        self._lock = threading.RLock()
        self._accepts = True
        self._ended: list[asyncio.Future[None]] | None = []  # who waits for the thread's end; None once it has come
        self._pid = os.getpid()
        self.name = f"kbroker-client-{client_id}"
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        _watch_process()
        _threads.add(self)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._accepts and not self.is_forked

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on this thread, where waiting for it would never end."""
        return threading.current_thread() is self._thread

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that has made it, where its locks may be held for ever."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        if self.is_forked:
            raise ForkedClient(f"this client was made in process {self._pid}, before a fork")

    def check(self) -> None:
        """Raises when nothing can be submitted any more, and says why."""
        self.check_process()
        if not self._accepts:
            raise ClientClosed("the client is closed")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run it on the loop. Cancelling the future cancels it."""
        try:
            self.check()
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None, what: str = "the call") -> T:
        """What it returns. TimedOut after `timeout_s`; that and Ctrl-C cancel it."""
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
        """What it returns, for a task of any event loop. Cancelling cancels it."""
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
        """Run it on the thread; False when that has ended."""
        if not self.is_running:
            return False
        with self._lock:
            if self._accepts:
                self.loop.call_soon_threadsafe(callback, *arguments)
            return self._accepts

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Cancel what runs, close every connection, end the thread. True when it has ended in time."""
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
        """As `stop`, for a task of any event loop but its own."""
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
        self._thread.join()  # it has told its waiters, and nothing is left for it to do

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
        # One turn at least: what was submitted just before the end becomes a task there; the next round cancels it.
        self.loop.run_until_complete(_settle(tasks))
        late = asyncio.all_tasks(self.loop)
        if late:
            for task in late:
                task.cancel()
            self.loop.run_until_complete(_settle(late))

    def _forked(self) -> None:
        """In a child process."""
        _left.append((self.loop, self.pump))
        self._lock = threading.RLock()  # the parent's thread may have held it
        self.pump.abandon()
        if self.at_fork is not None:
            self.at_fork()
        for sock in self.connecting:
            with contextlib.suppress(OSError):
                os.close(sock.detach())


class ThreadOwner:
    """A client of which nobody holds a reference any more ends as if closed, at once, with a ResourceWarning.

    What runs on the thread must not hold the client for that: give it weak references, or objects that do not know it.
    """

    _thread: ClientThread

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Neither pickle nor copy can take a thread and its connections along."""
        raise TypeError(f"{type(self).__name__} has a thread and connections: make one where it is needed")

    def __del__(self) -> None:
        thread: ClientThread | None = self.__dict__.get("_thread")
        if thread is None or not thread.is_running:
            return
        warnings.warn(
            f"{type(self).__name__} was not closed: {thread.name}", ResourceWarning, stacklevel=2, source=self
        )
        # The collector runs in any thread, this one included: nobody is waited for.
        thread.stop(0)


def _end_soon(waiter: asyncio.Future[None]) -> None:
    """From any thread. A waiter whose loop is closed has nobody who waits."""
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
    """API key -> first version whose response header has tagged fields."""
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
    """Once in a process: what happens at a fork and at its end."""
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
