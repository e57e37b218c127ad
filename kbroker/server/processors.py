"""The processors of a broker and their threads. One processor is in `_core/server/processor.pyx`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker._core.log.partition_table import PartitionTable
from kbroker._core.server.cold_reader import ColdReader
from kbroker._core.server.counters import ApiCounters
from kbroker._core.server.fetch.sessions import FetchSessions
from kbroker._core.server.peer import Connection
from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request
from kbroker.net.transports import Transport
from kbroker.protocol.api import SERVED
from kbroker.server.on_demand import late

logger = logging.getLogger(__name__)

OnRequest = Callable[[Request, Processor], bool]
LOGGED_PER_SECOND = 10


class ProcessorLimits(NamedTuple):
    """The limits of a processor's connections."""

    max_request_size: int = 100 << 20
    idle_ms: int = 600_000
    max_inflated_size: int = 100 << 20
    max_response_size: int = 100 << 20


class Processors:
    """`count` processors, with one thread each from `start` to `stop`, and one thread that reads cold data for all."""

    def __init__(
        self,
        count: int,
        partition_table: PartitionTable,
        fetch_sessions: FetchSessions,
        on_request: OnRequest,
        limits: ProcessorLimits = ProcessorLimits(),  # noqa: B008 (immutable)
        listeners: Sequence[str] = ("PLAINTEXT",),
        transports: Mapping[str, Callable[[], Transport]] | None = None,
    ):
        apis = [(int(key), versions.min, versions.max, versions.flexible_from) for key, versions in SERVED.items()]
        self.cold_reader = ColdReader()
        self._log = ClosedConnectionLog()
        self.all = [
            Processor(
                f"processor-{index}",
                index,
                partition_table,
                fetch_sessions,
                self.cold_reader,
                apis,
                on_request,
                self._log.on_close,
                inflate=late("batch_compression", "inflate"),
                recompress=late("batch_compression", "recompress"),
                convert=late("old_messages", "convert"),
                down_convert=late("old_messages", "down_convert"),
                listeners=listeners,
                transports=transports,
                **limits._asdict(),
            )
            for index in range(count)
        ]
        self._threads = [
            threading.Thread(target=processor.run, name=processor.name, daemon=True) for processor in self.all
        ]
        self._cold_thread = threading.Thread(target=self.cold_reader.run, name="cold-reader", daemon=True)

    def start(self) -> None:
        for thread in [self._cold_thread, *self._threads]:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Answer the requests that were read, then close every connection.

        Returns False if a processor still runs after `timeout_s`. The request handlers must still run: connections wait
        for their answers.
        """
        deadline = time.monotonic() + timeout_s
        for processor in self.all:
            processor.stop(timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline + 1 - time.monotonic()))
        self.cold_reader.stop()
        self._cold_thread.join(max(0.0, deadline + 1 - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def counters(self) -> dict[int, ApiCounters]:
        """The counters of all processors added up, by API key."""
        totals: dict[int, ApiCounters] = {}
        for processor in self.all:
            for key, more in processor.counters().items():
                totals[key] = _sum(totals[key], more) if key in totals else more
        return totals

    @property
    def connection_count(self) -> int:
        return sum(processor.connection_count for processor in self.all)


def _sum(one: ApiCounters, other: ApiCounters) -> ApiCounters:
    return ApiCounters(
        one.requests + other.requests,
        one.bytes_in + other.bytes_in,
        one.bytes_out + other.bytes_out,
        one.latency_ns + other.latency_ns,
        tuple(map(sum, zip(one.latencies, other.latencies, strict=True))),
        dict(Counter(one.errors) + Counter(other.errors)),
    )


class ClosedConnectionLog:
    """Logs a line for each connection that a processor closes for a reason.

    If more than LOGGED_PER_SECOND are closed in one second, it logs only how many more there were.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the second and its counts; taken by processors, alone
        self._second = 0
        self._logged = 0
        self._left_out = 0

    def on_close(self, connection: Connection, reason: str) -> None:
        second = int(time.monotonic())
        with self._lock:
            left_out = 0
            if second != self._second:
                left_out, self._left_out = self._left_out, 0
                self._second, self._logged = second, 0
            self._logged += 1
            is_logged = self._logged <= LOGGED_PER_SECOND
            self._left_out += not is_logged
        if left_out:
            logger.warning("%d more connections were closed for what they sent", left_out)
        if is_logged:
            logger.warning("connection of %s on %s closed: %s", connection.peer, connection.listener, reason)
