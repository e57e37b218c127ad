"""One transactional id, from its first InitProducerId to its expiry (KIP-98): values in, values out.

A change has two halves. A method named after the request returns the change (`Transit`), or an error. From then on the
change is pending, and other requests get CONCURRENT_TRANSACTIONS. When the record of the change is in the log, `stored`
applies it; if it could not be written, `not_stored` drops it.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...       Empty again: by InitProducerId

Epochs (KIP-360, KIP-588): InitProducerId adds one to the producer's epoch, which fences the producer that used the id
before. A producer that names its own id and epoch gets the next epoch only if no other producer has got it. The epoch
before is kept, so that the producer may repeat its request.

A client of transactions of version 2 (KIP-890) gets a new epoch with each end of a transaction (`end_with_bump`), so
that a late batch of one transaction cannot get into the next. An abort by the coordinator (`fence`) does the same for
every client. When the epochs of a producer id are used up, it is replaced by a new one: by InitProducerId, or when a
transaction is complete. The very last epoch is used only in the markers of such a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from kbroker.errors import ErrorCode
from kbroker.model import NO_PRODUCER_ID, TopicPartition

NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_PRODUCER_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_PRODUCER_EPOCH - 1
"""The last epoch that a client gets. One more is left, with which the coordinator can fence it."""

FEATURE = "transaction.version"
"""The name of the feature whose levels are the transaction versions (KIP-584)."""

FIRST_VERSION, EPOCH_VERSION = 0, 2
"""The client's transaction version (Kafka: TransactionVersion). On disk. In EPOCH_VERSION each transaction has its own
epoch."""

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class TransactionState(StrEnum):
    """The state of a transactional id, by the name in Kafka's tools."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Expired. Only a pending change has this state, until its tombstone is in the log."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """In Kafka the step before PrepareAbort when the coordinator aborts. Never used: here both are one step."""


_COMPLETED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
_AT_REST = frozenset((TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))

Expected: TypeAlias = tuple[int, int]
"""The producer id and epoch in an InitProducerId request."""


class Transit(NamedTuple):
    """The state of a transactional id after a change."""

    state: TransactionState
    producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition]
    start_ms: int
    update_ms: int
    client_version: int = FIRST_VERSION
    next_producer_id: int = NO_PRODUCER_ID
    """While a transaction ends whose producer id is used up: the producer id once it is complete."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the change."""


