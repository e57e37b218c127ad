"""The APIs of a cluster."""

from __future__ import annotations

from kbroker.protocol.api import ApiKey

BETWEEN_BROKERS = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
)
"""What only the brokers of a cluster ask each other. A Kafka advertises them in ZooKeeper mode only."""
