"""Ends transactions: writes the markers to their partitions, then the record that they have ended.

How a transaction ends: a Prepare* record is written, then a marker to each partition of the transaction, then a
Complete* record. The producer is answered when the Prepare* record is in the log and the writes that need no wait are
done. From the Prepare* record on the end is certain: after a crash the next coordinator finds it and writes the markers
again. As long as nothing has to wait, all of this runs on one thread.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.transaction import Transaction, TransactionState
from kbroker.state_log.deadlines import Alarm, Deadlines
from kbroker.state_log.state_partition import Phase
from kbroker.transactions.markers import SETTLED, Ending, Marker, MarkerWriter
from kbroker.transactions.shard import TransactionShard

LOG = logging.getLogger(__name__)

FIRST_RETRY_MS = 20
"""The time after which a write that has failed is tried again for the first time."""

QUIET = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION)
"""Errors that are part of every change of leaders; of a lost connection, `MarkerSender` tells once."""

Answer: TypeAlias = Callable[[ErrorCode], None]


class Endings:
    """Ends the transactions of all shards. Its methods are called without a lock; they take the shard's.

    A write that has failed is tried again, soon first, then after longer and longer times up to `retry_ms`.
    """

    def __init__(self, markers: MarkerWriter, deadlines: Deadlines, clock: Clock, retry_ms: int):
        self._markers = markers
        self._deadlines = deadlines
        self._clock = clock
        self._retry_ms = retry_ms
        self._lock = threading.Lock()
        """Guards what follows. No other lock but that of `Deadlines` is taken while it is held."""
        self._failed: list[tuple[TransactionShard, Callable[[], None]]] = []
        self._alarm: Alarm | None = None
        """The scheduled call that tries all of `_failed` again."""
        self._wait_ms = FIRST_RETRY_MS
        self._last_retry_ms = 0

    def once_prepared(self, shard: TransactionShard, transaction: Transaction, answer: Answer) -> Answer:
        """The call to make with the outcome of the Prepare* record: it writes the markers, then it calls `answer`."""
        return functools.partial(self._prepared, shard, transaction, answer)

    def _prepared(self, shard: TransactionShard, transaction: Transaction, answer: Answer, error: ErrorCode) -> None:
        try:
            if not error:
                self.write_markers(shard, transaction)
        finally:
            answer(error)

    def write_markers(self, shard: TransactionShard, transaction: Transaction) -> None:
        """Write the markers of a transaction whose Prepare* record is in the log; else a no-op."""
        with shard.lock:
            if shard.partition.phase is not Phase.ACTIVE or not transaction.is_prepared or transaction.pending:
                return
            commit = transaction.state is TransactionState.PREPARE_COMMIT
            epochs = (transaction.producer_epoch, shard.partition.leader_epoch)
            marker = Marker(transaction.producer_id, *epochs, commit, transaction.client_version)
            ending = Ending(transaction, transaction.complete(self._clock.wall_ms()), marker)
            shard.endings[transaction.transactional_id] = ending
            partitions = transaction.partitions
        if not partitions:
            self._complete(shard, ending)
        for partition in partitions:
            self._write_marker(shard, ending, partition)

    def _write_marker(self, shard: TransactionShard, ending: Ending, partition: TopicPartition) -> None:
        epoch, marker = shard.partition.leader_epoch, ending.marker
        if marker.coordinator_epoch != epoch:
            marker = marker._replace(coordinator_epoch=epoch)
        self._markers.write(partition, marker, functools.partial(self._marker_done, shard, ending, partition, epoch))

    def _marker_done(
        self, shard: TransactionShard, ending: Ending, partition: TopicPartition, epoch: int, error: ErrorCode
    ) -> None:
        if error in SETTLED:
            if error:
                _log_marker(ending, partition, "needs none", error)
            with shard.lock:
                ending.remaining.discard(partition)
                is_last = not ending.remaining
            if is_last:
                self._complete(shard, ending)
        elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED and epoch == shard.partition.leader_epoch:
            # Another coordinator has ended the transaction in that partition, and ends it in all others too. Nothing
            # changes here.
            _log_marker(ending, partition, "is refused", error)
        else:
            if error not in QUIET:
                with shard.lock:
                    is_known = (partition, error) in ending.reported
                    ending.reported.add((partition, error))
                if not is_known:
                    _log_marker(ending, partition, "is tried until it is written", error)
            self._retry_later(shard, functools.partial(self._write_marker, shard, ending, partition))

    def _complete(self, shard: TransactionShard, ending: Ending) -> None:
        """Write the Complete* record, because all markers are written."""
        then = functools.partial(self._completed, shard, ending)
        with shard.lock:
            if shard.partition.phase is not Phase.ACTIVE:
                return
            error = shard.store(ending.transaction, ending.transit, then, keep_pending=True)
        if error is not None:
            then(error)

    def _completed(self, shard: TransactionShard, ending: Ending, error: ErrorCode) -> None:
        if error:
            self._retry_later(shard, functools.partial(self._complete, shard, ending))
            return
        transactional_id = ending.transaction.transactional_id
        with shard.lock:
            shard.endings.pop(transactional_id, None)
            waiting = shard.waiting.pop(transactional_id, ())
        for call in waiting:
            call()

    def _retry_later(self, shard: TransactionShard, call: Callable[[], None]) -> None:
        """Call `call` later, if this broker still leads the shard's partition then."""
        now_ms = self._deadlines.now_ms()
        with self._lock:
            self._failed.append((shard, call))
            if self._alarm is None:
                if now_ms > self._last_retry_ms + 2 * self._wait_ms:
                    self._wait_ms = FIRST_RETRY_MS  # what failed before has got through
                self._alarm = self._deadlines.schedule(now_ms + min(self._wait_ms, self._retry_ms), self._retry)

    def retry_soon(self) -> None:
        """Try again at once what has failed: partitions may have other leaders now. Does not wait."""
        with self._lock:
            self._wait_ms = FIRST_RETRY_MS
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = self._deadlines.soon(self._retry)

    def _retry(self) -> None:
        with self._lock:
            failed, self._failed, self._alarm = self._failed, [], None
            self._wait_ms = min(2 * self._wait_ms, self._retry_ms)
            self._last_retry_ms = self._deadlines.now_ms()
        for shard, call in failed:
            if shard.partition.phase is Phase.ACTIVE:
                call()


def _log_marker(ending: Ending, partition: TopicPartition, what: str, error: ErrorCode) -> None:
    transactional_id = ending.transaction.transactional_id
    LOG.warning("the marker of transactional id %r for %s %s: %s", transactional_id, partition, what, error.name)
