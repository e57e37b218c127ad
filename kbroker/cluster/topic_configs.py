"""Every config that a topic can have, as in Apache Kafka 3.9: kind, default, limits, and its broker settings.

A topic's own value wins, else the first of its broker synonyms that is set, else the default. The table is data: the
broker's settings, the documentation and DescribeConfigs are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from kbroker.errors import ConfigError
from kbroker.rules.config_values import ANYTHING, INT64_MAX, Kind, Limits, Value, parse_value

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS

_REPLICA = r"([0-9]+:[0-9]+)?"
_MESSAGE_FORMAT_VERSION = r"(0\.(8\.[0-2]|9\.0|10\.[0-2]|11\.0)|1\.[01]|2\.[0-8]|3\.[0-9]|4\.0)(\.[0-9]+)*(-IV[0-9])?"


class BrokerSynonym(NamedTuple):
    """A broker setting that gives topics their default. Its value times `factor` is in the topic config's unit."""

    name: str
    factor: int = 1


class TopicConfig(NamedTuple):
    """One config of a topic. `default` is the value if no broker synonym is set."""

    name: str
    kind: Kind
    default: Value
    synonyms: tuple[BrokerSynonym, ...]
    limits: Limits
    doc: str
    unit: str = ""

    def parse(self, text: str) -> Value:
        """The value that `text` stands for. Raises ConfigError, in Kafka's words, if it is not a valid value."""
        value = parse_value(self.name, self.kind, text)
        self.limits.check(self.name, value)
        return value