class Transaction:
    """One transactional id. Not thread-safe. All times but `open_since_ms` are wall clock time."""

    __slots__ = (
        "client_version",
        "last_producer_epoch",
        "last_producer_id",
        "next_producer_id",
        "open_since_ms",
        "partitions",
        "pending",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
        "update_ms",
    )

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        timeout_ms: int,
        now_ms: int,
        *,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        state: TransactionState = TransactionState.EMPTY,
        partitions: frozenset[TopicPartition] = NO_PARTITIONS,
        start_ms: int = NO_TIMESTAMP,
        last_producer_id: int = NO_PRODUCER_ID,
        next_producer_id: int = NO_PRODUCER_ID,
        client_version: int = FIRST_VERSION,
    ):
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.last_producer_id = last_producer_id
        self.last_producer_epoch = NO_PRODUCER_EPOCH
        self.timeout_ms = timeout_ms
        self.state = state
        self.partitions = partitions
        self.start_ms = start_ms
        self.open_since_ms = NO_TIMESTAMP
        """When the open transaction began, by the caller's monotonic clock (`begun`)."""
        self.update_ms = now_ms
        self.next_producer_id = next_producer_id
        self.client_version = client_version
        self.pending: Transit | None = None

    # --- InitProducerId ----------------------------------------------------------------------------------
    def needs_producer_id(self, expected: Expected | None) -> bool:
        """Whether `init_producer_id` needs a new producer id, because the epochs of this one are used up."""
        return self.is_used_up and (
            self.state is TransactionState.ONGOING or expected is None or expected[1] == self.producer_epoch
        )

    @property
    def is_used_up(self) -> bool:
        """Whether the epochs of the producer id are used up, so that the next change needs a new producer id."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH and self.pending is None and self.state not in _COMPLETED

    def init_producer_id(
        self, timeout_ms: int, expected: Expected | None, new_producer_id: int | None, now_ms: int
    ) -> Transit | ErrorCode:
        """The change to the next epoch, or to epoch 0 of `new_producer_id` if `needs_producer_id`; or an error.

        If a transaction is open, the change is its abort (PREPARE_ABORT), and the client has to repeat its request.
        """
        if self.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if expected is not None and not self._was_given(expected):
            return ErrorCode.PRODUCER_FENCED
        if self.state is TransactionState.ONGOING:
            return self.fence(new_producer_id, now_ms)
        if self.state not in _AT_REST:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self.needs_producer_id(expected):
            assert new_producer_id is not None, self.transactional_id
            last_epoch = NO_PRODUCER_EPOCH if expected is None else self.producer_epoch
            return self._begin_empty(new_producer_id, 0, last_epoch, timeout_ms, now_ms)
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected is not None:
            if self.producer_epoch in (NO_PRODUCER_EPOCH, expected[1]):
                last_epoch = self.producer_epoch
            elif expected[1] == self.last_producer_epoch:
                # The answer was lost and the request is repeated. If another producer had come meanwhile, the last
                # epoch would be -1.
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
            else:
                return ErrorCode.PRODUCER_FENCED
        assert epoch <= LAST_CLIENT_EPOCH, (self.transactional_id, epoch)
        return self._begin_empty(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def _was_given(self, expected: Expected) -> bool:
        producer_id, epoch = expected
        return (
            self.producer_epoch == NO_PRODUCER_EPOCH  # the transactional id is new here: the producer starts anew
            or producer_id == self.producer_id
            or (producer_id == self.last_producer_id and epoch >= LAST_CLIENT_EPOCH)  # its producer id was replaced
        )

    def _begin_empty(self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Transit:
        to = (TransactionState.EMPTY, producer_id, epoch, last_epoch, timeout_ms, NO_PARTITIONS, NO_TIMESTAMP, now_ms)
        return self._begin(Transit(*to, self.client_version, NO_PRODUCER_ID, self.producer_id))

    # --- a transaction -----------------------------------------------------------------------------------
    def add_partitions(
        self,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        client_version: int = FIRST_VERSION,
    ) -> Transit | ErrorCode:
        """The change that adds `partitions` to the transaction, which begins if none is open; or an error.

        Returns NONE if they are in it already. A pending change is checked first: it may be the one that gives the
        producer its next id and epoch.
        """
        if self.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != self.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.state in _COMPLETED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_open = self.state is TransactionState.ONGOING
        if is_open and self.partitions.issuperset(partitions):
            return ErrorCode.NONE
        start_ms = self.start_ms if is_open else now_ms
        version = max(client_version, self.client_version) if is_open else client_version
        ongoing = self._as(TransactionState.ONGOING, self.partitions.union(partitions), start_ms, now_ms)
        return self._begin(ongoing._replace(client_version=version))

    def verify(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """NONE if this producer's transaction is the one whose partitions are known here (KIP-890), else why not.

        A pending change does not matter: partitions that it adds are not in the transaction yet, and the append checks
        again.
        """
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != self.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state in _COMPLETED else ErrorCode.NONE

    def end(self, producer_id: int, producer_epoch: int, commit: bool, now_ms: int) -> Transit | ErrorCode:
        """The change that ends the transaction of a client that keeps its epoch; or an error.

        Returns NONE if the transaction has ended that way already.
        """
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != self.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        prepared = _prepared(commit)
        if self.state is TransactionState.ONGOING:
            ended = self._as(prepared, self.partitions, self.start_ms, now_ms)
            return self._begin(ended._replace(client_version=FIRST_VERSION))
        if self.state is prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if self.state is _COMPLETED[prepared] else ErrorCode.INVALID_TXN_STATE

    def end_with_bump(
        self, producer_id: int, producer_epoch: int, commit: bool, new_producer_id: int | None, now_ms: int
    ) -> Transit | ErrorCode:
        """The change that ends the transaction of a client that gets a new epoch (KIP-890); or an error.

        Returns NONE if the transaction has ended that way already and the client has its new epoch. `new_producer_id`
        is needed if `is_used_up`. An abort is allowed without an open transaction: it gives a new epoch to a client
        that does not know whether any batch of its transaction has arrived.
        """
        if self.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_current = producer_epoch == self.producer_epoch
        was_replaced = (
            producer_id == self.last_producer_id and producer_epoch == LAST_CLIENT_EPOCH and self.producer_epoch == 0
        )
        asks_again = was_replaced or producer_epoch + 1 == self.producer_epoch
        if producer_id != self.producer_id and not was_replaced:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        prepared = _prepared(commit)
        if self.state in _COMPLETED:
            if producer_epoch + 1 != self.producer_epoch:
                return ErrorCode.PRODUCER_FENCED
            return ErrorCode.CONCURRENT_TRANSACTIONS if self.state is prepared else ErrorCode.INVALID_TXN_STATE
        if asks_again and self.state in _COMPLETED.values():
            return ErrorCode.NONE if self.state is _COMPLETED[prepared] else ErrorCode.INVALID_TXN_STATE
        if not is_current:
            return ErrorCode.PRODUCER_FENCED
        if self.state is TransactionState.ONGOING:
            return self._bump(prepared, self.start_ms, new_producer_id, now_ms)
        return ErrorCode.INVALID_TXN_STATE if commit else self._bump(prepared, now_ms, new_producer_id, now_ms)

    def begun(self, now_ms: int, age_ms: int = 0) -> None:
        """Note that the transaction has been open for `age_ms` at `now_ms`.

        `now_ms` is monotonic, so that setting the wall clock does not change the transaction's age.
        """
        self.open_since_ms = now_ms - age_ms

    def has_timed_out(self, now_ms: int) -> bool:
        """Whether the transaction has been open for longer than its timeout; `now_ms` is monotonic, as in `begun`."""
        is_open = self.state is TransactionState.ONGOING and self.pending is None
        return is_open and self.open_since_ms + self.timeout_ms < now_ms

    def fence(self, new_producer_id: int | None, now_ms: int) -> Transit:
        """The change that aborts the open transaction with an epoch that its producer does not have.

        A transaction must be open and no change pending. `new_producer_id` is needed if `is_used_up`.
        """
        assert self.state is TransactionState.ONGOING, self.state
        return self._bump(TransactionState.PREPARE_ABORT, self.start_ms, new_producer_id, now_ms)

    def _bump(self, prepared: TransactionState, start_ms: int, new_producer_id: int | None, now_ms: int) -> Transit:
        if self.is_used_up:
            assert new_producer_id is not None, self.transactional_id
            next_producer_id = new_producer_id
        else:
            next_producer_id = NO_PRODUCER_ID
        ended = self._as(prepared, self.partitions, start_ms, now_ms)
        return self._begin(
            ended._replace(
                producer_epoch=min(self.producer_epoch + 1, MAX_PRODUCER_EPOCH),
                last_producer_epoch=self.producer_epoch,
                client_version=EPOCH_VERSION,
                next_producer_id=next_producer_id,
            )
        )

    def complete(self, now_ms: int) -> Transit:
        """The change once all markers are written. It is pending while they are being written.

        The transaction must be prepared, and no change pending.
        """
        completed = self._as(_COMPLETED[self.state], NO_PARTITIONS, self.start_ms, now_ms)
        if self.next_producer_id != NO_PRODUCER_ID:
            completed = completed._replace(
                producer_id=self.next_producer_id, producer_epoch=0, next_producer_id=NO_PRODUCER_ID
            )
        return self._begin(completed)

    # --- expiry ------------------------------------------------------------------------------------------
    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id has not been used for `expiration_ms`, and has no transaction."""
        return self.pending is None and self.state in _AT_REST and self.update_ms <= now_ms - expiration_ms

    def expire(self) -> Transit:
        """The change that removes the id; its record is a tombstone."""
        return self._begin(self._as(TransactionState.DEAD, NO_PARTITIONS, self.start_ms, self.update_ms))

    # --- the second half ---------------------------------------------------------------------------------
    @property
    def is_prepared(self) -> bool:
        """Whether it is decided how the transaction ends, so that its markers have to be written."""
        return self.state in _COMPLETED

    def _as(
        self, state: TransactionState, partitions: frozenset[TopicPartition], start_ms: int, now_ms: int
    ) -> Transit:
        known = (self.producer_id, self.producer_epoch, self.last_producer_epoch, self.timeout_ms)
        version = (self.client_version, self.next_producer_id, self.producer_id)
        return Transit(state, *known, partitions, start_ms, now_ms, *version)

    def _begin(self, transit: Transit) -> Transit:
        assert self.pending is None, (self.transactional_id, self.pending, transit)
        self.pending = transit
        return transit

    def stored(self, transit: Transit) -> None:
        """Apply `transit`: its record is in the log."""
        assert self.pending is transit, (self.transactional_id, self.pending, transit)
        self.pending = None
        self.last_producer_id = self.producer_id
        self.producer_id = transit.producer_id
        self.producer_epoch = transit.producer_epoch
        self.last_producer_epoch = transit.last_producer_epoch
        self.next_producer_id = transit.next_producer_id
        self.client_version = transit.client_version
        self.timeout_ms = transit.timeout_ms
        self.start_ms = transit.start_ms
        self.state = transit.state
        self.partitions = transit.partitions
        self.update_ms = transit.update_ms

    def not_stored(self, transit: Transit) -> None:
        """Drop `transit`: its record could not be written."""
        assert self.pending is transit, (self.transactional_id, self.pending, transit)
        self.pending = None


def _prepared(commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
