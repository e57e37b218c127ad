"""Every metric of the broker: name, kind, labels, help. `docs/METRICS.md` is made from this table.

Names follow Prometheus: base units (seconds, bytes), `_total` for counters. Counters start at 0 with the process.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
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
    Metric("kbroker_bytes_out_total", Kind.COUNTER, "Bytes of messages sent to consumers and followers.", ("topic",)),
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
        "kbroker_log_directory_full",
        Kind.GAUGE,
        "1 when an append was refused for lack of space, and none has found space since.",
        ("directory",),
    ),
    Metric(
        "kbroker_log_directory_free_bytes",
        Kind.GAUGE,
        "Free on the file system that a log directory is in.",
        ("directory",),
    ),
    Metric(
        "kbroker_log_directory_total_bytes",
        Kind.GAUGE,
        "Size of the file system that a log directory is in.",
        ("directory",),
    ),
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
    # Compaction. Kafka has these in kafka.log:type=LogCleaner and LogCleanerManager; the help ends with Kafka's name.
    Metric(
        "kbroker_log_cleaner_max_dirty_ratio",
        Kind.GAUGE,
        "Of the dirtiest compacted log, the share that was never compacted (max-dirty-percent).",
    ),
    Metric(
        "kbroker_log_cleaner_max_compaction_delay_seconds",
        Kind.GAUGE,
        "By how much max.compaction.lag.ms is exceeded at most (max-compaction-delay-secs).",
    ),
    Metric(
        "kbroker_log_cleaner_seconds_since_last_run",
        Kind.GAUGE,
        "Since a thread looked for a log to compact (time-since-last-run-ms).",
    ),
    Metric(
        "kbroker_log_cleaner_recopy_ratio",
        Kind.GAUGE,
        "Of the bytes read by each thread's last run, the share that stayed (cleaner-recopy-percent).",
    ),
    Metric(
        "kbroker_log_cleaner_max_clean_seconds",
        Kind.GAUGE,
        "How long the longest of the threads' last runs took (max-clean-time-secs).",
    ),
    Metric(
        "kbroker_log_cleaner_max_buffer_utilization_ratio",
        Kind.GAUGE,
        "How full the map of keys was in the fullest of the threads' last runs (max-buffer-utilization-percent).",
    ),
    Metric(
        "kbroker_log_cleaner_dead_threads",
        Kind.GAUGE,
        "Threads that have ended before their time (DeadThreadCount).",
    ),
    Metric("kbroker_log_cleaner_runs_total", Kind.COUNTER, "Logs compacted."),
    Metric("kbroker_log_cleaner_read_bytes_total", Kind.COUNTER, "Bytes of the segments that were compacted."),
    Metric("kbroker_log_cleaner_written_bytes_total", Kind.COUNTER, "Bytes that were left of them."),
    Metric(
        "kbroker_log_cleaner_uncleanable_partitions",
        Kind.GAUGE,
        "Partitions left alone after a failure, until the next start (uncleanable-partitions-count).",
        ("directory",),
    ),
    Metric("kbroker_log_cleaner_uncleanable_bytes", Kind.GAUGE, "Their size (uncleanable-bytes).", ("directory",)),
    # Groups.
    Metric(
        "kbroker_group_lag_records",
        Kind.GAUGE,
        "Records that a group has not committed yet, up to the high watermark.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "kbroker_group_lag_seconds",
        Kind.GAUGE,
        "Age of the oldest record that a group has not committed, by its batch's timestamp; 0 without one. Not told of "
        "logs that nobody has used since the start.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "kbroker_group_lag_left_out",
        Kind.GAUGE,
        "Committed offsets whose lag is not told, for there are more than kbroker.metrics.lag.partitions.max.",
    ),
    Metric("kbroker_groups", Kind.GAUGE, "Consumer groups.", ("state",)),
    # Transactions.
    Metric("kbroker_transactional_ids", Kind.GAUGE, "Transactional ids; Ongoing: open transactions.", ("state",)),
    Metric(
        "kbroker_transaction_markers_waiting",
        Kind.GAUGE,
        "Partitions whose marker, the end of a transaction that is decided, is not written yet.",
    ),
    Metric(
        "kbroker_transactions_timed_out_total",
        Kind.COUNTER,
        "Transactions aborted because they were open for longer than their producer allowed.",
    ),
)

_MEMBER_ROWS = (
    Metric("kbroker_active_controller", Kind.GAUGE, "1 on the broker that is the controller, 0 on the others."),
    Metric(
        "kbroker_zookeeper_connected",
        Kind.GAUGE,
        "1 while there is a connection to a ZooKeeper server (SessionState).",
    ),
    Metric(
        "kbroker_registered",
        Kind.GAUGE,
        "1 while this broker is registered in ZooKeeper, and the controller has told it so since it registered; 0 also "
        "once it has heard nothing of ZooKeeper for longer than zookeeper.session.timeout.ms.",
    ),
    Metric("kbroker_leader_partitions", Kind.GAUGE, "Partitions that this broker leads."),
    Metric(
        "kbroker_under_replicated_partitions",
        Kind.GAUGE,
        "Partitions led here with a replica that is not in the ISR, other than those that a reassignment adds.",
    ),
    Metric(
        "kbroker_under_min_isr_partitions",
        Kind.GAUGE,
        "Partitions led here with fewer replicas in the ISR than min.insync.replicas.",
    ),
    Metric(
        "kbroker_offline_partitions",
        Kind.GAUGE,
        "Partitions of the cluster without a leader; told by the controller, 0 on the others.",
    ),
    Metric(
        "kbroker_at_min_isr_partitions",
        Kind.GAUGE,
        "Partitions led here whose ISR has just as many replicas as min.insync.replicas: one more lost, and "
        "acks=all is refused.",
    ),
    Metric("kbroker_global_topics", Kind.GAUGE, "Topics of the cluster; told by the controller, 0 on the others."),
    Metric(
        "kbroker_global_partitions", Kind.GAUGE, "Partitions of the cluster; told by the controller, 0 on the others."
    ),
    Metric(
        "kbroker_preferred_replica_imbalance",
        Kind.GAUGE,
        "Partitions of the cluster that another replica leads than their first, or none; told by the controller, 0 on "
        "the others.",
    ),
    Metric(
        "kbroker_leader_elections_total",
        Kind.COUNTER,
        "How often this broker, as the controller, has settled that brokers came or went "
        "(LeaderElectionRateAndTimeMs).",
    ),
    Metric(
        "kbroker_leader_election_seconds_total",
        Kind.COUNTER,
        "How long that took, together, until the leaders were elected and the requests to the brokers on their way.",
    ),
    Metric(
        "kbroker_unclean_leader_elections_total",
        Kind.COUNTER,
        "Leaders that this broker, as the controller, has elected from outside the ISR: records may be lost.",
    ),
    Metric(
        "kbroker_isr_shrinks_total",
        Kind.COUNTER,
        "Changes of ISRs by which this broker, as the leader, has taken out replicas that lag (IsrShrinksPerSec).",
    ),
    Metric(
        "kbroker_isr_expands_total",
        Kind.COUNTER,
        "Changes of ISRs by which this broker, as the leader, has let in replicas (IsrExpandsPerSec).",
    ),
    Metric("kbroker_isr_changes_failed_total", Kind.COUNTER, "Changes of ISRs that the controller refused."),
    Metric("kbroker_leader_changes_total", Kind.COUNTER, "Partitions that have got another leader."),
    Metric(
        "kbroker_replica_lag_max",
        Kind.GAUGE,
        "The largest kbroker_replica_lag on this broker; 0 if no replica is behind (MaxLag).",
    ),
    Metric(
        "kbroker_replica_lag",
        Kind.GAUGE,
        "Messages that this broker, as a follower, still lacks of those below the high watermark that the leader told "
        "last; only of partitions with any, and of at most 1000 (ConsumerLag). The leader does not tell the lag of its "
        "followers.",
        ("topic", "partition"),
    ),
    Metric("kbroker_replica_bytes_in_total", Kind.COUNTER, "Bytes of messages copied from leaders."),
    Metric(
        "kbroker_replica_fetches_failed_total",
        Kind.COUNTER,
        "Fetches from leaders without an answer, or with an error for the whole answer.",
    ),
    Metric(
        "kbroker_replica_damaged_answers_total",
        Kind.COUNTER,
        "Answers of leaders with a batch that is damaged or does not belong at its place; it was not appended.",
    ),
    Metric(
        "kbroker_replica_damaged_logs_total",
        Kind.COUNTER,
        "Times that damage was found in the log of a replica here; it is made good from another replica.",
    ),
    Metric("kbroker_replica_truncations_total", Kind.COUNTER, "Logs that were cut because their leader's differs."),
    Metric(
        "kbroker_replica_new_beginnings_total",
        Kind.COUNTER,
        "Logs that were emptied to begin where their leader starts.",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*_ROWS, *_MEMBER_ROWS)}
MEMBER_METRICS = frozenset(metric.name for metric in _MEMBER_ROWS)
"""The metrics that only a member of a cluster has."""
