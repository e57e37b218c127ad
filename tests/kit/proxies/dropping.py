"""A TCP proxy in front of one server. Its connections can be dropped, stalled, or cut when the next answer comes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

CHUNK_SIZE = 1 << 16


@dataclass(eq=False)
class Pair:
    """A client's connection and the connection to the server that belongs to it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    loses_answer: bool = False

    def drop(self) -> None:
        """Abort both connections at once, and lose the bytes that are under way."""
        self.client.transport.abort()
        self.server.transport.abort()


class DroppingProxy:
    """A context manager that serves on `port` from its own thread. The server may come and go."""

    def __init__(self, target_port: int = 0):
        self.target_port = target_port
        self.loop = asyncio.new_event_loop()
        self.pairs: set[Pair] = set()
        self.flows: asyncio.Event | None = None
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    def next_port(self) -> int:
        """The server's port for the connection that has just come."""
        return self.target_port

    def on_sent(self, pair: Pair, data: bytes) -> None:
        """Called on the proxy's thread with what a client has sent, before the server has it."""

    def drop(self, share: float, chance: random.Random) -> None:
        """Drop this share of all connections."""
        self._for_some(share, chance, Pair.drop)

    def lose_answers(self, share: float, chance: random.Random) -> None:
        """End this share of all connections when the server's next bytes come; the client does not get these."""

        def mark(pair: Pair) -> None:
            pair.loses_answer = True

        self._for_some(share, chance, mark)

    def stall(self) -> None:
        """Let no bytes through in either direction until `flow`."""
        self._call(lambda: self._flows().clear())

    def flow(self) -> None:
        self._call(lambda: self._flows().set())

    def _flows(self) -> asyncio.Event:
        assert self.flows is not None, "the proxy is not started"
        return self.flows

    def _call(self, step: Callable[[], None]) -> None:
        async def run() -> None:
            step()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def _for_some(self, share: float, chance: random.Random, step: Callable[[Pair], None]) -> None:
        def each() -> None:
            for pair in list(self.pairs):
                if chance.random() < share:
                    step(pair)

        self._call(each)

    async def _listen(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self.server.close()
        self._flows().set()
        for pair in list(self.pairs):
            pair.drop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", self.next_port())
        except OSError:
            writer.transport.abort()
            return
        pair = Pair(writer, server)
        self.pairs.add(pair)
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(self._pump(pair, reader, server), self._answer(pair, server_reader))
        finally:
            self.pairs.discard(pair)
            pair.drop()

    async def _pump(self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_SIZE):
            await self._flows().wait()
            self.on_sent(pair, data)
            writer.write(data)
            await writer.drain()
        pair.drop()

    async def _answer(self, pair: Pair, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_SIZE):
            await self._flows().wait()
            if pair.loses_answer:
                break
            pair.client.write(data)
            await pair.client.drain()
        pair.drop()