def _replicas_problem(name: str, value: Value) -> str | None:
    """What is wrong with a list of throttled replicas; None for '*' or partition:broker pairs, also empty (KIP-73)."""
    items = value if isinstance(value, tuple) else (str(value),)
    if items == ("*",) or all(re.fullmatch(_REPLICA, item, re.ASCII) for item in items):
        return None
    return (
        f"{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


def _message_format_problem(_name: str, value: Value) -> str | None:
    return (
        None
        if re.fullmatch(_MESSAGE_FORMAT_VERSION, str(value), re.ASCII)
        else f"Version {value} is not a valid version"
    )


def _synonyms(text: str) -> tuple[BrokerSynonym, ...]:
    """The synonyms in a text like 'log.roll.ms log.roll.hours*3600000'."""
    parts = (word.partition("*") for word in text.split())
    return tuple(BrokerSynonym(name, int(factor or 1)) for name, _, factor in parts)


def _row(name: str, kind: Kind, default: Value, synonyms: str, limits: Limits, unit: str, doc: str) -> TopicConfig:
    return TopicConfig(name, kind, default, _synonyms(synonyms), limits, doc, unit)


def _at_least(low: int, high: int | None = None) -> Limits:
    return Limits(at_least=low, at_most=high)


_ROWS: tuple[TopicConfig, ...] = (
    _row("cleanup.policy", Kind.LIST, ("delete",), "log.cleanup.policy", Limits(choices=("compact", "delete")), "",
         "What happens to old segments: delete drops them by age and size, compact keeps the last value of each key; "
         "both may be given together."),
    _row("compression.type", Kind.STRING, "producer", "compression.type",
         Limits(choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), "",
         "How batches are kept: as the producer compressed them (producer), or recompressed on arrival."),
    _row("compression.gzip.level", Kind.INT, -1, "compression.gzip.level", Limits(1, 9, also=(-1,)), "",
         "Level of gzip where the broker compresses; -1 leaves it to the library."),
    _row("compression.lz4.level", Kind.INT, 9, "compression.lz4.level", _at_least(1, 17), "",
         "Level of lz4 where the broker compresses."),
    _row("compression.zstd.level", Kind.INT, 3, "compression.zstd.level", _at_least(-131072, 22), "",
         "Level of zstd where the broker compresses."),
    _row("delete.retention.ms", Kind.LONG, DAY_MS, "log.cleaner.delete.retention.ms", _at_least(0), "ms",
         "How long compaction keeps a tombstone: the time a reader has to go from the start to the end and see it."),
    _row("file.delete.delay.ms", Kind.LONG, 60_000, "log.segment.delete.delay.ms", _at_least(0), "ms",
         "How long a removed segment's files stay on disk for readers that still hold them."),
    _row("flush.messages", Kind.LONG, INT64_MAX, "log.flush.interval.messages", _at_least(1), "messages",
         "fsync after this many messages; 1 means before every ack. In a cluster 1 is the default of topics with more "
         "than one replica, if no flush policy is set."),
    _row("flush.ms", Kind.LONG, INT64_MAX, "log.flush.interval.ms log.flush.scheduler.interval.ms", _at_least(0), "ms",
         "fsync when a message has waited this long; the default leaves it to the operating system."),
    _row("follower.replication.throttled.replicas", Kind.LIST, (), "", Limits(problem=_replicas_problem), "",
         "Replicas whose fetching is throttled on the follower's side: partition:broker pairs, or * for all."),
    _row("index.interval.bytes", Kind.INT, 4096, "log.index.interval.bytes", _at_least(0), "bytes",
         "One index entry for this many bytes of log: smaller finds offsets faster, larger keeps indexes small."),
    _row("leader.replication.throttled.replicas", Kind.LIST, (), "", Limits(problem=_replicas_problem), "",
         "Replicas whose fetching is throttled on the leader's side: partition:broker pairs, or * for all."),
    _row("local.retention.bytes", Kind.LONG, -2, "log.local.retention.bytes", _at_least(-2), "bytes",
         "Tiered storage only: bytes kept on the broker; -2 means retention.bytes. kbroker has no tiered storage."),
    _row("local.retention.ms", Kind.LONG, -2, "log.local.retention.ms", _at_least(-2), "ms",
         "Tiered storage only: time kept on the broker; -2 means retention.ms. kbroker has no tiered storage."),
    _row("max.compaction.lag.ms", Kind.LONG, INT64_MAX, "log.cleaner.max.compaction.lag.ms", _at_least(1), "ms",
         "A message is compacted at the latest this long after it was written."),
    _row("max.message.bytes", Kind.INT, 1048588, "message.max.bytes", _at_least(0), "bytes",
         "Largest record batch taken, as it arrives (compressed if it is). Consumers still get a batch that is larger "
         "than their own limit."),
    _row("message.downconversion.enable", Kind.BOOLEAN, True, "log.message.downconversion.enable", ANYTHING, "",
         "Whether batches are converted for consumers too old for their format; if not they get UNSUPPORTED_VERSION."),
    _row("message.format.version", Kind.STRING, "3.0-IV1", "log.message.format.version",
         Limits(problem=_message_format_problem), "",
         "Kept for old tools and without effect, as in Kafka 3: record batches are always written in format 2."),
    _row("message.timestamp.after.max.ms", Kind.LONG, INT64_MAX, "log.message.timestamp.after.max.ms", _at_least(0),
         "ms", "How far a CreateTime may lie in the future of the broker's clock."),
    _row("message.timestamp.before.max.ms", Kind.LONG, INT64_MAX, "log.message.timestamp.before.max.ms", _at_least(0),
         "ms", "How far a CreateTime may lie behind the broker's clock."),
    _row("message.timestamp.difference.max.ms", Kind.LONG, INT64_MAX, "log.message.timestamp.difference.max.ms",
         _at_least(0), "ms",
         "Older name for both message.timestamp.before.max.ms and message.timestamp.after.max.ms, which win over it."),
    _row("message.timestamp.type", Kind.STRING, "CreateTime", "log.message.timestamp.type",
         Limits(choices=("CreateTime", "LogAppendTime")), "",
         "Whose time a record carries: the producer's (CreateTime) or the broker's on arrival (LogAppendTime)."),
    _row("min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, "log.cleaner.min.cleanable.ratio", _at_least(0, 1), "",
         "Compaction starts when this share of the log has not been compacted yet: lower means more work and less "
         "space spent on old values."),
    _row("min.compaction.lag.ms", Kind.LONG, 0, "log.cleaner.min.compaction.lag.ms", _at_least(0), "ms",
         "A message stays uncompacted at least this long."),
    _row("min.insync.replicas", Kind.INT, 1, "min.insync.replicas", _at_least(1), "",
         "With acks=all, how many replicas in sync it takes to accept a write; fewer give NOT_ENOUGH_REPLICAS."),
    _row("preallocate", Kind.BOOLEAN, False, "log.preallocate", ANYTHING, "",
         "Whether a new segment's file is reserved on disk at full size."),
    _row("remote.log.copy.disable", Kind.BOOLEAN, False, "", ANYTHING, "",
         "Tiered storage only: stop copying to the remote tier. kbroker has no tiered storage."),
    _row("remote.log.delete.on.disable", Kind.BOOLEAN, False, "", ANYTHING, "",
         "Tiered storage only: drop remote data when the topic leaves it. kbroker has no tiered storage."),
    _row("remote.storage.enable", Kind.BOOLEAN, False, "", ANYTHING, "",
         "Tiered storage only; kbroker has none and refuses true."),
    _row("retention.bytes", Kind.LONG, -1, "log.retention.bytes", ANYTHING, "bytes",
         "Size of one partition above which its oldest segments are deleted; -1 sets no limit. Needs cleanup.policy "
         "delete."),
    _row("retention.ms", Kind.LONG, WEEK_MS,
         f"log.retention.ms log.retention.minutes*{MINUTE_MS} log.retention.hours*{HOUR_MS}", _at_least(-1), "ms",
         "Age above which segments are deleted; -1 sets no limit. Needs cleanup.policy delete."),
    _row("segment.bytes", Kind.INT, 1 << 30, "log.segment.bytes", _at_least(14), "bytes",
         "Size at which a segment is closed and the next begun. Retention works on whole segments."),
    _row("segment.index.bytes", Kind.INT, 10 << 20, "log.index.size.max.bytes", _at_least(4), "bytes",
         "Largest offset index of a segment; a full index closes the segment."),
    _row("segment.jitter.ms", Kind.LONG, 0, f"log.roll.jitter.ms log.roll.jitter.hours*{HOUR_MS}", _at_least(0), "ms",
         "Random part taken off segment.ms, so that segments of many partitions do not roll at one moment."),
    _row("segment.ms", Kind.LONG, WEEK_MS, f"log.roll.ms log.roll.hours*{HOUR_MS}", _at_least(1), "ms",
         "Age at which a segment is closed even if it is not full, so that retention can reach its messages."),
    _row("unclean.leader.election.enable", Kind.BOOLEAN, False, "unclean.leader.election.enable", ANYTHING, "",
         "Whether a replica that is not in sync may lead when no other is left: the partition lives, messages may be "
         "lost."),
)  # fmt: skip

TOPIC_CONFIGS: dict[str, TopicConfig] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}

