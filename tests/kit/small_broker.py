"""What Produce and Fetch need of a broker, in this process and without a cluster: logs, processors, an acceptor.

For tests that look inside while a socket is served. Other APIs close the connection.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from kbroker._core.cold_reader import ColdReader
from kbroker._core.fetch_sessions import FetchSessions
from kbroker._core.processor import Processor, Request
from kbroker.model import TopicPartition
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.server.handlers.produce import inflate, recompress
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions


class SmallBroker:
    """A context manager; `port` is where it listens."""

    leader_epoch = 1

    def __init__(
        self,
        folder: Path,
        *,
        session_slots: int = 1000,
        min_eviction_ms: int = 120_000,
        fetch_max_bytes: int = 55 << 20,
        processor_count: int = 1,
    ):
        self.session_slots = session_slots
        self.min_eviction_ms = min_eviction_ms
        self.logs = LogManager(StorageOptions((str(folder / "data"),)))
        self.sessions = FetchSessions(
            session_slots, min_eviction_ms, fetch_max_bytes, lambda connection: (0, "127.0.0.1", self.port, None)
        )
        self.clock_ms = 0
        """Of the sessions, from the first call of advance_ms on."""
        self.cold_reader = ColdReader()
        self.processors = [
            Processor(
                f"processor-{index}",
                index,
                self.logs.registry,
                self.sessions,
                self.cold_reader,
                [(key, versions.min, versions.max, versions.flexible_from) for key, versions in SERVED.items()],
                self._on_request,
                self._on_close,
                inflate=inflate,
                recompress=recompress,
            )
            for index in range(processor_count)
        ]
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self.listener.getsockname()[1]
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._processor_threads = [threading.Thread(target=processor.run) for processor in self.processors]
        self._threads = [
            threading.Thread(target=self.cold_reader.run),
            threading.Thread(target=self._handle),
            threading.Thread(target=self._accept),
        ]
        self._names = itertools.count()

    # --- topics -------------------------------------------------------------------------------------

    def new_name(self) -> str:
        return f"topic-{next(self._names)}"

    def create_topic(self, name: str, partition_count: int, segment_bytes: int = 1 << 30) -> bytes:
        topic_id = uuid4()
        for partition_id in range(partition_count):
            log = self.logs.create(name, topic_id, partition_id, LogOptions(segment_bytes=segment_bytes))
            log.set_leader_epoch(self.leader_epoch)
            log.open()
        return topic_id.bytes

    def delete_topic(self, name: str) -> None:
        for log in self.logs.logs():
            if log.topic_partition.topic == name:
                self.logs.delete(log.topic_partition)

    def delete_records(self, name: str, partition_id: int, offset: int) -> None:
        self.log(name, partition_id).delete_records_before(offset)

    def advance_ms(self, milliseconds: int) -> None:
        self.clock_ms += milliseconds
        self.sessions.set_clock_ms(self.clock_ms)

    def log(self, name: str, partition_id: int) -> Log:
        log = self.logs.get(TopicPartition(name, partition_id))
        assert log is not None
        return log

    def close_log(self, name: str, partition_id: int) -> None:
        self.log(name, partition_id).close()

    def segment_bytes(self, name: str, partition_id: int) -> bytes:
        """The bytes of the partition's .log files, one behind the other."""
        return b"".join(path.read_bytes() for path in sorted(Path(self.log(name, partition_id).path).glob("*.log")))

    def waiting_fetches(self, name: str, partition_id: int) -> int:
        return self.log(name, partition_id).state.waiting_fetches

    # --- threads ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.logs.start(lambda topic_partition: None, background=False)
        for thread in self._processor_threads + self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for processor in self.processors:
            processor.stop(5.0)
        for thread in self._processor_threads:
            thread.join()
        self._requests.put(None)
        self.cold_reader.stop()
        for thread in self._threads:
            thread.join()
        self.listener.close()
        self.logs.stop()

    def _accept(self) -> None:
        for processor in itertools.cycle(self.processors):
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            processor.adopt(connection.detach())

    def _on_request(self, request: Request, processor: Processor) -> None:
        self._requests.put(request)

    def _on_close(self, *told: object) -> None:
        pass

    def _handle(self) -> None:
        while (request := self._requests.get()) is not None:
            if request.api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
                request.run_blocking()
            else:
                request.close("an API that this broker does not serve")
