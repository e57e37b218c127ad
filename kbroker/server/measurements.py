"""Metric samples from the counters of the broker's parts. Runs on the HTTP server's thread, only during a scrape."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from kbroker import __version__
from kbroker._core.base import build_info
from kbroker.errors import ErrorCode
from kbroker.metrics.registry import Distribution, Registry, Sample
from kbroker.protocol.api import ApiKey
from kbroker.server.http import HttpServer, metrics_route, problems_route
from kbroker.server.lag import measure_lag
from kbroker.storage.disk_space import space_of

if TYPE_CHECKING:
    from kbroker._core.server.processor import Processor
    from kbroker.clock import Clock
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.server.acceptor import Acceptor
    from kbroker.server.handler_pool import HandlerPool
    from kbroker.server.request_channel import RequestChannel
    from kbroker.storage.log_manager import LogManager
    from kbroker.transactions.coordinator import TransactionCoordinator


def observe(
    address: tuple[str, int],
    *,
    node_id: int,
    cluster_id: str,
    logs: LogManager,
    acceptor: Acceptor,
    processors: Sequence[Processor],
    channel: RequestChannel,
    handlers: HandlerPool,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    is_ready: Callable[[], bool],
    problems: Callable[[], list[str]],
    clock: Clock,
    most_lags: int,
    measure_member: Callable[[], Iterator[Sample]] | None,
) -> HttpServer:
    """Return the HTTP server of one broker's /metrics, /health and /ready; the caller starts and stops it."""
    server = ServerMeasurements(processors, channel, handlers)
    started_s = time.time()
    about = (__version__, build_info.BUILD, str(node_id), cluster_id)

    def measure_broker() -> Iterator[Sample]:
        yield Sample("kbroker_info", 1, about)
        yield Sample("kbroker_start_time_seconds", started_s)

    registry = Registry()
    registry.add(measure_broker)
    registry.add(server.measure)
    registry.add(lambda: measure_acceptor(acceptor))
    registry.add(lambda: measure_storage(logs))
    registry.add(lambda: measure_cleaner(logs))
    registry.add(lambda: measure_groups(groups))
    registry.add(lambda: measure_transactions(transactions))
    registry.add(lambda: measure_lag(groups, logs, clock, most_lags))

    if measure_member is not None:
        registry.add(measure_member)

    def health() -> list[str]:
        return [f"log directory {path} has failed" for path in logs.offline_directories]

    def ready() -> list[str]:
        if not is_ready():
            return ["the broker does not serve yet, or no more"]
        full = [
            f"log directory {path} is full: no space is left, nothing can be produced" for path in logs.full_directories
        ]
        return health() + problems() + full

    routes = {"/metrics": metrics_route(registry), "/health": problems_route(health), "/ready": problems_route(ready)}
    return HttpServer(*address, routes)


def measure_storage(logs: LogManager) -> Iterator[Sample]:
    """Traffic and size by topic, counts of partitions, and space and flushes by log directory."""
    messages_in: Counter[str] = Counter()
    bytes_in: Counter[str] = Counter()
    bytes_out: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    offline = 0
    found = logs.logs()
    for log in found:
        state = log.state
        messages_in[state.topic] += state.messages_in
        bytes_in[state.topic] += state.bytes_in
        bytes_out[state.topic] += state.bytes_out
        # A log that nobody has used since the start is not opened for a scrape.
        sizes[state.topic] += state.size if state.state == "open" else 0
        offline += state.state == "offline"
    for name, counts in (
        ("kbroker_messages_in_total", messages_in),
        ("kbroker_bytes_in_total", bytes_in),
        ("kbroker_bytes_out_total", bytes_out),
        ("kbroker_log_size_bytes", sizes),
    ):
        for topic, count in counts.items():
            yield Sample(name, count, (topic,))
    yield Sample("kbroker_topics", len(sizes))
    yield Sample("kbroker_partitions", len(found))
    yield Sample("kbroker_partitions_offline", offline)
    for directory in logs.directories:
        yield Sample("kbroker_log_directory_offline", directory.is_offline, (directory.path,))
        yield Sample("kbroker_log_directory_full", directory.is_full, (directory.path,))
        space = space_of(directory.path)
        if space is not None:
            yield Sample("kbroker_log_directory_free_bytes", space.free, (directory.path,))
            yield Sample("kbroker_log_directory_total_bytes", space.total, (directory.path,))
        yield Sample("kbroker_flushes_total", directory.flush_count, (directory.path,))
        yield Sample("kbroker_flush_seconds_total", directory.flush_ns / 1e9, (directory.path,))
        yield Sample("kbroker_flushed_acknowledgements_total", directory.acks_flushed, (directory.path,))


def measure_cleaner(logs: LogManager) -> Iterator[Sample]:
    """The work that the log cleaner has done, and the state that its last look found."""
    cleaner = logs.cleaner
    last = list(cleaner.last.values())
    bytes_read = sum(each.bytes_read for each in last)
    yield Sample("kbroker_log_cleaner_max_dirty_ratio", cleaner.max_dirty_ratio)
    yield Sample("kbroker_log_cleaner_max_compaction_delay_seconds", cleaner.max_compaction_delay_ms / 1000)
    yield Sample("kbroker_log_cleaner_seconds_since_last_run", cleaner.seconds_since_last_run)
    yield Sample("kbroker_log_cleaner_recopy_ratio", sum(each.bytes_written for each in last) / max(bytes_read, 1))
    yield Sample("kbroker_log_cleaner_max_clean_seconds", max((each.elapsed_s for each in last), default=0))
    yield Sample(
        "kbroker_log_cleaner_max_buffer_utilization_ratio", max((each.map_utilization for each in last), default=0)
    )
    yield Sample("kbroker_log_cleaner_dead_threads", cleaner.dead_threads)
    yield Sample("kbroker_log_cleaner_runs_total", cleaner.runs)
    yield Sample("kbroker_log_cleaner_read_bytes_total", cleaner.bytes_read)
    yield Sample("kbroker_log_cleaner_written_bytes_total", cleaner.bytes_written)
    uncleanable = cleaner.uncleanable()
    for directory in logs.directories:
        count, size = uncleanable.get(directory.path, (0, 0))
        yield Sample("kbroker_log_cleaner_uncleanable_partitions", count, (directory.path,))
        yield Sample("kbroker_log_cleaner_uncleanable_bytes", size, (directory.path,))


