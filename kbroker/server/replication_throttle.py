"""The limits on what is copied between brokers, as settings of the broker (KIP-73)."""

from __future__ import annotations

from kbroker._core.base.throttle import Throttle
from kbroker.config.broker_config import BrokerConfig

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


def replication_throttle(config: BrokerConfig, rate: str) -> Throttle:
    """Return a throttle with the limit that setting `rate` gives."""
    throttle = Throttle(config["replication.quota.window.num"], config["replication.quota.window.size.seconds"] * 1000)
    throttle.rate = config[rate]
    return throttle
