"""The transaction coordinator's answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.model import NO_PRODUCER_ID, TopicPartition
from kbroker.rules.transaction import NO_PRODUCER_EPOCH


class InitializedProducer(NamedTuple):
    """The answer to InitProducerId."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class EndedTransaction(NamedTuple):
    """The answer to EndTxn for a client that gets a new epoch: the producer id and epoch of its next transaction."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class DescribedTransaction(NamedTuple):
    """A transactional id as DescribeTransactions shows it."""

    error: ErrorCode
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: Collection[TopicPartition] = ()
    """The transaction's partitions; while markers are being written, only those that still wait for theirs."""


class ListedTransaction(NamedTuple):
    """A transactional id as ListTransactions shows it."""

    transactional_id: str
    producer_id: int
    state: str