class IdleShare:
    """Computes the share of idle time, 0 to 1, since the last look; at the first look, since the object was made."""

    def __init__(self) -> None:
        self._seen_ns = time.monotonic_ns()
        self._busy_ns = 0

    def look(self, busy_ns: int, threads: int = 1) -> float:
        """Return the share of idle time.

        `busy_ns` is the time that all `threads` together have worked since the start.
        """
        now_ns = time.monotonic_ns()
        worked, possible = busy_ns - self._busy_ns, (now_ns - self._seen_ns) * threads
        self._seen_ns, self._busy_ns = now_ns, busy_ns
        return min(1.0, max(0.0, 1 - worked / possible)) if possible else 1.0


class ServerMeasurements:
    """Samples of requests by API, connections, queues and idle shares.

    One object for the broker's life: idle shares are since the last scrape.
    """

    def __init__(self, processors: Sequence[Processor], channel: RequestChannel, handlers: HandlerPool):
        self._processors = processors
        self._channel = channel
        self._handlers = handlers
        self._started_ns = time.monotonic_ns()
        self._processor_shares = [IdleShare() for _ in processors]
        self._handler_share = IdleShare()

    def measure(self) -> Iterator[Sample]:
        """The samples; counters are since the start."""
        yield from measure_requests(self._processors)
        now_ns = time.monotonic_ns()
        for processor, share in zip(self._processors, self._processor_shares, strict=True):
            labels = (str(processor.index),)
            yield Sample("kbroker_connections", processor.connection_count, labels)
            yield Sample("kbroker_processor_idle_seconds_total", processor.idle_ns / 1e9, labels)
            yield Sample("kbroker_processor_turns_total", processor.turns, labels)
            busy_ns = now_ns - self._started_ns - processor.idle_ns
            yield Sample("kbroker_processor_idle_ratio", share.look(busy_ns), labels)
        yield Sample("kbroker_request_queue_size", len(self._channel))
        yield Sample("kbroker_request_queue_capacity", self._channel.capacity)
        yield Sample("kbroker_handler_threads", self._handlers.count)
        yield Sample("kbroker_handler_busy_seconds_total", self._handlers.busy_ns / 1e9)
        yield Sample(
            "kbroker_handler_idle_ratio", self._handler_share.look(self._handlers.busy_ns, self._handlers.count)
        )


def measure_requests(processors: Sequence[Processor]) -> Iterator[Sample]:
    """Samples of requests by API: the counters of all processors added up."""
    counted = [(key, counters) for processor in processors for key, counters in processor.counters().items()]
    for key in sorted({key for key, _ in counted}):
        mine = [counters for other, counters in counted if other == key]
        labels = (_api_name(key),)
        yield Sample("kbroker_requests_total", sum(c.requests for c in mine), labels)
        yield Sample("kbroker_request_bytes_total", sum(c.bytes_in for c in mine), labels)
        yield Sample("kbroker_response_bytes_total", sum(c.bytes_out for c in mine), labels)
        # Bucket n counts requests that took less than 2**n microseconds and belong to no bucket before it; the last
        # bucket counts all that took longer.
        buckets = [sum(column) for column in zip(*(c.latencies for c in mine), strict=True)]
        bounds = tuple(2**n / 1e6 for n in range(len(buckets) - 1))
        took = Distribution(bounds, tuple(accumulate(buckets)), sum(c.latency_ns for c in mine) / 1e9)
        yield Sample("kbroker_request_seconds", took, labels)
        errors: Counter[int] = Counter()
        for counters in mine:
            errors.update(counters.errors)
        for code, count in sorted(errors.items()):
            yield Sample("kbroker_request_errors_total", count, (*labels, _error_name(code)))


def measure_acceptor(acceptor: Acceptor) -> Iterator[Sample]:
    """Connections accepted and refused, by listener."""
    for listener in sorted({endpoint.listener for endpoint in acceptor.endpoints}):
        yield Sample("kbroker_connections_accepted_total", acceptor.accepted[listener], (listener,))
        yield Sample("kbroker_connections_refused_total", acceptor.refused[listener], (listener,))


def measure_groups(groups: GroupCoordinator) -> Iterator[Sample]:
    """Counts of groups by state."""
    for state, count in groups.group_counts().items():
        yield Sample("kbroker_groups", count, (state,))


def measure_transactions(transactions: TransactionCoordinator) -> Iterator[Sample]:
    """Counts of transactional ids by state, of markers not written yet, and of transactions that timed out."""
    for state, count in transactions.transaction_counts().items():
        yield Sample("kbroker_transactional_ids", count, (state,))
    yield Sample("kbroker_transaction_markers_waiting", transactions.markers_waiting())
    yield Sample("kbroker_transactions_timed_out_total", transactions.aborted_by_timeout)


def _api_name(key: int) -> str:
    try:
        return ApiKey(key).label
    except ValueError:
        return str(key)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
