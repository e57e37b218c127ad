"""The options of the storage: `LogOptions` for each log, `StorageOptions` for all of them.

The server builds them from its settings.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

NEVER = (1 << 63) - 1
EVERY_PARTITION = range(1 << 31)


class LogOptions(NamedTuple):
    """Settings of one topic's logs. Defaults are Kafka 3.9's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    max_message_bytes: int = 1_048_588
    index_interval_bytes: int = 4096
    index_max_bytes: int = 10 << 20
    flush_messages: int = NEVER
    """An append that brings the unflushed messages to this number is acknowledged after a flush; 1: every append."""
    flush_ms: int = NEVER
    timestamp_before_max_ms: int = NEVER
    timestamp_after_max_ms: int = NEVER
    log_append_time: bool = False
    compacted: bool = False
    """cleanup.policy contains compact: every record needs a key."""
    deleted_by_retention: bool = True
    """cleanup.policy contains delete."""
    may_have_gaps: bool = False
    """The log may have been compacted before, whatever cleanup.policy is now: recovery keeps a segment that does not
    begin where the one before it ends."""
    compression: int = -1
    """The codec to store batches with; -1 leaves them as the producer made them."""
    compression_level: int = -1
    """The codec's level, as in `compression.gzip.level` and the like; ignored for a codec without levels."""
    flushed_visibility: bool = False
    """Consumers see flushed records only."""
    downconversion: bool = True
    """Batches are converted for consumers that know messages of magic 0 and 1 only."""
    verify_transactions: bool = True
    """The first batch of a transaction is appended only after its coordinator was asked (KIP-890)."""
    min_in_sync: int = 1
    """min.insync.replicas: with fewer in-sync replicas nothing is committed, and acks=all is refused."""
    replica_lag_ms: int = 30_000
    """replica.lag.time.max.ms: a follower that has caught up within this time counts as caught up."""
    leader_throttled: Collection[int] = ()
    """The partitions of which followers that are not in sync are throttled by this broker."""
    follower_throttled: Collection[int] = ()
    """The partitions of which this broker, as a follower that is not in sync, is throttled."""
    max_inflated_size: int = 128 << 20
    """Bytes that one batch may inflate to when it is compacted, if more than `protocol.records.INFLATED_LIMIT`."""
    retention_ms: int = 7 * 24 * 3_600_000
    """-1: no limit."""
    retention_bytes: int = -1
    """-1: no limit."""
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 86_400_000
    """How long compaction keeps a tombstone."""
    min_compaction_lag_ms: int = 0
    """Compaction leaves a segment alone whose newest record is younger than this."""
    max_compaction_lag_ms: int = NEVER
    """A log with an uncompacted record older than this is compacted, whatever its dirty ratio."""
    min_cleanable_ratio: float = 0.5
    """A log is compacted when more than this share of its bytes was not compacted yet."""
    preallocate: bool = False
    """A new segment's file has its whole size reserved on disk."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes reserved on disk for each new segment."""
        return self.segment_bytes if self.preallocate else 0


class CleanerOptions(NamedTuple):
    """Settings of compaction. Defaults are Kafka 3.9's."""

    enabled: bool = True
    threads: int = 1
    dedupe_buffer_size: int = 128 << 20
    """Bytes, for all threads together."""
    dedupe_load_factor: float = 0.9
    io_buffer_size: int = 512 << 10
    """Bytes, for all threads together."""
    io_max_bytes_per_second: float = math.inf
    """Bytes read and written in a second, for all threads together."""
    backoff_ms: int = 15_000
    """How long a thread waits when there was nothing to compact."""


class StorageOptions(NamedTuple):
    """Settings of all logs together."""

    directories: tuple[str, ...]
    flusher_threads: int = 8
    """Per log directory."""
    recovery_threads: int = 2
    """Per log directory, after an unclean stop."""
    flush_scheduler_interval_ms: int = 1000
    """How often logs are checked for a flush by `LogOptions.flush_ms`."""
    flush_checkpoint_interval_ms: int = 60_000
    start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    retention_check_interval_ms: int = 300_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    producers_max_bytes: int = 256 << 20
    """About how many bytes all logs of the process together may take to remember producers."""
    max_open_segments: int = 4000
    """How many closed segments have their files kept open; the least used are closed first."""
    free_warning_percent: int = 0
    """Warn when less than this percentage of a disk's space is free; 0: never."""
    cleaner: CleanerOptions = CleanerOptions()
