"""What is written to the partitions of a transaction when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import EPOCH_VERSION, FIRST_VERSION, Transaction, Transit


class Marker(NamedTuple):
    """The end of a producer's transaction, by the word of a coordinator in its epoch."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    client_version: int = FIRST_VERSION

    @property
    def bumped(self) -> bool:
        """Whether its epoch is one more than that of the transaction's records (KIP-890)."""
        return self.client_version >= EPOCH_VERSION


class MarkerWriter(Protocol):
    """Writes markers to the partitions that they are for. Any thread."""

    def write(self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Appends `marker` to `partition`. Never raises.

        `done` is told once how that ended, perhaps before this returns: NONE when the marker is as durable as the
        partition's flush policy asks for; UNKNOWN_TOPIC_OR_PARTITION when there is no such partition any more.
        """
        ...


SETTLED = frozenset(
    (
        ErrorCode.NONE,
        # The partition was deleted, and what the transaction wrote to it.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        # Nobody can have written a transaction to it.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        # A newer epoch of the producer has been there: the transaction has ended in it.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
)
"""Outcomes after which a partition waits for no marker."""


class Ending:
    """A transaction whose markers are on their way. Guarded by its shard's lock."""

    __slots__ = ("marker", "remaining", "transaction", "transit")

    def __init__(self, transaction: Transaction, transit: Transit, marker: Marker):
        self.transaction = transaction
        self.transit = transit
        """What it becomes once they are written."""
        self.marker = marker
        self.remaining = set(transaction.partitions)
        """Partitions that wait for their marker."""
