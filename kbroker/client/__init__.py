"""The client for Kafka and kbroker: producers, consumers and administration, for threads and for asyncio.

Importing it loads neither asyncio nor ssl nor numpy: a class is loaded when it is first asked for. How a client is
built: `thread.py` (its background thread: an asyncio loop whose selector is the compiled pump), `connection.py` (one
connection), `cluster.py` (where everything is). Read `thread.py` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker._core.consumer_record import ConsumerRecord as ConsumerRecord
    from kbroker._core.consumer_records import Records as Records
    from kbroker._core.delivery import Deliveries as Deliveries
    from kbroker._core.delivery import Delivery as Delivery
    from kbroker.client.admin import AdminClient as AdminClient
    from kbroker.client.admin import AsyncAdminClient as AsyncAdminClient
    from kbroker.client.connector.connector import ConsumerConnector as ConsumerConnector
    from kbroker.client.connector.membership import ConsumerRebalanceFailed as ConsumerRebalanceFailed
    from kbroker.client.connector.streams import ConsumerTimeout as ConsumerTimeout
    from kbroker.client.connector.streams import MessageStream as MessageStream
    from kbroker.client.consumer.assignor import Assignor as Assignor
    from kbroker.client.consumer.consumer import Consumer as Consumer
    from kbroker.client.consumer.fetching import EARLIEST as EARLIEST
    from kbroker.client.consumer.fetching import LATEST as LATEST
    from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata as ConsumerGroupMetadata
    from kbroker.client.consumer.holdings import RebalanceListener as RebalanceListener
    from kbroker.client.consumer.offsets import OffsetAndMetadata as OffsetAndMetadata
    from kbroker.client.producer.producer import Producer as Producer
    from kbroker.client.simple_consumer import SimpleConsumer as SimpleConsumer
    from kbroker.model import TopicPartition as TopicPartition

_MODULES = {
    "EARLIEST": "kbroker.client.consumer.fetching",
    "LATEST": "kbroker.client.consumer.fetching",
    "AdminClient": "kbroker.client.admin",
    "Assignor": "kbroker.client.consumer.assignor",
    "Consumer": "kbroker.client.consumer.consumer",
    "AsyncAdminClient": "kbroker.client.admin",
    "ConsumerConnector": "kbroker.client.connector.connector",
    "ConsumerGroupMetadata": "kbroker.client.consumer.group_metadata",
    "ConsumerRebalanceFailed": "kbroker.client.connector.membership",
    "ConsumerRecord": "kbroker._core.consumer_record",
    "ConsumerTimeout": "kbroker.client.connector.streams",
    "Deliveries": "kbroker._core.delivery",
    "Delivery": "kbroker._core.delivery",
    "MessageStream": "kbroker.client.connector.streams",
    "OffsetAndMetadata": "kbroker.client.consumer.offsets",
    "Producer": "kbroker.client.producer.producer",
    "RebalanceListener": "kbroker.client.consumer.holdings",
    "Records": "kbroker._core.consumer_records",
    "SimpleConsumer": "kbroker.client.simple_consumer",
    "TopicPartition": "kbroker.model",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "AdminClient",
    "Assignor",
    "AsyncAdminClient",
    "Consumer",
    "ConsumerConnector",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceFailed",
    "ConsumerRecord",
    "ConsumerTimeout",
    "Deliveries",
    "Delivery",
    "MessageStream",
    "OffsetAndMetadata",
    "Producer",
    "RebalanceListener",
    "Records",
    "SimpleConsumer",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found
