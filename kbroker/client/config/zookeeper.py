"""Options of a client that looks for its brokers in a ZooKeeper."""

from __future__ import annotations

from kbroker.client.config.kinds import text, whole
from kbroker.client.config.option import Option, table_of

TIMEOUT_MS = whole(1_000, 1 << 31)

ZOOKEEPER = table_of(
    Option(
        "zookeeper.connect",
        text,
        "",
        "the ZooKeeper that brokers are registered in, HOST:PORT,.../CHROOT; instead of bootstrap.servers",
        ("zk.connect",),
    ),
    Option(
        "zookeeper.session.timeout.ms",
        TIMEOUT_MS,
        6_000,
        "ZooKeeper believes the client dead when it has heard nothing of it for so long",
        ("zk.sessiontimeout.ms",),
    ),
    Option(
        "zookeeper.connection.timeout.ms",
        TIMEOUT_MS,
        None,
        "how long the first connection to ZooKeeper may take; zookeeper.session.timeout.ms if not given",
        ("zk.connectiontimeout.ms",),
    ),
)
