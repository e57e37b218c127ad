"""The settings of a member of a cluster of brokers: part of the table in `definitions.py`."""

from __future__ import annotations

from kbroker.config.setting import Setting
from kbroker.rules.config_values import Kind, Limits

CLUSTER = (
    Setting(
        "broker.id.generation.enable",
        Kind.BOOLEAN,
        True,
        "Whether a member without broker.id gets an id from ZooKeeper, above reserved.broker.max.id.",
    ),
    Setting(
        "reserved.broker.max.id",
        Kind.INT,
        1000,
        "The highest broker.id that may be given while ids are generated too.",
        limits=Limits(0),
    ),
    Setting(
        "inter.broker.protocol.version",
        Kind.STRING,
        "3.9-IV0",
        "The version of Kafka whose requests the members send each other. kbroker speaks 3.9: a cluster that it joins "
        "has been upgraded to it.",
        limits=Limits(choices=("3.9", "3.9-IV0")),
    ),
    Setting(
        "control.plane.listener.name",
        Kind.STRING,
        None,
        "The listener on which members take requests of the controller. Unset: inter.broker.listener.name.",
    ),
    Setting(
        "replica.selector.class",
        Kind.STRING,
        None,
        "Which replica consumers are told to fetch from. RackAwareReplicaSelector, also with Kafka's package before "
        "it: one in their own rack (client.rack, broker.rack), if there is one in the ISR. Unset, or LeaderSelector: "
        "the leader.",
        limits=Limits(
            choices=(
                "org.apache.kafka.common.replica.RackAwareReplicaSelector",
                "RackAwareReplicaSelector",
                "org.apache.kafka.common.replica.LeaderSelector",
                "LeaderSelector",
            )
        ),
    ),
    Setting(
        "controlled.shutdown.enable",
        Kind.BOOLEAN,
        True,
        "Whether a member that stops first has the controller move the leadership of its partitions away.",
    ),
    Setting(
        "controlled.shutdown.max.retries",
        Kind.INT,
        3,
        "How often the controller is asked for that before the broker stops all the same.",
        limits=Limits(1),
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        Kind.LONG,
        5000,
        "The pause before the controller is asked again.",
        unit="milliseconds",
        limits=Limits(0),
    ),
    Setting(
        "controller.socket.timeout.ms",
        Kind.INT,
        30_000,
        "How long one request to the controller may take.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "auto.leader.rebalance.enable",
        Kind.BOOLEAN,
        True,
        "Whether the controller gives leadership back to preferred replicas by itself.",
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        Kind.INT,
        10,
        "The share of a broker's preferred partitions that others may lead before it gets them back.",
        unit="percent",
        limits=Limits(0, 100),
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        Kind.LONG,
        300,
        "How often the controller looks for such brokers.",
        unit="seconds",
        limits=Limits(1),
    ),
    Setting(
        "replica.lag.time.max.ms",
        Kind.LONG,
        30_000,
        "A follower that has not caught up with its leader for so long leaves the ISR.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5000,
        "How often high watermarks are written to disk.",
        unit="milliseconds",
        limits=Limits(1),
    ),
)
