"""The client for Kafka and kbroker: producers, consumers and administration, for threads and for asyncio.

Importing this package loads neither asyncio nor ssl nor numpy: a class is loaded when its name is first used.

Every client is built from `network/` (its background thread, its connections, the metadata of its cluster) and from the
options in `config/`. `admin/`, `producer/`, `consumer/`, `connector/` and `aio/` have the clients. The loose modules
import no folder: `errors.py`, `arguments.py` (checks of arguments), `handlers.py` (the base of a producer's handlers)
and `prepared_transaction.py`. Nothing imports this module but users. Read `network/thread.py` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker._core.client.consumer.record import ConsumerRecord as ConsumerRecord
    from kbroker._core.client.consumer.record import UnreadableRecords as UnreadableRecords
    from kbroker._core.client.consumer.records import Records as Records
    from kbroker._core.client.producer.delivery import Deliveries as Deliveries
    from kbroker._core.client.producer.delivery import Delivery as Delivery
    from kbroker.client.admin.admin_client import NEWEST as NEWEST
    from kbroker.client.admin.admin_client import AdminClient as AdminClient
    from kbroker.client.admin.admin_client import AsyncAdminClient as AsyncAdminClient
    from kbroker.client.admin.results import NewTopic as NewTopic
    from kbroker.client.admin.results import TopicPartitionReplica as TopicPartitionReplica
    from kbroker.client.aio.consumer import AsyncConsumer as AsyncConsumer
    from kbroker.client.aio.producer import AsyncProducer as AsyncProducer
    from kbroker.client.aio.producer import TopicNotKnown as TopicNotKnown
    from kbroker.client.assignors.assignor import Assignor as Assignor
    from kbroker.client.assignors.assignor import Member as Member
    from kbroker.client.assignors.assignor import Topics as Topics
    from kbroker.client.config.option_types import ConnectorOptions as ConnectorOptions
    from kbroker.client.config.option_types import ConsumerOptions as ConsumerOptions
    from kbroker.client.config.option_types import NetworkOptions as NetworkOptions
    from kbroker.client.config.option_types import ProducerOptions as ProducerOptions
    from kbroker.client.config.option_types import SimpleConsumerOptions as SimpleConsumerOptions
    from kbroker.client.connector.connector import ConsumerConnector as ConsumerConnector
    from kbroker.client.connector.listener import ConsumerRebalanceListener as ConsumerRebalanceListener
    from kbroker.client.connector.membership import ConsumerRebalanceFailed as ConsumerRebalanceFailed
    from kbroker.client.connector.streams import ConsumerTimeout as ConsumerTimeout
    from kbroker.client.connector.streams import MessageStream as MessageStream
    from kbroker.client.consumer.consumer import Consumer as Consumer
    from kbroker.client.consumer.fetching import EARLIEST as EARLIEST
    from kbroker.client.consumer.fetching import LATEST as LATEST
    from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata as ConsumerGroupMetadata
    from kbroker.client.consumer.group_metadata import OffsetAndMetadata as OffsetAndMetadata
    from kbroker.client.consumer.holdings import RebalanceListener as RebalanceListener
    from kbroker.client.consumer.membership import SubscriptionPattern as SubscriptionPattern
    from kbroker.client.consumer.simple_consumer import FetchFrom as FetchFrom
    from kbroker.client.consumer.simple_consumer import SimpleConsumer as SimpleConsumer
    from kbroker.client.errors import AuthenticationFailed as AuthenticationFailed
    from kbroker.client.errors import BrokerError as BrokerError
    from kbroker.client.errors import ClientClosed as ClientClosed
    from kbroker.client.errors import ClientError as ClientError
    from kbroker.client.errors import CommitFailed as CommitFailed
    from kbroker.client.errors import ConnectionFailed as ConnectionFailed
    from kbroker.client.errors import ForkedClient as ForkedClient
    from kbroker.client.errors import LogTruncated as LogTruncated
    from kbroker.client.errors import MalformedAnswer as MalformedAnswer
    from kbroker.client.errors import PartialFailure as PartialFailure
    from kbroker.client.errors import TimedOut as TimedOut
    from kbroker.client.errors import UsageError as UsageError
    from kbroker.client.handlers import LeavingBatch as LeavingBatch
    from kbroker.client.handlers import ProducerHandler as ProducerHandler
    from kbroker.client.handlers import QueuedRecord as QueuedRecord
    from kbroker.client.prepared_transaction import PreparedTransaction as PreparedTransaction
    from kbroker.client.producer.audit import AuditHandler as AuditHandler
    from kbroker.client.producer.errors import BrokerTooOld as BrokerTooOld
    from kbroker.client.producer.errors import NoSuchPartition as NoSuchPartition
    from kbroker.client.producer.errors import ProducerFenced as ProducerFenced
    from kbroker.client.producer.errors import QueueFull as QueueFull
    from kbroker.client.producer.errors import RecordTooLarge as RecordTooLarge
    from kbroker.client.producer.errors import TransactionAborted as TransactionAborted
    from kbroker.client.producer.errors import TransactionFailed as TransactionFailed
    from kbroker.client.producer.errors import TransactionMustAbort as TransactionMustAbort
    from kbroker.client.producer.producer import Producer as Producer
    from kbroker.errors import ErrorCode as ErrorCode
    from kbroker.errors import KbrokerError as KbrokerError
    from kbroker.model import TopicPartition as TopicPartition

_MODULES = {
    "EARLIEST": "kbroker.client.consumer.fetching",
    "LATEST": "kbroker.client.consumer.fetching",
    "NEWEST": "kbroker.client.admin.admin_client",
    "AdminClient": "kbroker.client.admin.admin_client",
    "Assignor": "kbroker.client.assignors.assignor",
    "AsyncAdminClient": "kbroker.client.admin.admin_client",
    "AsyncConsumer": "kbroker.client.aio.consumer",
    "AsyncProducer": "kbroker.client.aio.producer",
    "AuditHandler": "kbroker.client.producer.audit",
    "AuthenticationFailed": "kbroker.client.errors",
    "BrokerError": "kbroker.client.errors",
    "BrokerTooOld": "kbroker.client.producer.errors",
    "ClientClosed": "kbroker.client.errors",
    "ClientError": "kbroker.client.errors",
    "CommitFailed": "kbroker.client.errors",
    "ConnectionFailed": "kbroker.client.errors",
    "ConnectorOptions": "kbroker.client.config.option_types",
    "Consumer": "kbroker.client.consumer.consumer",
    "ConsumerConnector": "kbroker.client.connector.connector",
    "ConsumerGroupMetadata": "kbroker.client.consumer.group_metadata",
    "ConsumerOptions": "kbroker.client.config.option_types",
    "ConsumerRebalanceFailed": "kbroker.client.connector.membership",
    "ConsumerRebalanceListener": "kbroker.client.connector.listener",
    "ConsumerRecord": "kbroker._core.client.consumer.record",
    "ConsumerTimeout": "kbroker.client.connector.streams",
    "Deliveries": "kbroker._core.client.producer.delivery",
    "Delivery": "kbroker._core.client.producer.delivery",
    "ErrorCode": "kbroker.errors",
    "FetchFrom": "kbroker.client.consumer.simple_consumer",
    "ForkedClient": "kbroker.client.errors",
    "KbrokerError": "kbroker.errors",
    "LeavingBatch": "kbroker.client.handlers",
    "LogTruncated": "kbroker.client.errors",
    "MalformedAnswer": "kbroker.client.errors",
    "Member": "kbroker.client.assignors.assignor",
    "MessageStream": "kbroker.client.connector.streams",
    "NetworkOptions": "kbroker.client.config.option_types",
    "NewTopic": "kbroker.client.admin.results",
    "NoSuchPartition": "kbroker.client.producer.errors",
    "OffsetAndMetadata": "kbroker.client.consumer.group_metadata",
    "PartialFailure": "kbroker.client.errors",
    "PreparedTransaction": "kbroker.client.prepared_transaction",
    "Producer": "kbroker.client.producer.producer",
    "ProducerFenced": "kbroker.client.producer.errors",
    "ProducerHandler": "kbroker.client.handlers",
    "ProducerOptions": "kbroker.client.config.option_types",
    "QueueFull": "kbroker.client.producer.errors",
    "QueuedRecord": "kbroker.client.handlers",
    "RebalanceListener": "kbroker.client.consumer.holdings",
    "RecordTooLarge": "kbroker.client.producer.errors",
    "Records": "kbroker._core.client.consumer.records",
    "SimpleConsumer": "kbroker.client.consumer.simple_consumer",
    "SimpleConsumerOptions": "kbroker.client.config.option_types",
    "SubscriptionPattern": "kbroker.client.consumer.membership",
    "TimedOut": "kbroker.client.errors",
    "TopicNotKnown": "kbroker.client.aio.producer",
    "TopicPartition": "kbroker.model",
    "TopicPartitionReplica": "kbroker.client.admin.results",
    "Topics": "kbroker.client.assignors.assignor",
    "TransactionAborted": "kbroker.client.producer.errors",
    "TransactionFailed": "kbroker.client.producer.errors",
    "TransactionMustAbort": "kbroker.client.producer.errors",
    "UnreadableRecords": "kbroker._core.client.consumer.record",
    "UsageError": "kbroker.client.errors",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "NEWEST",
    "AdminClient",
    "Assignor",
    "AsyncAdminClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AuditHandler",
    "AuthenticationFailed",
    "BrokerError",
    "BrokerTooOld",
    "ClientClosed",
    "ClientError",
    "CommitFailed",
    "ConnectionFailed",
    "ConnectorOptions",
    "Consumer",
    "ConsumerConnector",
    "ConsumerGroupMetadata",
    "ConsumerOptions",
    "ConsumerRebalanceFailed",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "ConsumerTimeout",
    "Deliveries",
    "Delivery",
    "ErrorCode",
    "FetchFrom",
    "ForkedClient",
    "KbrokerError",
    "LeavingBatch",
    "LogTruncated",
    "MalformedAnswer",
    "Member",
    "MessageStream",
    "NetworkOptions",
    "NewTopic",
    "NoSuchPartition",
    "OffsetAndMetadata",
    "PartialFailure",
    "PreparedTransaction",
    "Producer",
    "ProducerFenced",
    "ProducerHandler",
    "ProducerOptions",
    "QueueFull",
    "QueuedRecord",
    "RebalanceListener",
    "RecordTooLarge",
    "Records",
    "SimpleConsumer",
    "SimpleConsumerOptions",
    "SubscriptionPattern",
    "TimedOut",
    "TopicNotKnown",
    "TopicPartition",
    "TopicPartitionReplica",
    "Topics",
    "TransactionAborted",
    "TransactionFailed",
    "TransactionMustAbort",
    "UnreadableRecords",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found
