"""Every metric of the broker: name, kind, labels, help. `docs/METRICS.md` is made from this table.

Names follow Prometheus: base units (seconds, bytes), `_total` for counters. Counters start at 0 with the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of samples."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_ROWS = (
    Metric("kbroker_info", Kind.GAUGE, "1; the labels say what runs.", ("version", "build", "node_id", "cluster_id")),
    Metric("kbroker_start_time_seconds", Kind.GAUGE, "When the broker was started, in seconds since the epoch."),
    # Traffic, by topic.
    Metric("kbroker_messages_in_total", Kind.COUNTER, "Messages appended.", ("topic",)),
    Metric("kbroker_bytes_in_total", Kind.COUNTER, "Bytes of messages appended.", ("topic",)),
    Metric("kbroker_bytes_out_total", Kind.COUNTER, "Bytes of messages sent to consumers.", ("topic",)),
    # Requests.
    Metric("kbroker_requests_total", Kind.COUNTER, "Requests received.", ("api",)),
    Metric("kbroker_request_errors_total", Kind.COUNTER, "Error codes in responses.", ("api", "error")),
    Metric("kbroker_request_bytes_total", Kind.COUNTER, "Bytes of requests.", ("api",)),
    Metric("kbroker_response_bytes_total", Kind.COUNTER, "Bytes of responses, messages included.", ("api",)),
    Metric(
        "kbroker_request_seconds",
        Kind.HISTOGRAM,
        "From a request's last byte to its response's; Fetch waits for messages in it, Produce for flushes.",
        ("api",),
    ),
    Metric("kbroker_request_queue_size", Kind.GAUGE, "Requests that wait for a handler."),
    Metric("kbroker_request_queue_capacity", Kind.GAUGE, "queued.max.requests."),
    # Connections and threads.
    Metric("kbroker_connections", Kind.GAUGE, "Open connections.", ("processor",)),
    Metric("kbroker_connections_accepted_total", Kind.COUNTER, "Connections, refused ones included.", ("listener",)),
    Metric(
        "kbroker_connections_refused_total",
        Kind.COUNTER,
        "Connections closed at once, for max.connections, max.connections.per.ip or a lack of descriptors.",
        ("listener",),
    ),
    Metric("kbroker_processor_idle_seconds_total", Kind.COUNTER, "Time that a processor has waited.", ("processor",)),
    Metric("kbroker_processor_turns_total", Kind.COUNTER, "How often a processor has woken up.", ("processor",)),
    Metric("kbroker_handler_threads", Kind.GAUGE, "num.io.threads."),
    Metric("kbroker_handler_busy_seconds_total", Kind.COUNTER, "Time that all request handlers have worked."),
    Metric("kbroker_processor_idle_ratio", Kind.GAUGE, "Share of its time a processor waits.", ("processor",)),
    Metric(
        "kbroker_handler_idle_ratio", Kind.GAUGE, "Share of their time request handlers wait, since the last scrape."
    ),
    # The log.
    Metric("kbroker_partitions", Kind.GAUGE, "Partitions on this broker."),
    Metric("kbroker_partitions_offline", Kind.GAUGE, "Partitions whose log directory has failed."),
    Metric("kbroker_topics", Kind.GAUGE, "Topics, internal ones included."),
    Metric("kbroker_log_directory_offline", Kind.GAUGE, "1 when a log directory has failed.", ("directory",)),
    Metric(
        "kbroker_log_size_bytes",
        Kind.GAUGE,
        "Bytes of the segments of a topic; logs count from their first use after a start.",
        ("topic",),
    ),
    Metric("kbroker_flushes_total", Kind.COUNTER, "Flushes to the disk.", ("directory",)),
    Metric("kbroker_flush_seconds_total", Kind.COUNTER, "How long they took, together.", ("directory",)),
    Metric(
        "kbroker_flushed_acknowledgements_total",
        Kind.COUNTER,
        "Produce requests whose answer waited for a flush; by kbroker_flushes_total: how many share one.",
        ("directory",),
    ),
    # Groups.
    Metric("kbroker_groups", Kind.GAUGE, "Consumer groups.", ("state",)),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ROWS}
