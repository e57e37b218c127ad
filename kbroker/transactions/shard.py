"""The transactional ids of one partition of `__transaction_state`: in memory, and the appends of their records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from kbroker.errors import ErrorCode
from kbroker.room import Room
from kbroker.rules.transaction import Transaction, TransactionState, Transit
from kbroker.state_log.append_errors import COORDINATOR_ERRORS
from kbroker.state_log.shards import Shard
from kbroker.state_log.state_partition import Phase, StatePartition
from kbroker.transactions import records
from kbroker.transactions.markers import Ending
from kbroker.transactions.replay import PartitionReplay

LOG = logging.getLogger(__name__)

TOMBSTONES_PER_BATCH = 500

_STORE_ERRORS = COORDINATOR_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error that a producer gets when its change could not be stored, by the error of the append."""


class TransactionShard(Shard):
    """The transactional ids whose records are in one partition. `lock` guards all of it and the order of appends."""

    __slots__ = ("_failing", "_made_by", "_room", "endings", "lock", "partition", "transactions", "waiting")

    def __init__(self, partition: StatePartition, room: Room):
        self.partition = partition
        self.lock = threading.RLock()
        self.transactions: dict[str, Transaction] = {}
        self.endings: dict[str, Ending] = {}
        """The endings whose markers are being written, by transactional id."""
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        """Calls to make when the markers of a transactional id are written."""
        self._room = room
        self._made_by: dict[str, str] = {}
        """The host of the client that created an id, by transactional id; ids loaded from the log are not in it."""
        self._failing: dict[str, tuple[TransactionState, ErrorCode]] = {}
        """The last change of a transactional id that was logged as failed, until one is stored."""

    # --- life --------------------------------------------------------------------------------------------
    def load(self, load_buffer_bytes: int, take_up: Callable[[Iterable[Transaction]], None]) -> None:
        """Replay the partition. Its ids are served from `serve` on; `take_up` gets all of them before.

        May be called by any thread that does not hold the lock. Raises what reading the log raises; the partition is
        still LOADING then.
        """
        replay = PartitionReplay(self.partition.name)
        count = self.partition.replay(replay.apply_batch, load_buffer_bytes)
        loaded = replay.transactions()
        take_up(loaded.values())
        with self.lock:
            if self.partition.phase is not Phase.LOADING:
                return  # ended meanwhile
            self.transactions = loaded
        if count:
            LOG.info("%s: %d transactional ids in %d records", self.partition.name, len(loaded), count)

    def serve(self) -> list[Transaction]:
        """Serve the ids from now on. Returns those whose markers have to be written (again)."""
        with self.lock:
            self.partition.activate()
            return [each for each in self.transactions.values() if each.is_prepared]

    def end(self) -> None:
        """End the shard: this broker is not the coordinator any more. Pending appends still answer their requests."""
        with self.lock:
            self.partition.end()
            for host in self._made_by.values():
                self._room.gone(host)
            self.transactions, self.endings, self._made_by, self._failing = {}, {}, {}, {}

    def add(self, transaction: Transaction, host: str) -> None:
        """Add a new id, created by a client of that host. The caller holds the lock."""
        self.transactions[transaction.transactional_id] = transaction
        self._made_by[transaction.transactional_id] = host
        self._room.made(host)

    def _remove(self, transactional_id: str) -> None:
        if self.transactions.pop(transactional_id, None) is None:
            return
        self._failing.pop(transactional_id, None)
        host = self._made_by.pop(transactional_id, None)
        if host is not None:
            self._room.gone(host)

    # --- writing; the caller holds the lock --------------------------------------------------------------
    def store(
        self,
        transaction: Transaction,
        transit: Transit,
        later: Callable[[ErrorCode], None],
        *,
        keep_pending: bool = False,
    ) -> ErrorCode | None:
        """Append the record of the change `transit`, and apply the change when the record is committed.

        Returns the error for the producer, or None if it is not known yet: then `later` gets it, without the lock.
        With `keep_pending` the change stays pending after an error, so that the caller can try again.
        """
        outcome: ErrorCode | None = None
        returned = False

        def committed(error: ErrorCode, _: int) -> None:
            nonlocal outcome
            with self.lock:
                told = self._settle(transaction, transit, error, keep_pending)
                if not returned:
                    outcome = told
                    return
            later(told)

        key = records.transaction_key(transaction.transactional_id)
        try:
            self.partition.append([(key, records.transaction_value(transit))], committed)
        except Exception:
            if transaction.pending is transit:  # a bug of ours must not leave the id pending for ever
                transaction.not_stored(transit)
            raise
        returned = True
        return outcome

    def _settle(self, transaction: Transaction, transit: Transit, error: ErrorCode, keep_pending: bool) -> ErrorCode:
        if self.partition.phase is not Phase.ACTIVE:
            return ErrorCode.NOT_COORDINATOR  # the next coordinator goes by what it finds in the log
        if not error:
            transaction.stored(transit)
            self._failing.pop(transaction.transactional_id, None)
            return ErrorCode.NONE
        failure = (transit.state, error)
        if self._failing.get(transaction.transactional_id) != failure:  # it is tried again and again
            self._failing[transaction.transactional_id] = failure
            LOG.warning(
                "transactional id %r could not become %s: %s", transaction.transactional_id, transit.state, error.name
            )
        if not keep_pending:
            transaction.not_stored(transit)
        return _STORE_ERRORS.get(error, error)

    # --- expiry ------------------------------------------------------------------------------------------
    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove the ids that have not been used for `expiration_ms`, in the log too. Returns how many were due."""
        with self.lock:
            due = [each for each in self.transactions.values() if each.has_expired(now_ms, expiration_ms)]
        for first in range(0, len(due), TOMBSTONES_PER_BATCH):
            with self.lock:  # taken for one batch at a time, since requests wait for it
                self._bury(due[first : first + TOMBSTONES_PER_BATCH], now_ms, expiration_ms)
        return len(due)

    def _bury(self, due: list[Transaction], now_ms: int, expiration_ms: int) -> None:
        dying = [(each, each.expire()) for each in due if each.has_expired(now_ms, expiration_ms)]
        if not dying:
            return

        def committed(error: ErrorCode, _: int) -> None:
            with self.lock:
                for transaction, transit in dying:
                    if error:
                        transaction.not_stored(transit)
                    else:
                        self._remove(transaction.transactional_id)
            if error:
                LOG.warning("%s: %d expired ids could not be removed: %s", self.partition.name, len(dying), error.name)

        keys = (records.transaction_key(transaction.transactional_id) for transaction, _ in dying)
        self.partition.append([(key, None) for key in keys], committed)
