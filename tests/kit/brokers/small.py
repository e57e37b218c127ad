"""A broker in this process, without a cluster: logs, processors, handlers for the APIs of partitions, an acceptor.

For tests that look inside while a socket is served. Other APIs close the connection.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

from kbroker._core.base.throttle import Throttle
from kbroker._core.server.fetch.sessions import FetchSessions
from kbroker._core.server.peer import Connection
from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request
from kbroker.clock import SystemClock
from kbroker.cluster.new_topics import TopicDefaults
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.topics import Topics
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.model import TopicPartition
from kbroker.protocol.api import ApiKey
from kbroker.replication.acks import ReplicationWaits
from kbroker.replication.local_replica import LEADING
from kbroker.server.dispatch import ROUTES, Dispatcher
from kbroker.server.handler_pool import HandlerPool
from kbroker.server.handlers.shared.current_leader import CurrentLeader
from kbroker.server.handlers.shared.services import Services
from kbroker.server.processors import ProcessorLimits, Processors
from kbroker.server.request_channel import RequestChannel
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions

SERVED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
)


class SmallBroker:
    """The broker, as a context manager. It listens on `port`."""

    leader_epoch = 1
    """The leader epoch of every new partition."""

    def __init__(
        self,
        folder: Path,
        *,
        session_slots: int = 1000,
        min_eviction_ms: int = 120_000,
        fetch_max_bytes: int = 55 << 20,
        processor_count: int = 1,
        idle_ms: int = 600_000,
        is_member: bool = False,
        read_replica_of: Callable[[Connection, str, int, str, int], int] | None = None,
        rack: str | None = None,
    ):
        self.session_slots = session_slots
        self.min_eviction_ms = min_eviction_ms
        self.clock_ms = 0
        """The clock of the fetch sessions, from the first call of advance_ms on."""
        self.logs = LogManager(StorageOptions((str(folder / "data"),)), is_member=is_member)
        self.is_member = is_member
        self.store = EmbeddedStore(str(folder / "store"))
        self.throttle = Throttle()
        """Of what followers get that are not in sync."""
        self.sessions = FetchSessions(
            session_slots, min_eviction_ms, fetch_max_bytes, self._leader_of, read_replica_of, rack, self.throttle
        )
        self.leaders: dict[int, CurrentLeader] = {}
        """The leaders of partitions, by number, that are not led here."""
        self.waits = ReplicationWaits()
        self.channel = RequestChannel(500)
        self.dispatcher = Dispatcher(self._services(), self.channel, {key: ROUTES[key] for key in SERVED})
        self.handlers = HandlerPool(4, self.channel, self.dispatcher.serve)
        limits = ProcessorLimits(idle_ms=idle_ms)
        self.processors = Processors(
            processor_count, self.logs.partition_table, self.sessions, self._on_request, limits
        )
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self.listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept)
        self._names = itertools.count()

    def _leader_of(
        self, connection: Connection, topic: str | None, topic_id: bytes | None, partition_id: int
    ) -> CurrentLeader | None:
        for log in self.logs.logs():
            at = log.topic_partition
            is_meant = at.partition_id == partition_id and (at.topic == topic or log.topic_id.bytes == topic_id)
            if is_meant and log.state.role in LEADING:
                return CurrentLeader(0, log.leader_epoch, "127.0.0.1", self.port, None)
        return self.leaders.get(partition_id)

    def _services(self, **parts: Any) -> Services:
        """Return the services that these APIs use, with `parts`. Other services are missing."""
        session = self.store.connect()
        if session.exists(paths.PRODUCER_ID_BLOCK) is None:
            session.create(paths.PRODUCER_ID_BLOCK)
        missing: dict[str, Any] = dict.fromkeys(signature(Services).parameters)
        known = {
            "clock": SystemClock(),
            "logs": self.logs,
            "producer_ids": ProducerIds(session, 0),
            "cluster": Topics(session, 0, defaults=TopicDefaults(1, 1)),
            "waits": self.waits,
        }
        return Services(**(missing | known | parts))

    # --- topics -------------------------------------------------------------------------------------

    def new_name(self) -> str:
        return f"topic-{next(self._names)}"

    def create_topic(self, name: str, partition_count: int, **options: Any) -> bytes:
        """Create a topic, and return its id. `options` are those of storage.LogOptions."""
        topic_id = uuid4()
        for partition_id in range(partition_count):
            log = self.logs.create(name, topic_id, partition_id, LogOptions(**options))
            if not self.is_member:
                log.be_alone(self.leader_epoch)
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

    @contextmanager
    def held_closed(self, name: str, partition_id: int) -> Iterator[None]:
        """Close the log. Until the context ends, a thread that has to open it waits."""
        log = self.log(name, partition_id)
        log.close()
        with log._lock:
            yield

    def segment_bytes(self, name: str, partition_id: int) -> bytes:
        """Return the bytes of the partition's .log files, one behind the other."""
        return b"".join(path.read_bytes() for path in sorted(Path(self.log(name, partition_id).path).glob("*.log")))

    def waiting_fetches(self, name: str, partition_id: int) -> int:
        return self.log(name, partition_id).state.waiting_fetches

    # --- running ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        known: dict[TopicPartition, tuple[UUID, LogOptions]] = {}
        self.logs.start(known.get, background=False)
        self.waits.start()
        self.handlers.start()
        self.processors.start()
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self.listener.close()
        assert self.processors.stop(5.0)
        assert self.handlers.stop(5.0)
        self.waits.stop()
        self.store.stop()
        self.logs.stop()

    def _accept(self) -> None:
        tokens: dict[str, int] = {}
        for processor in itertools.cycle(self.processors.all):
            try:
                connection, (host, _) = self.listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            processor.adopt(connection.detach(), token=tokens.setdefault(host, len(tokens)))

    def _on_request(self, request: Request, processor: Processor) -> bool:
        if request.api_key not in SERVED:
            request.close("an API that this broker does not serve")
            return True
        return self.dispatcher.on_request(request, processor)
