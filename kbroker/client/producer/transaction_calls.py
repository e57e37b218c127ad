"""The transaction methods that Producer and AsyncProducer share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from kbroker.client.config.option import Options
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.errors import TimedOut, UsageError
from kbroker.client.network.faces import operation
from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.client.producer.background import Background
from kbroker.client.producer.transactions import Transactions
from kbroker.model import TopicPartition

T = TypeVar("T")


class TransactionOperations:
    """The transaction methods of a producer that has a transactional.id.

    Each raises UsageError when the producer has no transactional.id, or when the state of the transaction does not
    allow the call. Each raises TransactionMustAbort when the transaction can only be aborted, and TransactionFailed
    or ProducerFenced when the producer cannot go on.

    Calls with a `timeout` wait that many seconds; None stands for max.block.ms. Then they raise TimedOut, and what
    they have begun goes on in the background: calling the same method again waits for the same end.
    """

    options: Options
    _background: Background

    @operation
    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get a producer id and epoch; call it once, before the first transaction.

        The coordinator fences every earlier producer with the same transactional.id. See the class for `timeout` and
        exceptions.
        """
        await self._within(timeout, self._transactional().init(), "init_transactions")

    @operation
    async def begin_transaction(self) -> None:
        """Begin a transaction: every record sent from now on, by any thread or task, belongs to it."""
        await self._transactional().begin()

    @operation
    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit consumer offsets as part of the transaction.

        `offsets` has for each partition the offset of the next record to read. `group_metadata` is what
        `Consumer.group_metadata()` returns; with it the coordinator refuses a consumer that has lost its partitions
        (KIP-447).

        Raises ValueError for a negative offset, TypeError when `group_metadata` is of another type, and BrokerTooOld
        when the broker cannot check the group's generation (before Kafka 2.5).
        """
        wanted: dict[tuple[str, int], OffsetAndMetadata] = {}
        for (topic, partition), offset in offsets.items():
            committed = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            if committed.offset < 0:
                raise ValueError(f"{topic}-{partition}: offset {committed.offset}")
            wanted[topic, partition] = committed
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise TypeError(f"group_metadata must be a ConsumerGroupMetadata, not {type(group_metadata).__name__}")
        transactions = self._transactional()
        if wanted:
            work = transactions.send_offsets(wanted, group_metadata)
            await self._within(timeout, work, "send_offsets_to_transaction")

    @operation
    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush, then commit: all records and offsets of the transaction become visible at once."""
        await self._within(timeout, self._transactional().commit(), "commit_transaction")

    @operation
    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Flush, and return what `AdminClient.end_transactions` needs to end the transaction from elsewhere.

        Nothing more can be sent in a prepared transaction, and `close` leaves it open. `commit_transaction` and
        `abort_transaction` of this producer still end it. Brokers abort it when transaction.timeout.ms is over since
        its first record. Raises UsageError when nothing was sent in the transaction.
        """
        transactions = self._transactional()
        return await self._within(timeout, transactions.prepare(), "prepare_transaction")

    @operation
    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction: readers of committed records never see any of it.

        Records that were not sent yet fail with TransactionAborted.
        """
        await self._within(timeout, self._transactional().abort(), "abort_transaction")

    def _transactional(self) -> Transactions:
        if self._background.transactions is None:
            raise UsageError("the producer has no transactional.id")
        return self._background.transactions

    async def _within(self, timeout_s: float | None, work: Coroutine[Any, Any, T], what: str) -> T:
        limit_s = timeout_s
        if timeout_s is None and self.options["max.block.ms"] >= 0:
            limit_s = self.options.seconds("max.block.ms")
        try:
            async with asyncio.timeout(limit_s) as scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimedOut(f"{what} took longer than {limit_s:g} s") from None
