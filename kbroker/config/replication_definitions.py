"""The settings of replication between the brokers of a cluster: part of the table in `definitions.py`."""

from __future__ import annotations

from kbroker.config.setting import MIB, Setting
from kbroker.rules.config_values import INT64_MAX, Kind, Limits

REPLICATION = (
    Setting(
        "num.replica.fetchers",
        Kind.INT,
        1,
        "How many threads fetch from each leader the partitions that this broker follows.",
        limits=Limits(1),
    ),
    Setting(
        "replica.fetch.max.bytes",
        Kind.INT,
        MIB,
        "How much of one partition a follower asks for at once. A first batch that is larger comes whole.",
        unit="bytes",
        limits=Limits(0),
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10 * MIB,
        "How much of all partitions together a follower asks a leader for at once.",
        unit="bytes",
        limits=Limits(0),
    ),
    Setting(
        "replica.fetch.min.bytes",
        Kind.INT,
        1,
        "A leader waits until it has so much for a follower, or until replica.fetch.wait.max.ms have passed.",
        unit="bytes",
        limits=Limits(0),
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        500,
        "How long a leader waits for records before it answers a follower without any.",
        unit="milliseconds",
        limits=Limits(0),
    ),
    Setting(
        "replica.fetch.backoff.ms",
        Kind.INT,
        1000,
        "The pause of a follower after an error.",
        unit="milliseconds",
        limits=Limits(0),
    ),
    Setting(
        "replica.socket.timeout.ms",
        Kind.INT,
        30000,
        "How long a follower waits for a leader's answer, beyond replica.fetch.wait.max.ms.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "leader.replication.throttled.rate",
        Kind.LONG,
        INT64_MAX,
        "What followers that are not in sync may copy from this broker, of the topics' "
        "leader.replication.throttled.replicas. Meant to be set while replicas are moved.",
        unit="bytes a second",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "follower.replication.throttled.rate",
        Kind.LONG,
        INT64_MAX,
        "What this broker may copy from leaders while it is not in sync, of the topics' "
        "follower.replication.throttled.replicas. Meant to be set while replicas are moved.",
        unit="bytes a second",
        dynamic=True,
        limits=Limits(0),
    ),
    Setting(
        "replication.quota.window.num",
        Kind.INT,
        11,
        "Of how many windows the rate is measured that a throttle of replication limits.",
        limits=Limits(1),
    ),
    Setting(
        "replication.quota.window.size.seconds",
        Kind.INT,
        1,
        "How long each of these windows is.",
        unit="seconds",
        limits=Limits(1),
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Kind.LONG,
        INT64_MAX,
        "What is copied of replicas that move to another log directory of their broker.",
        unit="bytes a second",
        dynamic=True,
        limits=Limits(0),
    ),
)
