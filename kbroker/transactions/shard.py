"""The transactional ids of one partition of `__transaction_state`, in memory and on their way into it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from kbroker.errors import ErrorCode
from kbroker.room import Room
from kbroker.rules.transaction import Transaction, Transit
from kbroker.state_log.partition import Phase, StatePartition
from kbroker.transactions import records
from kbroker.transactions.markers import Ending
from kbroker.transactions.replay import PartitionReplay

LOG = logging.getLogger(__name__)

TOMBSTONES_PER_BATCH = 500

_STORE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a producer is told when its change could not be stored, by what the append said."""


class TransactionShard:
    """Transactional ids whose records are in one partition. `lock` guards everything here and the order of appends.

    The lock is reentrant because an append may be committed before it returns, and then calls back.
    """

    __slots__ = ("_made_by", "_room", "endings", "lock", "partition", "transactions", "waiting")

    def __init__(self, partition: StatePartition, room: Room):
        self.partition = partition
        self.lock = threading.RLock()
        self.transactions: dict[str, Transaction] = {}
        self.endings: dict[str, Ending] = {}
        """Of those, the ones whose markers are on their way."""
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        """What is to be called when they are written, by transactional id."""
        self._room = room
        self._made_by: dict[str, str] = {}
        """The hosts of the clients that made them, by transactional id; not of those that were loaded."""

    # --- life --------------------------------------------------------------------------------------------
    def load(self, load_buffer_bytes: int, take_up: Callable[[Iterable[Transaction]], None]) -> list[Transaction]:
        """Replays the partition and serves it from then on. Returns the ids whose markers have to be written (again).

        `take_up` is told of all of them before. Any thread, without the lock. Raises what reading the log raises; the
        partition stays as it was then.
        """
        replay = PartitionReplay(self.partition.name)
        count = self.partition.replay(replay.take, load_buffer_bytes)
        loaded = replay.transactions()
        take_up(loaded.values())
        with self.lock:
            if self.partition.phase is not Phase.LOADING:
                return []  # ended meanwhile
            self.transactions = loaded
            self.partition.activate()
        if count:
            LOG.info("%s: %d transactional ids in %d records", self.partition.name, len(loaded), count)
        return [transaction for transaction in loaded.values() if transaction.is_prepared]

    def end(self) -> None:
        """This broker is not the coordinator any more. Appends that are on their way answer for themselves."""
        with self.lock:
            self.partition.end()
            for host in self._made_by.values():
                self._room.gone(host)
            self.transactions, self.endings, self._made_by = {}, {}, {}

    def add(self, transaction: Transaction, host: str) -> None:
        """A new id, made by a client of that host. The caller holds the lock."""
        self.transactions[transaction.transactional_id] = transaction
        self._made_by[transaction.transactional_id] = host
        self._room.made(host)

    def _remove(self, transactional_id: str) -> None:
        if self.transactions.pop(transactional_id, None) is None:
            return
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
        """Writes that `transaction` becomes `transit`, and lets it become so.

        Returns what its producer is to be told; None when that is not known yet: `later` is told, without the lock.
        `keep_pending`: after an error the change stays pending, for the caller to try again.
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
            if transaction.pending is transit:  # our own mistake, which must not keep the id from ever going on
                transaction.not_stored(transit)
            raise
        returned = True
        return outcome

    def _settle(self, transaction: Transaction, transit: Transit, error: ErrorCode, keep_pending: bool) -> ErrorCode:
        if self.partition.phase is not Phase.ACTIVE:
            return ErrorCode.NOT_COORDINATOR  # what the next coordinator finds in the log counts
        if not error:
            transaction.stored(transit)
            return ErrorCode.NONE
        LOG.warning(
            "transactional id %r could not become %s: %s", transaction.transactional_id, transit.state, error.name
        )
        if not keep_pending:
            transaction.not_stored(transit)
        return _STORE_ERRORS.get(error, error)

    # --- expiry ------------------------------------------------------------------------------------------
    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Removes the ids that nobody has used for `expiration_ms`, in the log too; how many it tries to."""
        with self.lock:
            due = [each for each in self.transactions.values() if each.has_expired(now_ms, expiration_ms)]
        for first in range(0, len(due), TOMBSTONES_PER_BATCH):
            with self.lock:  # not for longer: others wait
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
