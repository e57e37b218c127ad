"""Options of the simple consumer: those of every client, and some of the consumer's."""

from __future__ import annotations

from kbroker.client.config.consumer import CONSUMER
from kbroker.client.config.network import NETWORK

SIMPLE_CONSUMER = NETWORK | {
    name: CONSUMER[name] for name in ("isolation.level", "inflated.max.bytes", "check.crcs", "client.rack")
}
