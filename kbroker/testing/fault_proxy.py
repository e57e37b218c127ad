"""The proxy between clients and a broker with `faults=True`: it reads frames and headers, and does what `Faults` says.

Each connection has three tasks. One takes requests to the broker, one takes its responses, and one delivers answers to
the client in the order of the requests, whether the broker or the proxy made them. Bytes that are not a frame go on to
the broker unchanged, and the broker closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.protocol.api import ApiKey, is_served, request_class
from kbroker.protocol.error_responses import error_response
from kbroker.protocol.headers import decode_request_header, encode_response
from kbroker.protocol.messages import Message
from kbroker.testing.faults import Faults

T = TypeVar("T")

CHUNK_SIZE = 1 << 18
IN_FLIGHT = 64
"""The largest number of unanswered requests of one connection; further ones are not read."""
BACKLOG = 128
CALL_TIMEOUT_S = 30.0
SMALLEST_REQUEST = 8
SMALLEST_RESPONSE = 4
LARGEST_RESPONSE = (1 << 31) - 1

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FaultProxy:
    """Listens on `address` between `open` and `shut`, and connects each client to `target`. `close` ends its thread."""

    def __init__(self, address: tuple[str, int], target: tuple[str, int], largest_request: int):
        self.faults = Faults(self._drop_connections, self._set_refusing)
        self._address = address
        self._target = target
        self._largest_request = largest_request
        self._is_open = False
        self._is_refusing = False
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kbroker-faults", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Listen: clients can connect when this returns."""
        self._is_open = True
        self._call(self._listen_or_not)

    def shut(self) -> None:
        """Stop listening: new connections are refused when this returns. Open ones end when the broker closes them."""
        self._is_open = False
        self._call(self._listen_or_not)

    def close(self) -> None:
        """Stop listening, drop all connections, and end the thread. Closing twice is allowed."""
        if not self._loop.is_closed():
            self.shut()
            self._call(self._end)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _drop_connections(self) -> int:
        async def drop() -> int:
            dropped = len(self._links)
            for link in self._links:
                link.drop()
            return dropped

        return self._call(drop)

    def _set_refusing(self, is_refusing: bool) -> None:
        self._is_refusing = is_refusing
        self._call(self._listen_or_not)

    def _call(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(CALL_TIMEOUT_S)

    # --- in the thread of the loop -----------------------------------------------------------------------
    async def _listen_or_not(self) -> None:
        listens = self._is_open and not self._is_refusing
        if listens and self._server is None:
            family, _, _, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            self._server = await asyncio.start_server(self._serve, sock=listener, backlog=BACKLOG, limit=CHUNK_SIZE)
        elif not listens and self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.faults.drops_new_connection():
                return
            with contextlib.suppress(OSError):
                server = await asyncio.open_connection(*self._target, limit=CHUNK_SIZE)
                link = _Link((reader, writer), server, self.faults, self._largest_request)
                self._links.add(link)
                try:
                    await link.run()
                finally:
                    self._links.discard(link)
        except asyncio.CancelledError:
            pass  # cancelled by `_end`; asyncio of Python 3.11 would report it
        finally:
            writer.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Dropped(Exception):
    """Raised in a task of a link to have its connection dropped."""


class _Answer:
    """The answer to one request. `frame` is a future of its bytes, or of None when no answer will come."""

    def __init__(self, delay_s: float, is_lost: bool):
        self.frame: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.is_lost = is_lost
        self._delay_s = delay_s
        self._due = 0.0

    def arrive(self, frame: bytes | None) -> None:
        self._due = self.frame.get_loop().time() + self._delay_s
        self.frame.set_result(frame)

    async def await_due(self) -> None:
        await asyncio.sleep(self._due - self.frame.get_loop().time())


class _Link:
    """A client's connection and the connection to the broker that belongs to it."""

    def __init__(self, client: Peer, server: Peer, faults: Faults, largest_request: int):
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._faults = faults
        self._largest_request = largest_request
        self._in_order: asyncio.Queue[_Answer | None] = asyncio.Queue(IN_FLIGHT)
        self._awaited: deque[_Answer] = deque()

    async def run(self) -> None:
        """Run until one side has closed and everything under way is delivered, or until the connection is dropped."""
        answers = asyncio.create_task(self._deliver())
        tasks = {answers, asyncio.create_task(self._take_requests()), asyncio.create_task(self._take_responses())}
        running = tasks
        try:
            while answers in running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if any(task.exception() for task in done):
                    self.drop()
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._to_server.transport.abort()

    def drop(self) -> None:
        """Drop both connections at once, with everything that is still under way."""
        self._to_client.transport.abort()
        self._to_server.transport.abort()

    async def _take_requests(self) -> None:
        while True:
            frame, rest = await _read_frame(self._from_client, SMALLEST_REQUEST, self._largest_request)
            if frame is None:
                break
            api_key, version = int.from_bytes(frame[4:6], signed=True), int.from_bytes(frame[6:8], signed=True)
            treatment = self._faults.treatment_of(api_key)
            if treatment.drops_request:
                raise _Dropped
            answer = _Answer(treatment.delay_s, treatment.drops_answer)
            if treatment.code is not None and is_served(api_key, version):
                answer.arrive(_refusal(frame, treatment.code))
                await self._in_order.put(answer)
                continue
            has_answer = _has_answer(frame)
            if has_answer:
                self._awaited.append(answer)
                await self._in_order.put(answer)
            self._to_server.write(frame)
            await self._to_server.drain()
            if treatment.drops_answer and not has_answer:
                raise _Dropped
        self._to_server.write(rest)
        while data := await self._from_client.read(CHUNK_SIZE):
            self._to_server.write(data)
            await self._to_server.drain()
        self._to_server.write_eof()

    async def _take_responses(self) -> None:
        while True:
            frame, _ = await _read_frame(self._from_server, SMALLEST_RESPONSE, LARGEST_RESPONSE)
            if frame is None:
                break
            self._awaited.popleft().arrive(frame)
        for answer in self._awaited:
            answer.arrive(None)
        await self._in_order.put(None)

    async def _deliver(self) -> None:
        while (answer := await self._in_order.get()) is not None:
            frame = await answer.frame
            if frame is None:
                return
            await answer.await_due()
            if answer.is_lost:
                raise _Dropped
            self._to_client.write(frame)
            await self._to_client.drain()


async def _read_frame(reader: asyncio.StreamReader, smallest: int, largest: int) -> tuple[bytes | None, bytes]:
    """Read the next frame. Returns the frame with its size, and b""; or None, and the bytes that are no whole frame."""
    head = b""
    try:
        head = await reader.readexactly(4)
        size = int.from_bytes(head, signed=True)
        if not smallest <= size <= largest:
            return None, head
        return head + await reader.readexactly(size), b""
    except asyncio.IncompleteReadError as error:
        return None, head + error.partial


def _decoded(frame: bytes) -> tuple[ApiKey, int, int, Message]:
    """Return API, version, correlation id and message of a request. Raises KbrokerError if it does not parse."""
    body = memoryview(frame)[4:]
    header, position = decode_request_header(body)
    api_key, version = ApiKey(header.request_api_key), header.request_api_version
    message, _ = request_class(api_key).decode_prefix(body[position:], version)
    return api_key, version, header.correlation_id, message


def _refusal(frame: bytes, code: ErrorCode) -> bytes:
    """Return the error answer to a request. Raises _Dropped for a request that has no answer or does not parse."""
    try:
        api_key, version, correlation_id, message = _decoded(frame)
    except KbrokerError as error:
        raise _Dropped from error
    response = error_response(api_key, version, message, code)
    if response is None:
        raise _Dropped
    if api_key is ApiKey.API_VERSIONS and code == ErrorCode.UNSUPPORTED_VERSION:
        version = 0  # KIP-511
    return encode_response(api_key, version, correlation_id, response)


def _has_answer(frame: bytes) -> bool:
    """Return whether a request is answered: Produce with acks=0 is not."""
    if int.from_bytes(frame[4:6], signed=True) != ApiKey.PRODUCE:
        return True
    try:
        message: Any = _decoded(frame)[3]
    except KbrokerError:
        return True
    return bool(message.acks != 0)
