"""The transaction coordinator: finds a transactional id, holds its lock, lets the rules decide, carries it out.

A request that may wait comes with a callable. It is called once with the answer, on the thread on which the answer
becomes due: the request's own if the log commits at once, else the log's.

How a transaction ends is in `endings.py`.

Locks. A shard's `lock` is held over a decision and the append of its record; markers are written and answers given
without it. Two shards' locks, of transactions or of groups, are never held at once. Order: shard, then the log's locks.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, NotNow
from kbroker.model import NO_PRODUCER_ID, TRANSACTION_STATE_TOPIC, TopicPartition, number_key
from kbroker.room import Room
from kbroker.rules.transaction import EPOCH_VERSION, FIRST_VERSION, Expected, Transaction, TransactionState, Transit
from kbroker.state_log.deadlines import Deadlines
from kbroker.state_log.replica import Replica
from kbroker.state_log.shards import Refusal, Shards
from kbroker.state_log.state_partition import Phase, StatePartition
from kbroker.state_log.topic import StateTopic
from kbroker.transactions.answers import DescribedTransaction, EndedTransaction, InitializedProducer, ListedTransaction
from kbroker.transactions.endings import Answer, Endings
from kbroker.transactions.markers import MarkerWriter
from kbroker.transactions.options import TransactionOptions
from kbroker.transactions.shard import TransactionShard

LOG = logging.getLogger(__name__)

_STATES = frozenset(str(state) for state in TransactionState)

_STILL_LEADING = (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT)
"""Outcomes after which what is in the log may be committed later."""


class TransactionCoordinator:
    """Serves the transactional ids whose records are in the partitions of `__transaction_state` that this broker leads.

    `next_producer_id` returns a producer id that has never been used. It may block, and raises NotNow if it has none.
    """

    def __init__(
        self,
        topic: StateTopic,
        options: TransactionOptions,
        clock: Clock,
        markers: MarkerWriter,
        next_producer_id: Callable[[], int],
        deadlines: Deadlines | None = None,
    ):
        self.options = options
        self._clock = clock
        self._next_producer_id = next_producer_id
        self._deadlines = deadlines or Deadlines("transaction-deadlines", clock)
        self._endings = Endings(markers, self._deadlines, clock, options.marker_retry_ms)
        self.shards = Shards("transaction", topic, make=self._make_shard, load=self._load, end=_end)
        """The transactional ids, by partition of `__transaction_state`."""
        self._room = Room("kbroker.transactional.ids.max", options.most_ids, self._count_ids, clock)
        self._lock = threading.Lock()
        """Guards `_aborted_by_timeout`; no other lock is taken while it is held."""
        self._aborted_by_timeout = 0

    # --- life --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serve from now on. Partitions are loaded in the background."""
        self.shards.start()
        self._deadlines.every(self.options.abort_interval_ms, self._abort_timed_out)
        self._deadlines.every(self.options.expiration_interval_ms, self._expire)

    def stop(self) -> None:
        """Stop serving. Markers that are not written yet are written after the next start."""
        self.shards.stop()
        self._deadlines.stop()

    def metadata_changed(self) -> None:
        """Try again at once to write markers that could not be written: partitions may have other leaders now."""
        self._endings.retry_soon()

    def _make_shard(self, partition_id: int, replica: Replica) -> TransactionShard:
        name = TopicPartition(TRANSACTION_STATE_TOPIC, partition_id)
        return TransactionShard(StatePartition(name, replica, self._clock), self._room)

    def _load(self, shard: TransactionShard) -> None:
        shard.load(self.options.load_buffer_bytes, self._take_up)
        self._serve_when_committed(shard)

    def _serve_when_committed(self, shard: TransactionShard) -> None:
        """Serve a loaded shard once no later coordinator can lack what was read.

        The log's end may not be committed yet. If markers were written for a Prepare* record that is lost with this
        broker, or a client was told that a partition is in its transaction, the next coordinator could end the
        transaction the other way.
        """

        def committed(error: ErrorCode, _: int) -> None:
            if not error:
                for transaction in shard.serve():
                    LOG.info("transactional id %r was left in %s", transaction.transactional_id, transaction.state)
                    self._endings.write_markers(shard, transaction)
            elif error in _STILL_LEADING:
                again = functools.partial(self._serve_when_committed, shard)
                self._deadlines.schedule(self._deadlines.now_ms() + self.options.commit_retry_ms, again)
            else:
                LOG.warning("%s: what was loaded is not committed: %s", shard.partition.name, error.name)
                self.shards.drop(shard)

        if shard.partition.phase is Phase.LOADING:
            shard.partition.when_committed(committed)

    def _take_up(self, transactions: Iterable[Transaction]) -> None:
        """Set the age of the open transactions among those that were just loaded.

        The log has the wall clock time at which they began; from here on their age is counted by the monotonic clock.
        """
        now_ms, wall_ms = self._deadlines.now_ms(), self._clock.wall_ms()
        for transaction in transactions:
            if transaction.state is TransactionState.ONGOING:
                # A start in the future was written by a wrong clock: the transaction gets its whole timeout.
                transaction.begun(now_ms, max(0, wall_ms - transaction.start_ms))

    def _hold(self, transactional_id: str) -> TransactionShard | Refusal:
        """For `with`: the id's shard with its lock held, or why the id is not served here now."""
        return self.shards.hold(transactional_id) if transactional_id else Refusal(ErrorCode.INVALID_REQUEST)

    # --- InitProducerId ----------------------------------------------------------------------------------
    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Expected | None,
        answer: Callable[[InitializedProducer], None],
        client_host: str = "",
    ) -> None:
        """Handle an InitProducerId with a transactional id. May block.

        `expected` is the producer id and epoch that the producer has already, if any.
        """
        if not transactional_id:
            answer(InitializedProducer(ErrorCode.INVALID_REQUEST))
            return
        if not 0 < timeout_ms <= self.options.max_timeout_ms:
            answer(InitializedProducer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
            return

        def attempt(new_producer_id: int | None) -> Callable[[], None] | None:
            return self._try_init(transactional_id, timeout_ms, expected, new_producer_id, answer, client_host)

        self._with_producer_id(attempt, lambda error: answer(InitializedProducer(error)))

    def _count_ids(self) -> int:
        return sum(len(shard.transactions) for shard in self.shards.active())

    def _with_producer_id(self, attempt: Callable[[int | None], Callable[[], None] | None], refuse: Answer) -> None:
        """Call what `attempt` returns, without a lock. If it returns None, call it again with a new producer id.

        `refuse` gets an error if there is no new producer id now.
        """
        new_producer_id: int | None = None
        while (outcome := attempt(new_producer_id)) is None:
            try:
                new_producer_id = self._next_producer_id()  # without the lock: it may wait for the store
            except NotNow:
                refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return
        outcome()

    def _try_init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Expected | None,
        new_producer_id: int | None,
        answer: Callable[[InitializedProducer], None],
        client_host: str,
    ) -> Callable[[], None] | None:
        """Initialize the producer. Returns what to call without the lock; None: a new producer id is needed."""
        with self.shards.hold(transactional_id) as shard:
            if isinstance(shard, ErrorCode):
                return functools.partial(answer, InitializedProducer(shard))
            transaction = shard.transactions.get(transactional_id)
            if transaction is None and not self._room.has_room(client_host):
                return functools.partial(answer, InitializedProducer(ErrorCode.POLICY_VIOLATION))
            if new_producer_id is None and (transaction is None or transaction.needs_producer_id(expected)):
                return None
            now_ms = self._clock.wall_ms()
            if transaction is None:
                assert new_producer_id is not None
                transaction = Transaction(transactional_id, new_producer_id, timeout_ms, now_ms)
                shard.add(transaction, client_host)
            transit = transaction.init_producer_id(timeout_ms, expected, new_producer_id, now_ms)
            if isinstance(transit, ErrorCode):
                return functools.partial(answer, InitializedProducer(transit))
            if transit.state is TransactionState.PREPARE_ABORT:
                # The open transaction is aborted first. The client is told CONCURRENT_TRANSACTIONS and asks again.
                then = self._endings.once_prepared(shard, transaction, functools.partial(_answer_aborting, answer))
            else:
                then = functools.partial(_answer_initialized, transit, answer)
            error = shard.store(transaction, transit, then)
        return _nothing if error is None else functools.partial(then, error)

    # --- a transaction -----------------------------------------------------------------------------------
    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
        client_version: int = FIRST_VERSION,
    ) -> None:
        """Add partitions to the producer's transaction; begins one if none is open.

        For AddPartitionsToTxn, and for AddOffsetsToTxn with the partition of the group's offsets. With `EPOCH_VERSION`
        for partitions that a producer writes to without having added them (KIP-890).
        """
        error: ErrorCode | None = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        with self._hold(transactional_id) as shard:
            if isinstance(shard, ErrorCode):
                error = shard
            elif (transaction := shard.transactions.get(transactional_id)) is not None:
                now_ms = self._clock.wall_ms()
                is_open = transaction.state is TransactionState.ONGOING
                transit = transaction.add_partitions(producer_id, producer_epoch, partitions, now_ms, client_version)
                if not is_open and isinstance(transit, Transit):
                    transaction.begun(self._deadlines.now_ms())
                error = transit if isinstance(transit, ErrorCode) else shard.store(transaction, transit, answer)
        if error is not None:
            answer(error)

    def add_when_ended(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        answer: Answer,
        client_version: int = EPOCH_VERSION,
    ) -> None:
        """Do what `add_partitions` does, when the markers of the transaction before are written.

        It waits for them for at most `add_wait_ms`: that transaction's EndTxn has been answered already, so the client
        may begin the next one.
        """

        asked = (transactional_id, producer_id, producer_epoch, partitions)

        def added(error: ErrorCode) -> None:
            if error is ErrorCode.CONCURRENT_TRANSACTIONS:
                again = functools.partial(self.add_partitions, *asked, answer, client_version)
                self._when_ended(transactional_id, again)
            else:
                answer(error)

        self.add_partitions(*asked, added, client_version)

    def _when_ended(self, transactional_id: str, call: Callable[[], None]) -> None:
        """Call `call` when no markers of the id are being written, or after `add_wait_ms`."""
        give_up: Callable[[], None] | None = None
        with self.shards.hold(transactional_id) as shard:
            if not isinstance(shard, ErrorCode) and transactional_id in shard.endings:
                shard.waiting.setdefault(transactional_id, []).append(call)
                give_up = functools.partial(_stop_waiting, shard, transactional_id, call)
        if give_up is None:
            call()
        else:
            self._deadlines.schedule(self._deadlines.now_ms() + self.options.add_wait_ms, give_up)

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """The error of each partition: NONE if it is in the producer's open transaction (KIP-890). Does not wait."""
        with self._hold(transactional_id) as shard:
            if isinstance(shard, ErrorCode):
                return dict.fromkeys(partitions, shard)
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            error = transaction.verify(producer_id, producer_epoch)
            if error:
                return dict.fromkeys(partitions, error)
            has = transaction.partitions
            return {each: ErrorCode.NONE if each in has else ErrorCode.TRANSACTION_ABORTABLE for each in partitions}

    def partition_count(self, transactional_id: str) -> int:
        """Return how many partitions the id's transaction has; 0 if the id is not served here.

        The number says how long ending the transaction takes.
        """
        with self.shards.hold(transactional_id) as shard:
            transaction = None if isinstance(shard, ErrorCode) else shard.transactions.get(transactional_id)
            return 0 if transaction is None else len(transaction.partitions)

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        answer: Answer,
    ) -> None:
        """Handle the EndTxn of a client that keeps its epoch.

        A client that began the transaction with version 2 ends it so if a Kafka has joined the cluster since, or if the
        client's connection is from a time when a Kafka was a member. It may go on with version 2, and would not ask
        this coordinator then whether all markers are written before its next transaction: with the same epoch a marker
        would end that one too. So it is answered with CONCURRENT_TRANSACTIONS until the markers are written, and asks
        again.
        """
        error: ErrorCode | None = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        then = answer
        with self._hold(transactional_id) as shard:
            if isinstance(shard, ErrorCode):
                error = shard
            elif (transaction := shard.transactions.get(transactional_id)) is not None:
                begun_with = transaction.client_version
                transit = transaction.end(producer_id, producer_epoch, commit, self._clock.wall_ms())
                if isinstance(transit, ErrorCode):
                    error = transit
                else:
                    told = _ask_again(answer) if begun_with >= EPOCH_VERSION else answer
                    then = self._endings.once_prepared(shard, transaction, told)
                    error = shard.store(transaction, transit, then)
        if error is not None:
            then(error)

    def end_with_bump(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        answer: Callable[[EndedTransaction], None],
    ) -> None:
        """Handle the EndTxn of a client that gets a new epoch. May block if `is_used_up`."""

        def attempt(new_producer_id: int | None) -> Callable[[], None] | None:
            return self._try_end(transactional_id, (producer_id, producer_epoch), commit, new_producer_id, answer)

        self._with_producer_id(attempt, lambda error: answer(EndedTransaction(error)))

    def _try_end(
        self,
        transactional_id: str,
        who: tuple[int, int],
        commit: bool,
        new_producer_id: int | None,
        answer: Callable[[EndedTransaction], None],
    ) -> Callable[[], None] | None:
        """End the transaction. Returns what to call without the lock; None: a new producer id is needed."""
        with self._hold(transactional_id) as shard:
            if isinstance(shard, ErrorCode):
                return functools.partial(answer, EndedTransaction(shard))
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                return functools.partial(answer, EndedTransaction(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
            if new_producer_id is None and transaction.is_used_up:
                return None
            transit = transaction.end_with_bump(*who, commit, new_producer_id, self._clock.wall_ms())
            if transit is ErrorCode.NONE:
                known = EndedTransaction(transit, transaction.producer_id, transaction.producer_epoch)
                return functools.partial(answer, known)
            if isinstance(transit, ErrorCode):
                return functools.partial(answer, EndedTransaction(transit))
            then = self._endings.once_prepared(shard, transaction, functools.partial(_answer_ended, transit, answer))
            error = shard.store(transaction, transit, then)
        return _nothing if error is None else functools.partial(then, error)

    def is_used_up(self, transactional_id: str) -> bool:
        """Whether the id's epochs are used up, so that its next epoch needs a new producer id, which may block."""
        with self.shards.hold(transactional_id) as shard:
            transaction = None if isinstance(shard, ErrorCode) else shard.transactions.get(transactional_id)
            return transaction is not None and transaction.is_used_up

    # --- what happens by itself --------------------------------------------------------------------------
    def _abort_timed_out(self) -> None:
        now_ms = self._deadlines.now_ms()
        for shard in self.shards.active():
            with shard.lock:
                due = [each for each in shard.transactions.values() if each.has_timed_out(now_ms)]
            for transaction in due:
                self._abort(shard, transaction, now_ms)

    def _abort(self, shard: TransactionShard, transaction: Transaction, now_ms: int) -> None:
        then = self._endings.once_prepared(shard, transaction, functools.partial(self._aborted, transaction))

        def attempt(new_producer_id: int | None) -> Callable[[], None] | None:
            with shard.lock:
                if shard.partition.phase is not Phase.ACTIVE or not transaction.has_timed_out(now_ms):
                    return _nothing
                if new_producer_id is None and transaction.is_used_up:
                    return None
                error = shard.store(transaction, transaction.fence(new_producer_id, self._clock.wall_ms()), then)
            return _nothing if error is None else functools.partial(then, error)

        self._with_producer_id(attempt, functools.partial(self._aborted, transaction))

    def _aborted(self, transaction: Transaction, error: ErrorCode) -> None:
        if error:
            return  # the next check finds the transaction again
        with self._lock:
            self._aborted_by_timeout += 1
        LOG.info(
            "the transaction of transactional id %r was open for longer than %d ms: aborted",
            transaction.transactional_id, transaction.timeout_ms,
        )  # fmt: skip

    def _expire(self) -> None:
        now_ms, count = self._clock.wall_ms(), 0
        for shard in self.shards.active():
            count += shard.expire(now_ms, self.options.id_expiration_ms)
        if count:
            LOG.info("%d transactional ids expired", count)

    # --- administration ----------------------------------------------------------------------------------
    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Describe one id as DescribeTransactions answers it."""
        if not transactional_id:
            return DescribedTransaction(
                ErrorCode.INVALID_REQUEST if self.shards.is_running else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        with self.shards.hold(transactional_id) as shard:
            if isinstance(shard, ErrorCode):
                return DescribedTransaction(shard)
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                return DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            ending = shard.endings.get(transactional_id)
            return DescribedTransaction(
                ErrorCode.NONE,
                transaction.state,
                transaction.timeout_ms,
                transaction.start_ms,
                transaction.producer_id,
                transaction.producer_epoch,
                frozenset(transaction.partitions if ending is None else ending.remaining),
            )

    def list_transactions(
        self, producer_ids: Collection[int] = (), states: Collection[str] = (), longer_than_ms: int = -1
    ) -> tuple[ErrorCode, list[ListedTransaction], list[str]]:
        """List the ids with one of `producer_ids`, in one of `states`, begun more than `longer_than_ms` ago.

        An empty collection and a negative number exclude nothing. Returns the error, the ids, and the names in `states`
        that are not states.
        """
        if not self.shards.is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, [], []
        if self.shards.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [], []
        wanted_ids, wanted_states = frozenset(map(number_key, producer_ids)), frozenset(states)
        now_ms = self._clock.wall_ms()
        listed: list[ListedTransaction] = []
        for shard in self.shards.active():
            with shard.lock:
                listed += [
                    ListedTransaction(each.transactional_id, each.producer_id, each.state)
                    for each in shard.transactions.values()
                    if (not wanted_ids or number_key(each.producer_id) in wanted_ids)
                    and (not wanted_states or each.state in wanted_states)
                    and (longer_than_ms < 0 or now_ms - each.start_ms > longer_than_ms)
                ]
        return ErrorCode.NONE, listed, sorted(wanted_states - _STATES)

    def transaction_counts(self) -> dict[str, int]:
        """Return how many transactional ids are in each state, for metrics."""
        counts = dict.fromkeys((str(state) for state in TransactionState), 0)
        for shard in self.shards.active():
            with shard.lock:
                for transaction in shard.transactions.values():
                    counts[transaction.state] += 1
        return counts

    def markers_waiting(self) -> int:
        """Return how many markers are not written yet, for metrics."""
        waiting = 0
        for shard in self.shards.active():
            with shard.lock:
                waiting += sum(len(ending.remaining) for ending in shard.endings.values())
        return waiting

    @property
    def aborted_by_timeout(self) -> int:
        """Return how many transactions were aborted because they were open for too long."""
        return self._aborted_by_timeout


def _answer_initialized(transit: Transit, answer: Callable[[InitializedProducer], None], error: ErrorCode) -> None:
    if error:
        answer(InitializedProducer(error))
    else:
        answer(InitializedProducer(ErrorCode.NONE, transit.producer_id, transit.producer_epoch))


def _answer_ended(transit: Transit, answer: Callable[[EndedTransaction], None], error: ErrorCode) -> None:
    if error:
        answer(EndedTransaction(error))
    elif transit.next_producer_id != NO_PRODUCER_ID:
        answer(EndedTransaction(error, transit.next_producer_id, 0))
    else:
        answer(EndedTransaction(error, transit.producer_id, transit.producer_epoch))


def _ask_again(answer: Answer) -> Answer:
    """Return what answers CONCURRENT_TRANSACTIONS where all went well."""
    return lambda error: answer(error or ErrorCode.CONCURRENT_TRANSACTIONS)


def _answer_aborting(answer: Callable[[InitializedProducer], None], error: ErrorCode) -> None:
    answer(InitializedProducer(error or ErrorCode.CONCURRENT_TRANSACTIONS))


def _stop_waiting(shard: TransactionShard, transactional_id: str, call: Callable[[], None]) -> None:
    """Call `call` unless that has happened: the markers of the id take too long."""
    with shard.lock:
        waiting = shard.waiting.get(transactional_id, [])
        if call not in waiting:
            return
        waiting.remove(call)
    call()


def _nothing() -> None:
    """Do nothing. It is returned where there is nothing to call: the answer is given later."""


def _end(shard: TransactionShard, error: ErrorCode) -> None:
    shard.end()
