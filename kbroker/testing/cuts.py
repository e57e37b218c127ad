"""Proxies between the brokers of a cluster and their ZooKeeper, by which a broker is cut off as by a broken cable.

A cut drops no connection: what is sent through it waits until the cut is mended, as packets do that are sent again.
Connections are made through it, and then silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import NamedTuple, TypeVar

from kbroker.testing.reserved_port import ReservedPort

T = TypeVar("T")

HOST = "127.0.0.1"
CHUNK_SIZE = 1 << 16
CALL_TIMEOUT_S = 30.0
CLIENT_ID_AT = 14
"""Where the client id begins in a request: behind size, API, version, correlation id, and the length of the id."""
LONGEST_ID = 64

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Way(NamedTuple):
    """Who talks to whom, by ids of brokers. `source` None: a client; `target` None: ZooKeeper."""

    source: int | None
    target: int | None


class Cuts:
    """The proxies of one cluster, on a thread of its own. `close` ends all. Cuts of several brokers add up."""

    def __init__(self) -> None:
        self._ports: list[ReservedPort] = []
        self._cut: dict[int, bool] = {}  # by broker, whether clients are cut off too; of the loop's thread
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kbroker-cuts", daemon=True)
        self._thread.start()

    def before_zookeeper(self, broker_id: int, port: Callable[[], int]) -> str:
        """Return the address through which this broker is to reach the ZooKeeper at `port()`."""
        return self._listen(Way(broker_id, None), port)

    def before_broker(self, broker_id: int, port: Callable[[], int]) -> str:
        """Return the address through which everybody is to reach this broker, which listens at `port()`."""
        return self._listen(Way(None, broker_id), port)

    def cut(self, broker_id: int, *, clients_too: bool) -> None:
        """Cut a broker off from all others and from ZooKeeper."""
        self._set({broker_id: clients_too})

    def mend(self, broker_id: int) -> None:
        """End the cut of a broker; that of another one, with which it talks, goes on."""
        self._set({}, broker_id)

    def close(self) -> None:
        """End all connections and the thread. Closing twice is allowed."""
        if not self._loop.is_closed():
            self._call(self._end)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            for port in self._ports:
                port.release()

    def _set(self, added: dict[int, bool], removed: int | None = None) -> None:
        async def change() -> None:
            self._cut |= added
            if removed is not None:
                self._cut.pop(removed, None)
            self._changed.set()
            self._changed = asyncio.Event()

        self._call(change)

    def _listen(self, way: Way, target: Callable[[], int]) -> str:
        port = ReservedPort(HOST)
        self._ports.append(port)

        async def listen() -> None:
            await asyncio.start_server(
                lambda reader, writer: self._serve((reader, writer), way, target),
                HOST, port.port, limit=CHUNK_SIZE, reuse_address=True,
            )  # fmt: skip

        self._call(listen)
        return f"{HOST}:{port.port}"

    def _call(self, step: Callable[[], Coroutine[None, None, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(CALL_TIMEOUT_S)

    # --- in the thread of the loop ----------------------------------------------------------------------------------

    async def _serve(self, client: Peer, way: Way, target: Callable[[], int]) -> None:
        reader, writer = client
        with contextlib.suppress(OSError, asyncio.CancelledError):
            head = b""
            if way.target is not None:
                head, broker_id = await _first_bytes(reader)
                way = way._replace(source=broker_id)
            await self._pass(way)
            server = await asyncio.open_connection(HOST, target(), limit=CHUNK_SIZE)
            server[1].write(head)
            both = {
                asyncio.create_task(self._relay(reader, server[1], way)),
                asyncio.create_task(self._relay(server[0], writer, way)),
            }
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                server[1].close()
        writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        while data := await reader.read(CHUNK_SIZE):
            await self._pass(way)
            writer.write(data)
            await writer.drain()
        await self._pass(way)  # the end of a connection is not told through a cut either

    async def _pass(self, way: Way) -> None:
        """Wait until nothing cuts this way."""
        while self._is_cut(way):
            await self._changed.wait()

    def _is_cut(self, way: Way) -> bool:
        if way.source in self._cut:
            return True
        clients_too = self._cut.get(way.target) if way.target is not None else None
        return clients_too is not None and (clients_too or way.source is not None)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _first_bytes(reader: asyncio.StreamReader) -> tuple[bytes, int | None]:
    """Read the head of a connection's first request. Returns it, and the id of the broker that has sent it.

    Brokers call themselves "N", or "broker-N-..." when they fetch; a client is told by None.
    """
    try:
        head = await reader.readexactly(CLIENT_ID_AT)
        size = int.from_bytes(head[-2:], signed=True)
        name = await reader.readexactly(size) if 0 < size <= LONGEST_ID else b""
    except asyncio.IncompleteReadError as error:
        return error.partial, None
    number = name.removeprefix(b"broker-").partition(b"-")[0]
    return head + name, int(number) if number.isdigit() else None
