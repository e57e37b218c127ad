"""The settings of a member's session with ZooKeeper."""

from __future__ import annotations

from kbroker.config.setting import Alias, Setting
from kbroker.rules.config_values import Kind, Limits

ZOOKEEPER = (
    Setting(
        "zookeeper.connect",
        Kind.STRING,
        None,
        "The ZooKeeper whose cluster this broker is a member of (docs/ZOOKEEPER.md): HOST:PORT, several separated by "
        "commas, a chroot behind the last. Unset: the broker is alone, and needs none.",
        aliases=(Alias("zk.connect"),),
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        Kind.INT,
        18000,
        "How long ZooKeeper keeps the registration of a broker that it hears nothing from.",
        unit="milliseconds",
        aliases=(Alias("zk.sessiontimeout.ms"),),
        limits=Limits(1),
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        Kind.INT,
        None,
        "How long a start waits for ZooKeeper before it fails. Unset: zookeeper.session.timeout.ms.",
        unit="milliseconds",
        aliases=(Alias("zk.connectiontimeout.ms"),),
        limits=Limits(1),
    ),
    Setting(
        "enable.zookeeper",
        Kind.BOOLEAN,
        True,
        "Whether zookeeper.connect is used (0.7).",
    ),
)
