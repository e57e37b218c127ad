"""The markers that are written to the partitions of a transaction when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import EPOCH_VERSION, FIRST_VERSION, Transaction, Transit


class Marker(NamedTuple):
    """A marker, which ends a producer's transaction in a partition. A coordinator of `coordinator_epoch` writes it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    client_version: int = FIRST_VERSION

    @property
    def bumped(self) -> bool:
        """Whether the marker's producer epoch is one more than that of the transaction's records (KIP-890)."""
        return self.client_version >= EPOCH_VERSION


class MarkerWriter(Protocol):
    """Writes markers to partitions. May be used by any thread."""

    def write(self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Append `marker` to `partition`. Never raises.

        `done` is called once with the outcome, perhaps before this returns: NONE when the marker is as durable as
        acks=all promises, UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist any more.
        """
        ...


SETTLED = frozenset(
    (
        ErrorCode.NONE,
        # The partition was deleted, with everything that the transaction wrote to it.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        # The partition's message format has no transactions, so none can have been written to it.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        # The partition knows a newer epoch of the producer: the transaction has ended there.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
)
"""Outcomes after which a partition does not need the marker any more."""


class Ending:
    """A transaction whose markers are being written. Guarded by its shard's lock."""

    __slots__ = ("marker", "remaining", "reported", "transaction", "transit")

    def __init__(self, transaction: Transaction, transit: Transit, marker: Marker):
        self.transaction = transaction
        self.transit = transit
        """The change of the transactional id once all markers are written."""
        self.marker = marker
        self.remaining = set(transaction.partitions)
        """Partitions that wait for their marker."""
        self.reported: set[tuple[TopicPartition, ErrorCode]] = set()
        """Why markers had to be tried again, as far as the log says it already."""
