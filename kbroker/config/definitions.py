"""Every setting that kbroker reads. `docs/CONFIG.md` is made from this table.

Names are Kafka's; settings that Kafka does not have begin with `kbroker.`. The names of Kafka 0.7 and 0.8 are aliases.
`not_read.py` has Kafka's other settings, and why they are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.config.cluster_definitions import CLUSTER
from kbroker.config.compaction_definitions import COMPACTION
from kbroker.config.group_definitions import GROUPS
from kbroker.config.listeners import counts_problem
from kbroker.config.log_definitions import LOG
from kbroker.config.operation_definitions import OPERATION
from kbroker.config.replication_definitions import REPLICATION
from kbroker.config.setting import DAY_MS, MIB, Alias, Setting
from kbroker.config.transaction_definitions import TRANSACTIONS
from kbroker.config.zookeeper_definitions import ZOOKEEPER
from kbroker.rules.config_values import INT32_MAX, Kind, Limits

DEFAULT_NODE_ID = 1

BOOLEAN, STRING, INT, LONG = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.LONG

IDENTITY = (
    Setting(
        "broker.id",
        INT,
        -1,
        "The number of this broker, unique in its cluster. -1: the one its data directory was made with. Where there "
        "is none, a broker that is alone is 1, and a member of a cluster gets one from ZooKeeper "
        "(broker.id.generation.enable).",
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
    Setting(
        "broker.rack",
        STRING,
        None,
        "The rack or zone of this broker. Replicas of a partition are placed in different racks; with "
        "replica.selector.class consumers read from a replica in theirs.",
    ),
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
        4096,
        "Connections that the system holds for a listener until they are accepted, at most its own net.core.somaxconn. "
        "One that comes while as many wait is tried again by its client after a second.",
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
        "Fetch sessions (KIP-227) that are remembered, each of at most 10,000 partitions, all together of 100 for each "
        "of them; 0 turns sessions off. Where there is no room, a host that has more than half gives to the others.",
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
        "Replicas of a topic that is created without a count. It is refused while there are fewer brokers.",
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
        "kbroker.response.max.bytes",
        INT,
        100 * MIB,
        "The most bytes that an answer may have, those to Fetch excepted. Who asks for more is told INVALID_REQUEST.",
        unit="bytes",
        limits=Limits(64 << 10),
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
        "kbroker.producers.max.bytes",
        LONG,
        256 * MIB,
        "Memory in which all partitions together remember idempotent producers, some 300 bytes for each and partition. "
        "Where it is used up, a partition with 48 of them or more forgets those that have been silent for longest, "
        "about half of them at once, as if producer.id.expiration.ms were over for them.",
        unit="bytes",
        limits=Limits(0),
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

SECTIONS: dict[str, tuple[Setting, ...]] = {
    "Identity": IDENTITY,
    "Listeners": LISTENERS,
    "Server": SERVER,
    "Topics and messages": TOPICS,
    "Log": LOG,
    "Compaction": COMPACTION,
    "Replication": REPLICATION,
    "Groups and offsets": GROUPS,
    "Transactions": TRANSACTIONS,
    "ZooKeeper": ZOOKEEPER,
    "Cluster": CLUSTER,
    "Operation": OPERATION,
}


def _all() -> Iterator[Setting]:
    for section in SECTIONS.values():
        yield from section


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _all()}
ALIASES: dict[str, tuple[Setting, int]] = {
    alias.name: (setting, alias.factor) for setting in _all() for alias in setting.aliases
}