DURABLE_FLUSH_MESSAGES = 1
"""flush.messages of a topic with more than one replica, where no flush policy is set: fsync before each ack."""
FLUSH_POLICIES = (TOPIC_CONFIGS["flush.messages"], TOPIC_CONFIGS["flush.ms"])
"""The configs that say when a log is flushed."""

BrokerValue = Callable[[str], str | None]
"""Name of a broker setting -> its value as text, its default included; None if it has neither."""


def validate_topic_configs(configs: Mapping[str, str | None]) -> dict[str, Value]:
    """Return the parsed values of a topic's own configs.

    Raises ConfigError, with Kafka's message, for the first that is wrong.
    """
    nulls = sorted(name for name, text in configs.items() if text is None)
    if nulls:
        raise ConfigError("Null value not supported for topic configs: " + ",".join(nulls))
    for name in configs:
        if name not in TOPIC_CONFIGS:
            raise ConfigError(f"Unknown topic config name: {name}")
    values = {name: TOPIC_CONFIGS[name].parse(text) for name, text in configs.items() if text is not None}
    smallest, largest = (
        int(values.get(name, TOPIC_CONFIGS[name].default))  # type: ignore[arg-type]
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if smallest > largest:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({smallest}) > max.compaction.lag.ms ({largest})"
        )
    if values.get("remote.storage.enable") is True:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return values


def broker_default(config: TopicConfig, broker_value: BrokerValue) -> Value:
    """The value of `config` for a topic without its own: the first broker synonym that is set, else the default.

    Broker settings were validated when they were read; one that does not parse here is a bug.
    """
    for synonym in config.synonyms:
        text = broker_value(synonym.name)
        if text is not None:
            value = parse_value(synonym.name, config.kind, text)
            return value if synonym.factor == 1 else int(value) * synonym.factor  # type: ignore[arg-type]
    return config.default


def effective_configs(own: Mapping[str, str], broker_value: BrokerValue) -> dict[str, Value]:
    """The effective value of every config of a topic with the configs `own`; unknown names in `own` are ignored."""
    values = {
        name: config.parse(own[name]) if name in own else broker_default(config, broker_value)
        for name, config in TOPIC_CONFIGS.items()
    }
    # The older config for both limits (KIP-937) applies to a limit that has its default.
    for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
        if values[name] == INT64_MAX:
            values[name] = values["message.timestamp.difference.max.ms"]
    return values


def has_flush_policy(own: Container[str], broker_settings: Container[str]) -> bool:
    """Return whether somebody has set when logs are flushed: for a topic, with the configs `own`, or for all."""
    return any(
        config.name in own or any(synonym.name in broker_settings for synonym in config.synonyms)
        for config in FLUSH_POLICIES
    )


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The names that DescribeConfigs lists as synonyms of broker setting `name`, with itself, the strongest first."""
    return _BROKER_SYNONYMS.get(name, (name,))


def _broker_synonym_table(rows: Iterable[TopicConfig]) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for row in rows:
        names = tuple(synonym.name for synonym in row.synonyms)
        if len(names) > 1:
            # Each of them lists all: log.roll.hours has log.roll.ms before itself, as in Kafka.
            table.update(dict.fromkeys(names, names))
    return table


_BROKER_SYNONYMS = _broker_synonym_table(_ROWS)
