"""The settings of compaction: part of the table in `definitions.py`."""

from __future__ import annotations

import sys

from kbroker.config.setting import Setting
from kbroker.rules.config_values import INT64_MAX, Kind, Limits

COMPACTION = (
    Setting(
        "log.cleaner.enable",
        Kind.BOOLEAN,
        True,
        "Whether logs with cleanup.policy=compact are compacted. Without it __consumer_offsets grows forever.",
    ),
    Setting(
        "log.cleaner.threads",
        Kind.INT,
        1,
        "Threads that compact logs.",
        dynamic=True,
        limits=Limits(1, 1024),
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 << 20,
        "Memory for the keys of the logs that are compacted, of all threads together: 24 bytes a key.",
        unit="bytes",
        dynamic=True,
        limits=Limits(1 << 20),
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        Kind.DOUBLE,
        0.9,
        "How full that memory may be: fuller is more keys at once, and slower.",
        dynamic=True,
        limits=Limits(0.01, 1),
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        Kind.INT,
        512 << 10,
        "Memory for reading and writing, of all threads together. A larger batch gets what it needs.",
        unit="bytes",
        dynamic=True,
        limits=Limits(1024),
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        sys.float_info.max,
        "What all threads together read and write at most.",
        unit="bytes a second",
        dynamic=True,
        limits=Limits(1),
    ),
    Setting(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        15_000,
        "How long a thread waits when there is nothing to compact.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.cleaner.delete.retention.ms",
        Kind.LONG,
        24 * 60 * 60 * 1000,
        "How long a compacted topic keeps the marks of deleted keys.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms",
        Kind.LONG,
        0,
        "How long a message stays uncompacted at least.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms",
        Kind.LONG,
        INT64_MAX,
        "How long a message stays uncompacted at most.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(1),
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        Kind.DOUBLE,
        0.5,
        "The share of a log that must be uncompacted before it is compacted.",
        dynamic=True,
        limits=Limits(0, 1),
    ),
)
