"""The requests of an exactly-once stream to the brokers. What it keeps there is described in sink_state.py."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.client import (
    AdminClient,
    BrokerError,
    ClientError,
    ConsumerGroupMetadata,
    ErrorCode,
    OffsetAndMetadata,
    PartialFailure,
    Producer,
    TopicPartition,
)
from kbroker.spark.errors import SinkFailed
from kbroker.spark.writing.sink_state import (
    BLOCK,
    Winner,
    Winners,
    attempt_id,
    block_texts,
    decision_group,
    prefix,
    prepared,
    read_block,
    task_group,
)

log = logging.getLogger("kbroker.spark")

GONE = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Errors of a transaction that is not open: it was aborted, or committed and its transactional id used again since."""


class SinkLedger:
    """The decisions and transactions of one query that writes to one topic."""

    def __init__(self, admin: AdminClient, query_id: str, topic: str):
        self._admin = admin
        self._query_id = query_id
        self._place = TopicPartition(topic, 0)

    # --- decisions ------------------------------------------------------------------------------------------

    def decision(self, batch_id: int) -> tuple[Winner | None, ...] | None:
        """Return what was decided for a batch, by task; None if nothing is decided yet.

        Raises SinkFailed when a later batch has been decided, or the decision cannot be read in full.
        """
        found = self._block(batch_id, 0)
        if found is None:
            return None
        count, winners = found
        while len(winners) < count:
            more = self._block(batch_id, len(winners) // BLOCK)
            if more is None or not more[1]:
                raise SinkFailed(f"of batch {batch_id} only {len(winners)} of {count} tasks are known")
            winners += more[1]
        return tuple(winners)

    def knows_any(self) -> bool:
        """Return whether a decision on any batch of the query is still kept."""
        return self._committed(decision_group(self._query_id, 0)) is not None

    def decide(self, producer: Producer, batch_id: int, winners: Winners) -> None:
        """Write the decision in one transaction of the driver's `producer`, which a newer driver fences."""
        with producer.transaction():
            for block, text in enumerate(block_texts(winners)):
                group = ConsumerGroupMetadata(decision_group(self._query_id, block))
                producer.send_offsets_to_transaction({self._place: OffsetAndMetadata(batch_id + 1, text)}, group)

    def _block(self, batch_id: int, block: int) -> tuple[int, list[Winner | None]] | None:
        found = self._committed(decision_group(self._query_id, block))
        if found is None or found.offset <= batch_id:
            return None
        if found.offset > batch_id + 1:
            raise SinkFailed(
                f"batch {batch_id} is to be written after batch {found.offset - 1} was: another run of query "
                f"{self._query_id} has gone further, or its checkpoint was set back; start it with a new checkpoint"
            )
        return read_block(found.metadata)

    def _committed(self, group: str) -> OffsetAndMetadata | None:
        return self._admin.committed(group, [self._place], require_stable=True).get(self._place)

    # --- transactions of attempts ---------------------------------------------------------------------------

    def add_batch(self, producer: Producer, batch_id: int, task: int) -> None:
        """Add the batch to the open transaction. `finish` sees by it whether the task's rows were committed."""
        producer.send_offsets_to_transaction(
            {self._place: batch_id + 1}, ConsumerGroupMetadata(task_group(self._query_id, task))
        )

    def finish(self, batch_id: int, winners: Winners) -> set[int]:
        """Commit the winners' transactions, and return the tasks whose rows are lost for good.

        Raises ClientError when it is not known of a transaction whether it was committed.
        """
        wanted = {
            attempt_id(self._query_id, task, each.attempt): (task, prepared(self._query_id, task, each))
            for task, each in enumerate(winners)
            if each is not None
        }
        errors: Mapping[str, ClientError] = {}
        try:
            self._admin.end_transactions([each for _, each in wanted.values()], commit=True)
        except PartialFailure as some:
            errors = some.errors
        except BrokerError as one:
            errors = dict.fromkeys(wanted, one)
        for error in errors.values():
            if error.code not in GONE:
                raise error
        tasks = {wanted[each][0] for each in errors}
        return {task for task in tasks if not self._is_there(batch_id, task)}

    def _is_there(self, batch_id: int, task: int) -> bool:
        """Return whether the rows of a task, whose transaction is not open, are committed."""
        # This does not wait for a stable offset: others may be writing the task's rows anew, and wait for us.
        found = self._admin.committed(task_group(self._query_id, task), [self._place]).get(self._place)
        return found is not None and found.offset > batch_id

    def check_open(self, batch_id: int, winners: Winners) -> None:
        """Raise SinkFailed when a winner's transaction is not open any more. Brokers before Kafka 3.0 do not tell."""
        wanted = {
            attempt_id(self._query_id, task, each.attempt): each
            for task, each in enumerate(winners)
            if each is not None
        }
        try:
            found = self._admin.describe_transactions(wanted)
        except BrokerError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return
        closed = [
            name
            for name, each in found.items()
            if (each.state, each.producer_id, each.producer_epoch)
            != ("Ongoing", wanted[name].producer_id, wanted[name].epoch)
        ]
        if closed:
            raise SinkFailed(
                f"batch {batch_id}: the transactions of {len(closed)} of {len(wanted)} tasks were aborted before all "
                "were written. Nothing of it is committed. A batch may not take longer than a transaction: make it "
                "smaller (maxOffsetsPerTrigger), or raise kafka.transaction.timeout.ms, and the brokers' "
                "transaction.max.timeout.ms"
            )

    def abort(self, losers: Mapping[int, Winner]) -> None:
        """Abort the open transactions of `losers`. An error is only logged: brokers abort the rest at their timeout."""
        try:
            self._admin.end_transactions(
                [prepared(self._query_id, task, each) for task, each in losers.items()], commit=False
            )
        except ClientError as error:
            log.info("attempts of query %s were not all aborted: %s", self._query_id, error)

    def abort_attempts(self) -> None:
        """Abort transactions that the query's attempts have left open: readers of committed records wait for them."""
        try:
            found = [
                each.transactional_id
                for each in self._admin.list_transactions(["Ongoing"])
                if each.transactional_id.startswith(prefix(self._query_id))
            ]
            if found:
                log.info("query %s: %s are aborted, which nobody will commit", self._query_id, ", ".join(found))
                self._admin.fence_producers(found)
        except ClientError as error:  # Kafka before 3.0, or not allowed: the transactions time out
            log.info("what attempts of query %s have left open is not known: %s", self._query_id, error)
