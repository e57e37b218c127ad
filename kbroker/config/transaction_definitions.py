"""The settings of transactions."""

from __future__ import annotations

from kbroker.config.setting import DAY_MS, HOUR_MS, MIB, Setting
from kbroker.rules.config_values import Kind, Limits

TRANSACTIONS = (
    Setting(
        "transaction.max.timeout.ms",
        Kind.INT,
        900000,
        "The longest time that a producer may ask for its transactions; it is refused beyond.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "kbroker.transactional.ids.max",
        Kind.INT,
        100_000,
        "The most transactional ids that this broker coordinates. A new one beyond is POLICY_VIOLATION. Clients of "
        "one host make at most half of them. Those that nobody uses go after transactional.id.expiration.ms.",
        limits=Limits(1),
    ),
    Setting(
        "transactional.id.expiration.ms",
        Kind.INT,
        7 * DAY_MS,
        "How long a transactional id is known after its last transaction.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10000,
        "How often transactions that have been open for longer than their producer allowed are looked for and aborted.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        HOUR_MS,
        "How often transactional ids that have expired are looked for.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "Whether the first batch of a transaction in a partition is refused unless the partition was added to the "
        "transaction (KIP-890): a batch that comes late would leave a transaction that nobody ends.",
        dynamic=True,
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        Kind.INT,
        100,
        "How long a batch that begins a transaction waits for the markers of the one before, of clients of version 2 "
        "(KIP-890), before its client is told to try again.",
        unit="milliseconds",
        limits=Limits(0),
    ),
    Setting(
        "request.timeout.ms",
        Kind.INT,
        30000,
        "How long a change of a transaction waits for the replicas of its partition, and for the answers of other "
        "brokers that take part in it.",
        unit="milliseconds",
        limits=Limits(1),
    ),
    Setting(
        "transaction.state.log.num.partitions",
        Kind.INT,
        50,
        "Partitions of __transaction_state; not to be changed once the topic exists.",
        limits=Limits(1),
    ),
    Setting(
        "transaction.state.log.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of __transaction_state. On a member of a cluster: if this is set, the topic is not made before so "
        "many brokers are registered; if not, it gets 3, or as many as there are brokers. A broker that is alone "
        "makes 1.",
        limits=Limits(1),
    ),
    Setting(
        "transaction.state.log.min.isr",
        Kind.INT,
        2,
        "min.insync.replicas of __transaction_state; never more than it has replicas when it is created.",
        limits=Limits(1),
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        100 * MIB,
        "log.segment.bytes of __transaction_state.",
        unit="bytes",
        limits=Limits(14),
    ),
    Setting(
        "transaction.state.log.load.buffer.size",
        Kind.INT,
        5 * MIB,
        "Bytes read at a time when transactions are loaded.",
        unit="bytes",
        limits=Limits(1),
    ),
)
