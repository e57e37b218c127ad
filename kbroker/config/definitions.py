"""Every setting that kbroker reads. `docs/CONFIG.md` is made from this table.

Names are Kafka's; `kbroker.` only stands before what Kafka has no name for. Names of 0.7 and 0.8 are aliases.
What other names Kafka has, and why they are not read here, is in `not_read.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.config.compaction_definitions import COMPACTION
from kbroker.config.listeners import counts_problem
from kbroker.config.setting import Alias, Setting
from kbroker.rules.config_values import INT32_MAX, INT64_MAX, Kind, Limits

DEFAULT_NODE_ID = 1
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
MIB = 1024 * 1024

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.SHORT,
    Kind.LONG,
    Kind.DOUBLE,
    Kind.LIST,
)

IDENTITY = (
    Setting(
        "broker.id",
        INT,
        -1,
        "The number of this broker, unique in its cluster. -1: the one its data directory was made with, else 1.",
        aliases=(Alias("brokerid"),),
        limits=Limits(-1),
    ),
    Setting(
        "node.id",
        INT,
        -1,
        "The same as broker.id, by its newer name; both may be given if they agree.",
        limits=Limits(-1),
    ),
    Setting("broker.rack", STRING, None, "The rack or zone of this broker, told to clients in metadata."),
)

LISTENERS = (
    Setting(
        "listeners",
        STRING,
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on: NAME://HOST:PORT, separated by commas. An empty host or 0.0.0.0 is every IPv4 "
        "interface, [::] every interface; port 0 lets the system pick one. A name is a security protocol or one that "
        "listener.security.protocol.map maps to one.",
        kafka_default="PLAINTEXT://:9092",
    ),
    Setting(
        "advertised.listeners",
        STRING,
        None,
        "Addresses told to clients, in the form of listeners. Listeners that are not named here advertise the address "
        "that the client connected to.",
    ),
    Setting(
        "listener.security.protocol.map",
        STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The security protocol of each listener name: NAME:PROTOCOL, separated by commas.",
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "The listener that other brokers connect to. Unset: the one of security.inter.broker.protocol.",
    ),
    Setting(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "The security protocol between brokers when inter.broker.listener.name is not set.",
        limits=Limits(choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    ),
    Setting(
        "controller.listener.names",
        STRING,
        None,
        "Listeners of a KRaft controller. kbroker has none: listeners named here are not opened.",
    ),
    Setting(
        "port",
        INT,
        None,
        "The port when listeners is not set (0.7 to 2.x).",
        unit="port",
        limits=Limits(0, 65535),
    ),
    Setting(
        "host.name",
        STRING,
        None,
        "The host to listen on when listeners is not set (0.8 to 2.x).",
    ),
    Setting(
        "advertised.host.name",
        STRING,
        None,
        "The host told to clients when advertised.listeners is not set (0.8 to 2.x).",
        aliases=(Alias("hostname"),),
    ),
    Setting(
        "advertised.port",
        INT,
        None,
        "The port told to clients when advertised.listeners is not set (0.8 to 2.x).",
        unit="port",
        limits=Limits(0, 65535),
    ),
)

SERVER = (
    Setting(
        "num.network.threads",
        INT,
        2,
        "Processors: threads that read requests, answer most of them and write responses.",
        aliases=(Alias("num.threads"),),
        kafka_default="3",
        limits=Limits(1, 1024),
    ),
    Setting(
        "num.io.threads",
        INT,
        4,
        "Request handlers: threads for the requests that may block.",
        kafka_default="8",
        limits=Limits(1, 1024),
    ),
    Setting(
        "queued.max.requests",
        INT,
        500,
        "Requests that may wait for a handler before processors stop reading.",
        limits=Limits(1),
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        -1,
        "SO_SNDBUF of each connection; -1 leaves it to the system.",
        unit="bytes",
        aliases=(Alias("socket.send.buffer"),),
        kafka_default="102400",
        limits=Limits(1, also=(-1,)),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        -1,
        "SO_RCVBUF of each connection; -1 leaves it to the system.",
        unit="bytes",
        aliases=(Alias("socket.receive.buffer"),),
        kafka_default="102400",
        limits=Limits(1, also=(-1,)),
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        100 * MIB,
        "The largest request. A longer length field closes its connection.",
        unit="bytes",
        aliases=(Alias("max.socket.request.bytes"),),
        limits=Limits(1),
    ),
    Setting(
        "socket.listen.backlog.size",
        INT,
        50,
        "Connections that the system holds for a listener until they are accepted.",
        limits=Limits(1),
    ),
    Setting(
        "max.connections",
        INT,
        INT32_MAX,
        "Open connections on all listeners together; further ones are closed at once.",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        INT32_MAX,
        "Open connections of one address; further ones are closed at once.",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "max.connections.per.ip of single addresses, or of all that a name stands for when it is set: HOST:COUNT, "
        "separated by commas.",
        dynamic=True,
        limits=Limits(problem=counts_problem),
        form="HOST:COUNT pairs, separated by commas",
    ),
    Setting(
        "connections.max.idle.ms",
        LONG,
        600000,
        "A connection without a request for so long is closed; -1: never.",
        unit="milliseconds",
        limits=Limits(1, also=(-1,)),
    ),
    Setting(
        "fetch.max.bytes",
        INT,
        55 * MIB,
        "The most bytes in one Fetch response.",
        unit="bytes",
        limits=Limits(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Fetch sessions (KIP-227) that are remembered; 0 turns sessions off.",
        limits=Limits(0),
    ),
    Setting(
        "max.request.partition.size.limit",
        INT,
        2000,
        "The most partitions in one DescribeTopicPartitions response.",
        limits=Limits(1),
    ),
)

TOPICS = (
    Setting(
        "num.partitions",
        INT,
        1,
        "Partitions of a topic that is created without a count.",
        limits=Limits(1),
    ),
    Setting("auto.create.topics.enable", BOOLEAN, True, "Whether a topic is created when a client first names it."),
    Setting("delete.topic.enable", BOOLEAN, True, "Whether topics can be deleted."),
    Setting(
        "default.replication.factor",
        INT,
        1,
        "Replicas of a topic that is created without a count; never more than there are brokers.",
        limits=Limits(1, 32767),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "Replicas that must have a message before acks=all is answered.",
        dynamic=True,
        limits=Limits(1),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "The codec messages are stored in; producer keeps what the producer chose.",
        dynamic=True,
        limits=Limits(choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        -1,
        "Level when the broker compresses with gzip; -1 is the library's choice.",
        dynamic=True,
        limits=Limits(1, 9, also=(-1,)),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        9,
        "Level when the broker compresses with lz4.",
        dynamic=True,
        limits=Limits(1, 17),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        3,
        "Level when the broker compresses with zstd.",
        dynamic=True,
        limits=Limits(-131072, 22),
    ),
    Setting(
        "message.max.bytes",
        INT,
        1048588,
        "The largest record batch, as it is on the wire.",
        unit="bytes",
        dynamic=True,
        aliases=(Alias("max.message.size"),),
        limits=Limits(0),
    ),
    Setting(
        "kbroker.inflated.batch.max.bytes",
        INT,
        128 * MIB,
        "The most bytes that one compressed batch may inflate to; a larger one is refused.",
        unit="bytes",
        limits=Limits(1),
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        DAY_MS,
        "How long the sequence of an idle idempotent producer is remembered.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(1),
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        INT,
        600000,
        "How often idle producers are looked for.",
        unit="milliseconds",
        limits=Limits(1),
    ),
)

LOG = (
    Setting(
        "log.dirs",
        STRING,
        None,
        "Directories for the logs, separated by commas; a new partition goes to the one with the fewest. "
        "Unset: log.dir.",
    ),
    Setting(
        "log.dir",
        STRING,
        "~/.local/share/kbroker",
        "The directory for the logs when log.dirs is not set.",
        kafka_default="/tmp/kafka-logs",
    ),
    Setting(
        "log.segment.bytes",
        INT,
        1024 * MIB,
        "A segment is closed and a new one begun when it would grow beyond this.",
        unit="bytes",
        dynamic=True,
        aliases=(Alias("log.file.size"),),
        limits=Limits(14),
    ),
    Setting(
        "log.roll.ms",
        LONG,
        None,
        "A segment whose first message is this old is closed. Unset: log.roll.hours.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(1),
    ),
    Setting(
        "log.roll.hours",
        INT,
        168,
        "log.roll.ms in hours, when that is not set.",
        unit="hours",
        limits=Limits(1),
    ),
    Setting(
        "log.roll.jitter.ms",
        LONG,
        None,
        "At most this is taken off log.roll.ms, at random for each partition, so that not all roll at once. "
        "Unset: log.roll.jitter.hours.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.roll.jitter.hours",
        INT,
        0,
        "log.roll.jitter.ms in hours, when that is not set.",
        unit="hours",
        limits=Limits(0),
    ),
    Setting(
        "log.retention.ms",
        LONG,
        None,
        "Segments whose newest message is older are deleted; -1: never. Unset: log.retention.minutes.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(1, also=(-1,)),
    ),
    Setting(
        "log.retention.minutes",
        INT,
        None,
        "log.retention.ms in minutes, when that is not set. Unset: log.retention.hours.",
        unit="minutes",
        limits=Limits(1, also=(-1,)),
    ),
    Setting(
        "log.retention.hours",
        INT,
        168,
        "log.retention.ms in hours, when neither that nor log.retention.minutes is set.",
        unit="hours",
        limits=Limits(1, also=(-1,)),
    ),
    Setting(
        "log.retention.bytes",
        LONG,
        -1,
        "A partition's oldest segments are deleted while it is larger than this; -1: no limit.",
        unit="bytes",
        dynamic=True,
        aliases=(Alias("log.retention.size"),),
        limits=Limits(-1),
    ),
    Setting(
        "log.retention.check.interval.ms",
        LONG,
        300000,
        "How often segments are looked at for deletion.",
        unit="milliseconds",
        aliases=(Alias("log.cleanup.interval.mins", 60000),),
        limits=Limits(1),
    ),
    Setting(
        "log.segment.delete.delay.ms",
        LONG,
        60000,
        "How long a deleted segment's files are kept, renamed, before they are removed.",
        unit="milliseconds",
        dynamic=True,
        aliases=(Alias("log.delete.delay.ms"),),
        limits=Limits(0),
    ),
    Setting(
        "log.cleanup.policy",
        LIST,
        ("delete",),
        "What becomes of old segments: delete them, compact them by key, or both.",
        dynamic=True,
        limits=Limits(choices=("compact", "delete")),
    ),
    Setting(
        "log.flush.interval.messages",
        LONG,
        INT64_MAX,
        "At most so many messages of a partition are not yet on the disk: the one that reaches the count waits for the "
        "flush. 1: every acknowledged message has been flushed.",
        unit="messages",
        dynamic=True,
        aliases=(Alias("log.flush.interval"),),
        limits=Limits(1),
    ),
    Setting(
        "log.flush.interval.ms",
        LONG,
        None,
        "The longest time before a message is flushed. Unset: log.flush.scheduler.interval.ms.",
        unit="milliseconds",
        dynamic=True,
        aliases=(Alias("log.default.flush.interval.ms"),),
        limits=Limits(0),
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        INT64_MAX,
        "How often partitions are looked at for messages that are due to be flushed.",
        unit="milliseconds",
        aliases=(Alias("log.default.flush.scheduler.interval.ms"),),
        limits=Limits(1),
    ),
    Setting(
        "log.flush.visibility",
        STRING,
        "appended",
        "Which messages consumers see: all that were appended, or only flushed ones.",
        limits=Limits(choices=("appended", "flushed")),
    ),
    Setting(
        "kbroker.flush.threads",
        INT,
        8,
        "Threads that flush, for each log directory; partitions that wait are flushed in parallel.",
        limits=Limits(1, 256),
    ),
    Setting(
        "kbroker.open.segments.max",
        INT,
        4000,
        "Closed segments whose files are kept open and mapped; the least used are closed first. Fewer where the process may "
        "have few descriptors (ulimit -n).",
        limits=Limits(1, 60000),
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60000,
        "How often it is written down up to where each log is flushed.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60000,
        "How often it is written down where each log starts.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "log.index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two entries of its index.",
        unit="bytes",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.index.size.max.bytes",
        INT,
        10 * MIB,
        "The size of an index file at most; a segment whose index is full is closed.",
        unit="bytes",
        dynamic=True,
        limits=Limits(4),
    ),
    Setting(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose time a message carries: the producer's or that of its append.",
        dynamic=True,
        limits=Limits(choices=("CreateTime", "LogAppendTime")),
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        LONG,
        INT64_MAX,
        "How far a producer's timestamp may lie in the past.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.message.timestamp.difference.max.ms",
        LONG,
        INT64_MAX,
        "Both log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms, which win over it "
        "(0.10 to 3.x).",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        LONG,
        INT64_MAX,
        "How far a producer's timestamp may lie in the future.",
        unit="milliseconds",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "log.preallocate",
        BOOLEAN,
        False,
        "Whether a new segment's file is allocated whole.",
        dynamic=True,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        "Threads that recover the logs of one directory after an unclean stop.",
        kafka_default="1",
        limits=Limits(1, 1024),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader when no other is left; messages may be lost then.",
        dynamic=True,
    ),
)

GROUPS = (
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        0,
        "How long an empty group waits for more members after the first one joins.",
        unit="milliseconds",
        kafka_default="3000",
        limits=Limits(0),
    ),
    Setting(
        "group.min.session.timeout.ms",
        INT,
        6000,
        "The shortest session timeout that a member may ask for.",
        unit="milliseconds",
        limits=Limits(0),
    ),
    Setting(
        "group.max.session.timeout.ms",
        INT,
        1800000,
        "The longest session timeout that a member may ask for.",
        unit="milliseconds",
        limits=Limits(0),
    ),
    Setting(
        "group.max.size",
        INT,
        INT32_MAX,
        "The most members of one group.",
        limits=Limits(1),
    ),
    Setting(
        "offset.metadata.max.bytes",
        INT,
        4096,
        "The longest text that may be stored with an offset.",
        unit="bytes",
        limits=Limits(0),
    ),
    Setting(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets; not to be changed once the topic exists.",
        limits=Limits(1),
    ),
    Setting(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        "Replicas of __consumer_offsets; never more than there are brokers when it is created.",
        limits=Limits(1),
    ),
    Setting(
        "offsets.topic.segment.bytes",
        INT,
        100 * MIB,
        "log.segment.bytes of __consumer_offsets.",
        unit="bytes",
        limits=Limits(14),
    ),
    Setting(
        "offsets.topic.compression.codec",
        INT,
        0,
        "Codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        limits=Limits(0, 4),
    ),
    Setting(
        "offsets.load.buffer.size",
        INT,
        5 * MIB,
        "Bytes read at a time when offsets are loaded.",
        unit="bytes",
        limits=Limits(1),
    ),
    Setting(
        "offsets.retention.minutes",
        INT,
        10080,
        "How long offsets are kept after their group has become empty.",
        unit="minutes",
        limits=Limits(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        600000,
        "How often expired offsets are looked for.",
        unit="milliseconds",
        limits=Limits(1),
    ),
)

OPERATION = (
    Setting(
        "kbroker.http.address",
        STRING,
        "",
        "HOST:PORT to serve /metrics, /health and /ready on, without authentication. Empty: not served; "
        "port 0 lets the system pick one.",
    ),
    Setting(
        "kbroker.stop.timeout.ms",
        INT,
        10000,
        "How long a clean stop may take; what is not flushed then is recovered at the next start.",
        unit="milliseconds",
        limits=Limits(0),
    ),
)

SECTIONS: dict[str, tuple[Setting, ...]] = {
    "Identity": IDENTITY,
    "Listeners": LISTENERS,
    "Server": SERVER,
    "Topics and messages": TOPICS,
    "Log": LOG,
    "Compaction": COMPACTION,
    "Groups and offsets": GROUPS,
    "Operation": OPERATION,
}


def _all() -> Iterator[Setting]:
    for section in SECTIONS.values():
        yield from section


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _all()}
ALIASES: dict[str, tuple[Setting, int]] = {
    alias.name: (setting, alias.factor) for setting in _all() for alias in setting.aliases
}
