"""A client's thread: its ends, its forks, Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.client.errors import ClientClosed, ForkedClient, TimedOut, UsageError
from kbroker.client.network.thread import ClientThread
from tests.kit.brokers.scripted import Peer, ScriptedBroker


@pytest.fixture
def thread() -> Iterator[ClientThread]:
    made = ClientThread("test")
    yield made
    assert made.stop(10)


async def answer(value: int) -> int:
    return value


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_coroutines_of_other_threads_run_on_it(thread: ClientThread) -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert thread.call(where()) == "kbroker-client-test"
    assert thread.submit(answer(3)).result(10) == 3


def test_what_a_coroutine_raises_is_raised_at_its_caller(thread: ClientThread) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        thread.call(fail(), 10)


def test_a_call_ends_at_its_timeout_and_is_cancelled(thread: ClientThread) -> None:
    cancelled = threading.Event()

    async def long() -> None:
        try:
            await for_ever()
        finally:
            cancelled.set()

    with pytest.raises(TimedOut, match=r"waiting for godot took longer than 0\.02 s"):
        thread.call(long(), 0.02, "waiting for godot")
    assert cancelled.wait(10)


def test_a_blocking_call_on_its_own_thread_is_refused(thread: ClientThread) -> None:
    async def wait_for_itself() -> None:
        thread.call(answer(1))

    with pytest.raises(UsageError, match="on the client's own thread"):
        thread.call(wait_for_itself(), 10)


def test_descriptors_of_asyncio_work_on_it(thread: ClientThread) -> None:
    async def both_ways() -> bytes:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        ours = socket.socket()
        ours.setblocking(False)
        with ours:
            await loop.sock_connect(ours, server.sockets[0].getsockname())
            await loop.sock_sendall(ours, b"x" * 3_000_000)
            got = b""
            while len(got) < 3_000_000:
                got += await loop.sock_recv(ours, 1 << 20)
        server.close()
        return got

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(3_000_000)
        writer.write(data)
        await writer.drain()
        writer.close()

    assert thread.call(both_ways(), 30) == b"x" * 3_000_000


def test_timers_of_asyncio_work_on_it(thread: ClientThread) -> None:
    async def sleeps() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        waiter = asyncio.Event()
        loop.call_later(0.02, waiter.set)
        await waiter.wait()
        return loop.time() - started

    assert thread.call(sleeps(), 30) >= 0.02


def test_a_stopped_thread_takes_nothing_and_says_so() -> None:
    thread = ClientThread("test")
    waiting = thread.submit(for_ever())
    assert thread.stop(10)
    assert thread.stop(10)
    assert waiting.cancelled()
    with pytest.raises(ClientClosed, match="the client is closed"):
        thread.call(answer(1))
    assert not thread.call_soon(print)
    assert not thread.is_running


def test_who_waits_while_it_is_stopped_hears_of_it() -> None:
    thread = ClientThread("test")
    begun = threading.Event()

    async def long() -> None:
        begun.set()
        await for_ever()

    raised: list[BaseException] = []

    def wait() -> None:
        try:
            thread.call(long(), 30, "the long one")
        except BaseException as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert begun.wait(10)
    assert thread.stop(10)
    waiter.join(10)
    assert [(type(error), str(error)) for error in raised] == [
        (ClientClosed, "the client was closed during the long one")
    ]


def test_everything_submitted_before_the_end_has_an_end() -> None:
    for _ in range(30):
        thread = ClientThread("test")
        futures = []

        def submit(thread: ClientThread = thread, futures: list[object] = futures) -> None:
            while True:
                try:
                    futures.append(thread.submit(answer(1)))
                except ClientClosed:
                    return

        submitter = threading.Thread(target=submit)
        submitter.start()
        assert thread.stop(10)
        submitter.join(10)
        assert all(future.done() or future.result(10) for future in futures)  # type: ignore[attr-defined]


def test_a_thousand_clients_leave_nothing_behind(descriptors: Callable[[], int]) -> None:
    with ScriptedBroker(Peer.wait_for_end) as broker:

        def one() -> None:
            thread = ClientThread("test")
            connection = thread.call(adopt(thread, broker), 10)
            assert connection is not None
            assert thread.stop(10)

        async def adopt(thread: ClientThread, broker: ScriptedBroker) -> object:
            return thread.pump.adopt(broker.connect().detach())

        for _ in range(100):
            one()
        gc.collect()
        before = (descriptors() - broker.accepted, threading.active_count())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(900):
            one()
        gc.collect()
        alive = [each for each in threading.enumerate() if each.name == "kbroker-client-test"]
        assert alive == []
        assert descriptors() - broker.accepted <= before[0]  # those of what ran before may go meanwhile
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 60 << 10


def open_sockets() -> set[str]:
    """Names of this process's sockets."""
    links = (Path(f"/proc/self/fd/{fd}") for fd in range(4096))
    found = {str(link.readlink()) for link in links if link.is_symlink()}
    return {name for name in found if name.startswith("socket:")}


