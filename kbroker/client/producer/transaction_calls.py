"""What users call of a producer's transactions, on both faces."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from kbroker.client.config import Options
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.errors import TimedOut, UsageError
from kbroker.client.faces import operation
from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.client.producer.background import Background
from kbroker.client.producer.transactions import Transactions
from kbroker.model import TopicPartition

T = TypeVar("T")


class TransactionOperations:
    """Transactions of a producer."""

    options: Options
    _background: Background

    @operation
    async def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction: whoever had the transactional.id before is fenced.

        This and what follows wait for `timeout` seconds (None: max.block.ms), then raise TimedOut, and go on in the
        background: the same call again waits for the same end. TransactionMustAbort when the transaction can only be
        aborted, TransactionFailed and ProducerFenced when the producer cannot go on.
        """
        await self._within(timeout, self._transactional().init(), "init_transactions")

    @operation
    async def begin_transaction(self) -> None:
        """What is sent from now on, by any thread or task, belongs to the transaction."""
        await self._transactional().begin()

    @operation
    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit these with the transaction: for each partition the offset of the next record to be read.

        `group_metadata` is `Consumer.group_metadata()`: a consumer that has lost its partitions is refused (KIP-447).
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
        """Flush, then make everything of the transaction visible at once."""
        await self._within(timeout, self._transactional().commit(), "commit_transaction")

    @operation
    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Flush, and leave the transaction to whoever has what this returns: `AdminClient.end_transactions` ends it.

        Nothing more can be sent in it, and `close` leaves it open. commit_transaction and abort_transaction still end
        it here. Brokers abort it when transaction.timeout.ms is over since its first record. UsageError: it is empty.
        """
        transactions = self._transactional()
        return await self._within(timeout, transactions.prepare(), "prepare_transaction")

    @operation
    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Nothing of the transaction is ever seen by readers of committed records; what was not sent is not."""
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
