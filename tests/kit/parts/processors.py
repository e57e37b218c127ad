"""Processors on real sockets over real logs, without the rest of the broker."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kbroker._core.base.build_info import BUILD
from kbroker._core.server.cold_reader import ColdReader
from kbroker._core.server.fetch.sessions import FetchSessions
from kbroker._core.server.peer import Connection
from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request
from kbroker.model import TopicPartition
from kbroker.net.transports import Transport
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED
from kbroker.protocol.records import Record, read_batches
from kbroker.server.batch_compression import inflate, recompress
from kbroker.server.handler_pool import HandlerPool
from kbroker.server.old_messages import convert, down_convert
from kbroker.server.request_channel import RequestChannel
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.clients.wire import WireClient

APIS = [(int(key), *versions[:3]) for key, versions in SERVED.items()]
STOP_S = 10.0
QUARANTINE = 256 << 20 if BUILD == "asan" else 0
"""Bytes of memory that the address sanitizer holds back by default when they are freed."""


class ProcessorRig:
    """`processors` processors over the logs in `directory`.

    `handle` gets the requests that are neither Produce nor Fetch: on a handler thread, or with `inline` on the
    processor's.
    """

    def __init__(
        self,
        directory: Path,
        *,
        processors: int = 1,
        handlers: int = 2,
        handle: Callable[[Request], None] | None = None,
        inline: bool = False,
        queue_size: int = 100,
        listeners: Sequence[str] = ("PLAINTEXT",),
        transports: Mapping[str, Callable[[], Transport]] | None = None,
        storage: StorageOptions | None = None,
        **limits: int,
    ):
        self.directory = directory
        self.logs = LogManager(storage or StorageOptions((str(directory),)))
        self.logs.start(lambda topic_partition: None, background=False)
        self.handle = handle or (lambda request: request.respond(b""))
        self.inline = inline
        self.closed: list[tuple[Connection, str]] = []
        self.closed_event = threading.Event()
        self.while_closing: Callable[[], object] = lambda: None
        """Called on the processor's thread when a connection has been closed for a reason."""
        self.cold_reader = ColdReader()
        self.fetch_sessions = FetchSessions()
        self.channel = RequestChannel(queue_size)
        self.pool = HandlerPool(handlers, self.channel, self._serve)
        self.processors: list[Processor] = []
        for index in range(processors):
            self.processors.append(
                Processor(
                    f"processor-{index}", index, self.logs.partition_table, self.fetch_sessions, self.cold_reader, APIS,
                    self._on_request, self._on_close,
                    inflate=inflate, recompress=recompress, convert=convert, down_convert=down_convert,
                    listeners=listeners, transports=transports, **limits,
                )
            )  # fmt: skip
        self.threads = [
            threading.Thread(target=target, daemon=True)
            for target in [self.cold_reader.run, *(processor.run for processor in self.processors)]
        ]
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port: int = self.listener.getsockname()[1]
        self.next_processor = 0
        self.lock = threading.Lock()
        self.is_stopped = False
        self.verify: Callable[[str, int, int, list[tuple[str, int]]], Sequence[int]] | None = None
        """The function that is asked whether transactions may begin; None: nobody is asked."""

    def _on_request(self, request: Request, processor: Processor) -> bool | None:
        if self.inline and request.api_key > 1:
            self.handle(request)
            return None
        return self.channel.enqueue(request, processor)

    def _serve(self, request: Request) -> None:
        if request.api_key <= 1:
            asked = request.check_blocking() if request.api_key == 0 else None
            request.run_blocking(self.verify(*asked) if asked is not None and self.verify is not None else None)
        else:
            self.handle(request)

    def _on_close(self, connection: Connection, reason: str) -> None:
        logging.getLogger("rig").info("%s: %s", connection.peer, reason)
        self.closed.append((connection, reason))
        self.closed_event.set()
        self.while_closing()

    def __enter__(self) -> Self:
        self.pool.start()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, timeout_s: float = STOP_S) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        self.listener.close()
        for processor in self.processors:
            processor.stop(timeout_s)
        for thread in self.threads[1:]:
            thread.join(timeout_s + STOP_S)
            assert not thread.is_alive(), "a processor did not stop"
        assert self.pool.stop(STOP_S)
        self.cold_reader.stop()
        self.threads[0].join(STOP_S)
        self.logs.stop()

    def connect(self, processor: int | None = None, listener: int = 0, small_buffers: bool = False) -> WireClient:
        """Return a client whose connection is served by this processor; None: by the next one in turn."""
        with self.lock:
            client = WireClient("127.0.0.1", self.port)
            accepted, _ = self.listener.accept()
            accepted.setblocking(False)
            if small_buffers:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if processor is None:
                processor = self.next_processor
                self.next_processor = (self.next_processor + 1) % len(self.processors)
            self.processors[processor].adopt(accepted.detach(), listener)
        return client

    def create(self, topic: str, partitions: int = 1, **options: Any) -> list[Log]:
        topic_id = UUID(bytes=topic.encode().ljust(16, b".")[:16])
        return [self.logs.create(topic, topic_id, number, LogOptions(**options)) for number in range(partitions)]

    @property
    def connection_count(self) -> int:
        return sum(processor.connection_count for processor in self.processors)

    def why_closed(self) -> list[str]:
        """Wait for a connection to be closed. Return the reasons of those that were closed for one."""
        wait_until(lambda: self.connection_count == 0 or bool(self.closed), "a connection is closed", 1.0, fails=False)
        return [reason for _, reason in self.closed]

    @staticmethod
    def fetch_request(topic: str, offset: int, partition_id: int = 0, **fields: Any) -> M.FetchRequest:
        """Return a Fetch request for version 11, without a session."""
        part = M.FetchRequest.FetchPartition(
            partition=partition_id, fetch_offset=offset, partition_max_bytes=fields.get("max_bytes", 1 << 20)
        )
        settings = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        return M.FetchRequest(topics=[M.FetchRequest.FetchTopic(topic=topic, partitions=[part])], **(settings | fields))

    def records(self, topic: str, partition_id: int = 0) -> list[Record]:
        """Return all records of a partition's log."""
        log = self.logs.get(TopicPartition(topic, partition_id))
        assert log is not None
        found: list[Record] = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            for batch in read_batches(log.read(offset, 1 << 20)):
                found += batch.records()
            offset = found[-1].offset + 1
        return found


def produce_request(topic: str, batch: Any, *, acks: int = 1, partition_id: int = 0) -> M.ProduceRequest:
    """Return a Produce request with one batch for one partition."""
    part = M.ProduceRequest.PartitionProduceData(index=partition_id, records=batch)
    return M.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[M.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])],
    )


def resident_bytes() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0, fails: bool = True) -> None:
    """Poll until a condition inside a processor is true, of which no event tells. Fail after `timeout_s` if `fails`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            assert not fails, f"waited in vain: {what}"
            return
        pause.wait(0.002)
