"""Asking the coordinator of a transaction whether partitions are in it, or to add them (KIP-890).

The leader of a partition asks before it appends the first batch of a transaction. Here are the contract, and the
broker's own coordinator; `peer_verifier.py` asks other brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.transactions.coordinator import TransactionCoordinator

Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]
Answer: TypeAlias = Callable[[Codes], None]


class Verifier(Protocol):
    """Asks transaction coordinators. May be used by any thread; nothing here waits."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        """Ask whether `partitions` are in the producer's open transaction.

        `answer` is called once, perhaps before this returns, with the error of each partition: NONE if it is, or if the
        coordinator is of a release that cannot be asked.
        """
        ...

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        """Add `partitions` to the producer's transaction; begins one if none is open. Answers as `verify`.

        While the transaction before is being ended, it is tried again for a short time.
        """
        ...


class LocalVerifier:
    """Asks this broker's own coordinator."""

    def __init__(self, transactions: Callable[[], TransactionCoordinator]):
        self._transactions = transactions

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        """Answers before it returns; the contract is that of `Verifier.verify`."""
        answer(self._transactions().verify(transactional_id, producer_id, producer_epoch, partitions))

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        """The contract is that of `Verifier.add`."""

        def added(error: ErrorCode) -> None:
            answer(dict.fromkeys(partitions, error))

        self._transactions().add_when_ended(transactional_id, producer_id, producer_epoch, partitions, added)
