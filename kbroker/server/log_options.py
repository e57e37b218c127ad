"""Makes the options objects of `kbroker.storage` from settings: storage does not know the names of settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbroker.cluster.topic_configs import DURABLE_FLUSH_MESSAGES, effective_configs, has_flush_policy
from kbroker.config.broker_config import BrokerConfig
from kbroker.rules.config_values import Value
from kbroker.storage.options import EVERY_PARTITION, CleanerOptions, LogOptions, StorageOptions

# With Kafka's default the flush scheduler never runs, so a topic's flush.ms alone does nothing there. Here it works.
LONGEST_FLUSH_CHECK_MS = 1000
CODECS = {"producer": -1, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LEVELED_CODECS = {"gzip", "lz4", "zstd"}


def storage_options(config: BrokerConfig) -> StorageOptions:
    """The options that all logs share."""
    return StorageOptions(
        directories=tuple(str(path) for path in config.log_dirs),
        recovery_threads=config["num.recovery.threads.per.data.dir"],
        flusher_threads=config["kbroker.flush.threads"],
        max_open_segments=config["kbroker.open.segments.max"],
        flush_scheduler_interval_ms=min(config["log.flush.scheduler.interval.ms"], LONGEST_FLUSH_CHECK_MS),
        flush_checkpoint_interval_ms=config["log.flush.offset.checkpoint.interval.ms"],
        start_offset_checkpoint_interval_ms=config["log.flush.start.offset.checkpoint.interval.ms"],
        high_watermark_checkpoint_interval_ms=config["replica.high.watermark.checkpoint.interval.ms"],
        retention_check_interval_ms=config["log.retention.check.interval.ms"],
        producer_id_expiration_ms=config["producer.id.expiration.ms"],
        producer_id_expiration_check_interval_ms=config["producer.id.expiration.check.interval.ms"],
        producers_max_bytes=config["kbroker.producers.max.bytes"],
        free_warning_percent=config["kbroker.disk.free.warning.percent"],
        cleaner=cleaner_options(config),
    )


def cleaner_options(config: BrokerConfig) -> CleanerOptions:
    """The options of the log cleaner, which compacts logs."""
    return CleanerOptions(
        enabled=config["log.cleaner.enable"],
        threads=config["log.cleaner.threads"],
        dedupe_buffer_size=config["log.cleaner.dedupe.buffer.size"],
        dedupe_load_factor=config["log.cleaner.io.buffer.load.factor"],
        io_buffer_size=config["log.cleaner.io.buffer.size"],
        io_max_bytes_per_second=config["log.cleaner.io.max.bytes.per.second"],
        backoff_ms=config["log.cleaner.backoff.ms"],
    )


def throttled_partitions(replicas: Value, node_id: int) -> Collection[int]:
    """Return the partitions of which a list of throttled replicas, partition:broker pairs or *, has this broker's."""
    assert isinstance(replicas, tuple)
    if replicas == ("*",):
        return EVERY_PARTITION
    pairs = [pair.split(":") for pair in replicas if pair]
    return frozenset(int(partition_id) for partition_id, each in pairs if int(each) == node_id)


def log_options(
    own: Mapping[str, str],
    config: BrokerConfig,
    node_id: int,
    *,
    configs_given: bool = True,
    is_replicated: bool = False,
) -> LogOptions:
    """The options of one topic's logs on broker `node_id`: its own settings, else the broker's, else the defaults.

    With `configs_given` false the topic's own settings are not known: its logs are neither compacted nor deleted from.
    Where no flush policy is set, a topic that `is_replicated` is flushed before each acknowledgement.
    """
    value = effective_configs(own, config.text)
    policy = value["cleanup.policy"] if configs_given else ()
    codec = str(value["compression.type"])
    assert isinstance(policy, tuple)

    def integer(name: str) -> int:
        number = value[name]
        assert isinstance(number, int)
        return number

    is_compacted = "compact" in policy
    ratio = value["min.cleanable.dirty.ratio"]
    assert isinstance(ratio, float)
    is_durable = is_replicated and not has_flush_policy(own, config.given)
    max_lag_ms = integer("max.compaction.lag.ms")
    return LogOptions(
        segment_bytes=integer("segment.bytes"),
        # As in Kafka: the active segment is not compacted, so a segment must not be active for longer than the lag.
        segment_ms=min(integer("segment.ms"), max_lag_ms) if is_compacted else integer("segment.ms"),
        segment_jitter_ms=integer("segment.jitter.ms"),
        max_message_bytes=integer("max.message.bytes"),
        index_interval_bytes=integer("index.interval.bytes"),
        index_max_bytes=integer("segment.index.bytes"),
        flush_messages=DURABLE_FLUSH_MESSAGES if is_durable else integer("flush.messages"),
        min_in_sync=integer("min.insync.replicas"),
        replica_lag_ms=config["replica.lag.time.max.ms"],
        leader_throttled=throttled_partitions(value["leader.replication.throttled.replicas"], node_id),
        follower_throttled=throttled_partitions(value["follower.replication.throttled.replicas"], node_id),
        flush_ms=integer("flush.ms"),
        timestamp_before_max_ms=integer("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=integer("message.timestamp.after.max.ms"),
        log_append_time=value["message.timestamp.type"] == "LogAppendTime",
        compacted=is_compacted,
        may_have_gaps=not configs_given,
        deleted_by_retention="delete" in policy,
        compression=CODECS[codec],
        compression_level=integer(f"compression.{codec}.level") if codec in LEVELED_CODECS else -1,
        flushed_visibility=config["log.flush.visibility"] == "flushed",
        downconversion=bool(value["message.downconversion.enable"]),
        max_inflated_size=config["kbroker.inflated.batch.max.bytes"],
        verify_transactions=config["transaction.partition.verification.enable"],
        retention_ms=integer("retention.ms"),
        retention_bytes=integer("retention.bytes"),
        file_delete_delay_ms=integer("file.delete.delay.ms"),
        delete_retention_ms=integer("delete.retention.ms"),
        min_compaction_lag_ms=integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=max_lag_ms,
        min_cleanable_ratio=ratio,
        preallocate=bool(value["preallocate"]),
    )