def run_script(script: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout_s)


def test_ctrl_c_interrupts_a_call() -> None:
    script = """
import asyncio, os, signal, threading
from kbroker.client.network.thread import ClientThread
thread = ClientThread("test")
seen = []
async def long():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        seen.append("cancelled")
try:
    thread.call(long())
except KeyboardInterrupt:
    seen.append("interrupted")
print(thread.stop(10), *sorted(seen))
"""
    done = run_script(script)
    assert done.stdout == "True cancelled interrupted\n", done.stderr


def test_a_client_that_nobody_closed_does_not_keep_the_interpreter() -> None:
    script = """
import asyncio
from kbroker.client.network.thread import ClientThread
thread, other = ClientThread("a"), ClientThread("b")
async def long():
    await asyncio.Event().wait()
thread.submit(long())
thread.at_exit = lambda seconds: print(f"flushed, at most {seconds:.0f} s")
def fail(seconds):
    raise RuntimeError("no")
other.at_exit = fail
"""
    done = run_script(script)
    assert done.returncode == 0
    assert done.stdout == "flushed, at most 10 s\n"
    assert "a client could not end as it should" in done.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_leaves_the_parent_its_connections_and_the_child_an_error(thread: ClientThread) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.answer(peer.request().correlation_id, b"still here")

    with ScriptedBroker(script) as broker:
        connected: set[str] = set()

        async def begin() -> object:
            fd = broker.connect().detach()
            connected.add(str(Path(f"/proc/self/fd/{fd}").readlink()))
            return thread.pump.adopt(fd)

        async def ask(connection: object) -> bytes:
            answered: asyncio.Future[bytes] = thread.loop.create_future()
            frame = bytes.fromhex("0000000a 0012 0000 00000000 ffff")
            connection.call(18, 0, frame, 10_000, lambda body, reason: answered.set_result(body))  # type: ignore[attr-defined]
            return await answered

        connection = thread.call(begin(), 10)
        assert connected <= open_sockets()
        assert thread.call(ask(connection), 10) == b"still here"
        child = os.fork()
        if child == 0:
            status = 9
            try:
                signal.alarm(30)
                try:
                    thread.call(answer(1))
                except ForkedClient as error:
                    assert "before a fork" in str(error)
                    assert connected.isdisjoint(open_sockets())
                    assert thread.stop(1)
                    own = ClientThread("child")
                    assert own.call(answer(4), 10) == 4
                    assert own.stop(10)
                    status = 0
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(ended) == 0
        assert thread.call(ask(connection), 10) == b"still here"


def test_importing_the_client_loads_nothing_it_may_not_need() -> None:
    script = """
import sys
import kbroker.client
print([name for name in ("asyncio", "ssl", "numpy", "pyarrow", "kazoo", "cramjam") if name in sys.modules])
"""
    assert run_script(script).stdout == "[]\n"


def test_a_client_loads_only_what_it_uses() -> None:
    script = """
import sys
from kbroker.client import AdminClient, Consumer, Producer
Producer(bootstrap_servers="127.0.0.1:1").close(0)
loaded = ["numpy", "pyarrow", "kazoo", "prometheus_client"]
loaded += ["kbroker.server", "kbroker.storage", "kbroker.client.config.parsing.option_types"]
print([name for name in loaded if name in sys.modules])
"""
    assert run_script(script).stdout == "[]\n"
