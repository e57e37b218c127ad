"""The settings of replication between the brokers of a cluster: part of the table in `definitions.py`."""

from __future__ import annotations

from kbroker.config.setting import MIB, Setting
from kbroker.rules.config_values import Kind, Limits

REPLICATION = (
    Setting(
        "num.replica.fetchers",
        Kind.INT,
        1,
        "How many threads fetch the partitions that this broker follows. Each serves all leaders.",
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
)
