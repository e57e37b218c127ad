"""A transactional producer's dealings with its coordinator (KIP-98, KIP-360, KIP-447, KIP-890).

    NEW --init--> READY --begin--> OPEN --commit--> COMMITTING --> READY
                                   OPEN, ABORTABLE --abort--> ABORTING --> READY
                                   OPEN --prepare--> PREPARING --> PREPARED, which is ended like OPEN
    ABORTABLE: a part of the transaction has failed. FATAL: the producer cannot go on; any state may become FATAL.

Version 1 of transactions: the client adds each partition at the coordinator before it sends the first batch there;
batches of other partitions go on meanwhile. Version 2 is used where the cluster's feature transaction.version is 2:
brokers add partitions themselves, and the response to EndTxn has the epoch of the next transaction.

What a call has begun goes on when its caller's time is over. Calling the same method again waits for the same end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any, Final, NoReturn

from kbroker._core.client.producer.engine import ProduceEngine
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.errors import RETRIABLE, BrokerError, ClientError, ConnectionFailed, TimedOut, UsageError, error_of
from kbroker.client.network.backoff import retry_backoff
from kbroker.client.network.cluster import COORDINATOR, GROUP, TRANSACTION, Cluster
from kbroker.client.prepared_transaction import LAST_VERSION_1, PreparedTransaction
from kbroker.client.producer.errors import (
    BrokerTooOld,
    ProducerFenced,
    TransactionAborted,
    TransactionFailed,
    TransactionMustAbort,
)
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

log = logging.getLogger("kbroker.client")

Offsets = Mapping[tuple[str, int], OffsetAndMetadata]

FEATURE: Final = "transaction.version"
RENEWING_VERSION: Final = 3  #: the version of InitProducerId with which a producer renews its own epoch (KIP-360)
GENERATION_VERSION: Final = 3  #: the version of TxnOffsetCommit that has the group's generation (KIP-447)
CONCURRENT_WAIT_S: Final = 0.02  #: the wait after CONCURRENT_TRANSACTIONS: the coordinator soon ends the previous one

ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors of Produce after which the producer cannot go on."""
FATAL_OF_COORDINATOR = FATAL | {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
ABORTABLE_AT_END = frozenset({ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_PRODUCER_ID})


class State(Enum):
    NEW = "init_transactions has to be called first"
    READY = "begin_transaction has to be called first"
    OPEN = "a transaction is open; commit or abort it first"
    PREPARING = "the transaction is being prepared; prepare_transaction waits for it"
    PREPARED = "the transaction is prepared; commit or abort it first"
    COMMITTING = "the transaction is being committed; commit_transaction waits for it"
    ABORTING = "the transaction is being aborted; abort_transaction waits for it"
    ABORTABLE = "the transaction cannot be committed any more"
    FATAL = "the producer cannot go on"


GOING_ON = (State.OPEN, State.PREPARING, State.COMMITTING)
"""States in which records of the transaction may be under way."""


class Transactions:
    """The transactions of one producer. For the client's thread."""

    def __init__(self, engine: ProduceEngine, cluster: Cluster, transactional_id: str, timeout_ms: int):
        self.state = State.NEW
        self.error: ClientError | None = None
        """Why the state is ABORTABLE or FATAL."""
        self._engine = engine
        self._accumulator = engine.accumulator
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._producer_id, self._epoch = -1, -1
        self._version = 1
        self._running: asyncio.Task[None] | None = None
        self._adding: asyncio.Task[None] | None = None
        self._to_add: set[tuple[str, int]] = set()
        self._has_offsets = False
        self._end_asked = False
        self._wants_epoch = False  # a part of the transaction has failed: renew the epoch after its end
        self._needs_epoch = False  # ... and brokers may have records of it: a new epoch is necessary
        self._empty = asyncio.Event()
        self._accumulator.shut()

    # --- what users call ------------------------------------------------------------------------------------

    async def init(self) -> None:
        await self._run("init_transactions", self._init, State.NEW)

    async def begin(self) -> None:
        self._require("begin_transaction", State.READY)
        self._version = 2 if self._cluster.network.features.get(FEATURE, 0) >= 2 else 1
        self._engine.set_transaction_version(self._version)
        self.state = State.OPEN
        self._accumulator.open()

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        while self._running is not None and self._is_running("send_offsets_to_transaction"):
            await asyncio.wait([self._running])
        await self._run("send_offsets_to_transaction", lambda: self._send_offsets(offsets, group), State.OPEN)

    async def commit(self) -> None:
        await self._run("commit_transaction", self._commit, State.OPEN, State.PREPARED)

    async def prepare(self) -> PreparedTransaction:
        await self._run("prepare_transaction", self._prepare, State.OPEN, State.PREPARED)
        return PreparedTransaction(self._id, self._producer_id, self._epoch, self._version)

    async def abort(self) -> None:
        if self._running is not None and not self._running.done() and not self._end_asked:
            if self.state in (State.PREPARING, State.COMMITTING):
                self._running.cancel()  # EndTxn was not sent yet
            if self.state in (State.OPEN, State.PREPARING, State.COMMITTING, State.ABORTABLE):
                self.state = State.ABORTING  # requests of the running call are not tried again
                await asyncio.wait([self._running])
        await self._run("abort_transaction", self._abort, State.OPEN, State.PREPARED, State.ABORTABLE, State.ABORTING)

    async def end(self) -> None:
        """Finish before the producer closes: wait for a commit that EndTxn was sent for, abort an open transaction.

        A prepared transaction stays open.
        """
        if self.state is State.COMMITTING and self._end_asked:
            await self.commit()
        elif self.state in (State.OPEN, State.PREPARING, State.COMMITTING, State.ABORTING, State.ABORTABLE):
            await self.abort()

    def refusal(self) -> ClientError:
        """Return the exception that says why nothing can be sent now."""
        return self._wrong("send") or UsageError("the transaction has just been begun by another thread: send again")

    # --- what the sender tells ------------------------------------------------------------------------------

    def note_progress(self) -> None:
        """Note that the engine has something to tell: all records may be delivered or have failed."""
        if self._accumulator.record_count == 0:
            self._empty.set()

    def add(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Add partitions to the transaction, because there are records for them."""
        if self.state in GOING_ON:
            self._to_add.update(partitions)
            if self._to_add and (self._adding is None or self._adding.done()):
                self._adding = asyncio.create_task(self._add())
                self._adding.add_done_callback(_look_at)

    def batch_failed(self, error: ClientError, *, unsure: bool) -> None:
        """Note that records of the transaction are not delivered. `unsure`: a broker may have them."""
        self._wants_epoch = True
        self._needs_epoch |= unsure
        self._fail(error, fatal=error.code in FATAL)

    # --- steps ----------------------------------------------------------------------------------------------

    async def _init(self) -> None:
        await self._identify(-1, -1)
        self.state = State.READY

    async def _identify(self, producer_id: int, epoch: int, lowest: int = 0) -> None:
        asked = M.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = await self._call_coordinator(asked, lambda answer: [answer.error_code], lowest=lowest, always=True)
        if answer.error_code:
            self._give_up(answer.error_code, "init_transactions" if epoch < 0 else "another epoch")
        self._become(answer.producer_id, answer.producer_epoch)

    def _become(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._engine.set_producer(producer_id, epoch)
        self._wants_epoch = self._needs_epoch = False

    async def _add(self) -> None:
        """Add the waiting partitions at the coordinator, all of them with one request each time."""
        R = M.AddPartitionsToTxnRequest
        backoff = retry_backoff(self._cluster.network.options)
        while self._to_add and self.state in GOING_ON:
            asked = sorted(self._to_add)
            topics: dict[str, list[int]] = {}
            for topic, partition in asked:
                topics.setdefault(topic, []).append(partition)
            request = R(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self._producer_id,
                v3_and_below_producer_epoch=self._epoch,
                v3_and_below_topics=[R.AddPartitionsToTxnTopic(name=n, partitions=p) for n, p in topics.items()],
            )
            answer = await self._call_coordinator(request, _added_code, until_known=True)
            found = {
                (topic.name, each.partition_index): each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            again = False
            for topic, partition in asked:
                code = found.get((topic, partition), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code == ErrorCode.NONE:
                    self._to_add.discard((topic, partition))
                    self._engine.admit(topic, partition)
                elif code in RETRIABLE or code == ErrorCode.OPERATION_NOT_ATTEMPTED:
                    again = True
                else:
                    self._refused(code, f"{topic}-{partition} in a transaction")
            if again:
                await asyncio.sleep(backoff.next_s())

    async def _send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        if self._version == 1:
            adding = M.AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group.group_id,
            )
            answer = await self._call_coordinator(adding, lambda answer: [answer.error_code], until_known=True)
            if answer.error_code:
                self._refused(answer.error_code, f"offsets of group {group.group_id!r} in a transaction")
                self._require("send_offsets_to_transaction", State.OPEN)
        self._has_offsets = True
        self._require("send_offsets_to_transaction", State.OPEN)
        R = M.TxnOffsetCommitRequest
        topics: dict[str, list[M.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), committed in offsets.items():
            topics.setdefault(topic, []).append(
                R.TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        request = R(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[R.TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        is_member = group.generation_id >= 0 or group.member_id != ""
        answer = await self._call_coordinator(
            request,
            lambda answer: [each.error_code for topic in answer.topics for each in topic.partitions],
            group=group.group_id,
            lowest=GENERATION_VERSION if is_member else 0,
        )
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    self._refused(each.error_code, f"offset of {topic.name}-{each.partition_index}")
        self._require("send_offsets_to_transaction", State.OPEN)

    async def _prepare(self) -> None:
        if self.state is State.PREPARED:
            return
        self.state = State.PREPARING
        self._accumulator.shut()
        await self._drained()
        self._require("prepare_transaction", State.PREPARING)
        if not (self._engine.began or self._has_offsets):
            self.state = State.OPEN
            self._accumulator.open()
            raise UsageError("prepare_transaction: nothing was sent in the transaction, so nobody could end it")
        self.state = State.PREPARED

    async def _commit(self) -> None:
        self.state = State.COMMITTING
        self._accumulator.shut()
        await self._drained()
        self._require("commit_transaction", State.COMMITTING)
        await self._end(True)

    async def _abort(self) -> None:
        self.state = State.ABORTING
        self._accumulator.shut()
        self._engine.fail_unsent(TransactionAborted("the transaction was aborted before the record was sent"))
        self._to_add.clear()
        if self._adding is not None and not self._adding.done():
            await asyncio.wait([self._adding])  # the coordinator must not add partitions after the end
        await self._drained()
        self._require("abort_transaction", State.ABORTING)
        await self._end(False)

    async def _end(self, committed: bool) -> None:
        if self._engine.began or self._has_offsets:
            self._end_asked = True
            request = M.EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=committed,
            )
            answer = await self._call_coordinator(request, lambda answer: [answer.error_code], always=True)
            self._end_asked = False
            if answer.error_code in FENCED and not committed:
                # The transaction took too long and was aborted, or another producer has begun. Asking for a new epoch
                # shows which.
                self._needs_epoch = True
            elif answer.error_code in ABORTABLE_AT_END and committed:
                self._wants_epoch = self._needs_epoch = True
                self._refused(answer.error_code, "commit_transaction")
                self._require("commit_transaction", State.COMMITTING)
            elif answer.error_code:
                self._give_up(answer.error_code, "commit_transaction" if committed else "abort_transaction")
            elif self._version == 2:
                self._become(answer.producer_id, answer.producer_epoch)
        if self._wants_epoch or self._needs_epoch:
            await self._renew()
        self._engine.end_transaction()
        self._has_offsets = False
        self.error = None
        self.state = State.READY

    async def _renew(self) -> None:
        """Get another epoch, so that no late batch of this transaction can get into the next one."""
        try:
            await self._identify(self._producer_id, self._epoch, RENEWING_VERSION)
        except BrokerTooOld as error:
            if self._needs_epoch:
                self._fail(error, fatal=True)
                self._require("abort_transaction")
            self._wants_epoch = False

    async def _drained(self) -> None:
        """Wait until every record is delivered or has failed."""
        while self._accumulator.record_count:
            self._empty.clear()
            self._engine.tell_when_empty()
            await self._empty.wait()

    # --- asking ---------------------------------------------------------------------------------------------

    async def _call_coordinator(
        self,
        message: M.Message,
        codes: Callable[[Any], Collection[int]],
        *,
        group: str | None = None,
        lowest: int = 0,
        always: bool = False,
        until_known: bool = False,
    ) -> Any:
        """Send a request to the coordinator, again while its answer has a retriable error, and return the answer.

        `codes(answer)` returns its error codes. `group`: ask the coordinator of that group instead. Raises BrokerTooOld
        when the broker does not serve version `lowest`. While the transaction is being aborted, or the producer cannot
        go on, requests are not tried again, and this raises TransactionAborted; except with `always`, or with
        `until_known` while it is not known whether the coordinator has acted on the request.
        """
        key, kind = (self._id, TRANSACTION) if group is None else (group, GROUP)
        api_key = ApiKey(message.API_KEY)  # type: ignore[arg-type]
        backoff = retry_backoff(self._cluster.network.options)
        while True:
            code, unknown = ErrorCode.NONE, False
            try:
                version = -1
                connection = await self._cluster.connection(await self._cluster.coordinator(key, kind), COORDINATOR)
                version = connection.version_of(api_key)
                if self._version == 1:
                    version = min(version, LAST_VERSION_1.get(api_key, version))
                if version < lowest:
                    raise BrokerTooOld(
                        f"{connection.address} serves {api_key.label} up to {version} only, not {lowest}"
                    )
                answer = await connection.call(message, version=version)
                code = next((error_of(each) for each in codes(answer) if each in RETRIABLE), code)
                if code == ErrorCode.NONE:
                    return answer
                if code in ELSEWHERE:
                    self._cluster.forget_coordinator(key, kind)
            except BrokerTooOld:
                raise
            except ClientError as error:
                if not error.retriable:
                    self._fail(error, fatal=True)
                    self._require(api_key.label)
                unknown = version >= 0
                if isinstance(error, ConnectionFailed | TimedOut):
                    self._cluster.forget_coordinator(key, kind)
                log.debug("%s of transactional id %r is tried again: %s", api_key.label, self._id, error)
            if self.state in (State.ABORTING, State.FATAL) and not (always or (until_known and unknown)):
                raise TransactionAborted(f"{api_key.label}: the transaction was aborted meanwhile")
            concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS
            await asyncio.sleep(CONCURRENT_WAIT_S if concurrent else backoff.next_s())

    # --- states ---------------------------------------------------------------------------------------------

    def _is_running(self, name: str) -> bool:
        return self._running is not None and not self._running.done() and self._running.get_name() == name

    async def _run(self, name: str, work: Callable[[], Awaitable[None]], *allowed: State) -> None:
        """Run `work` as the call `name`, if the state is one of `allowed`; if that call runs already, wait for its end.

        One call runs at a time: raises UsageError while another one has not ended. The call goes on when its caller
        stops waiting.
        """
        if not self._is_running(name):
            if self._running is not None and not self._running.done():
                raise UsageError(f"{name}: {self._running.get_name()} has not ended; call that again to wait for it")
            self._running = asyncio.create_task(self._begun(name, work, allowed), name=name)
            self._running.add_done_callback(_look_at)
        assert self._running is not None
        await asyncio.shield(self._running)

    async def _begun(self, name: str, work: Callable[[], Awaitable[None]], allowed: Collection[State]) -> None:
        """Check the state and do the work, in the task of the call: a batch may have failed since the call was made."""
        self._require(name, *allowed)
        await work()

    def _require(self, name: str, *allowed: State) -> None:
        if self.state not in allowed:
            raise self._wrong(name) or UsageError(f"{name}: {self.state.value}")

    def _wrong(self, name: str) -> ClientError | None:
        """Return the exception for a call that the state forbids; None while a transaction is open."""
        if self.state is State.OPEN:
            return None
        if self.state not in (State.ABORTABLE, State.FATAL):
            return UsageError(f"{name}: {self.state.value}")
        kind = TransactionMustAbort if self.state is State.ABORTABLE else TransactionFailed
        assert self.error is not None
        if self.state is State.FATAL and self.error.code in FENCED:
            kind = ProducerFenced
        failure = kind(
            f"{name}: {self.state.value}: {self.error.message}", code=self.error.code, hint=kind.hint or None
        )
        failure.retriable = False
        failure.__cause__ = self.error
        return failure

    def _refused(self, code: int, what: str) -> None:
        """Note an error of the coordinator that is not retriable: the transaction, or the producer, has failed."""
        known = error_of(code)
        self._wants_epoch |= known == ErrorCode.UNKNOWN_PRODUCER_ID
        self._fail(BrokerError(f"{what}: {known.name}", code=known), fatal=known in FATAL_OF_COORDINATOR)

    def _give_up(self, code: int, what: str) -> NoReturn:
        known = error_of(code)
        self._fail(BrokerError(f"{what}: {known.name}", code=known), fatal=True)
        self._require(what)
        raise AssertionError(self.state)

    def _fail(self, error: ClientError, *, fatal: bool) -> None:
        if self.state is State.FATAL or (self.state is State.ABORTING and not fatal):
            return
        log.warning("transactional id %r: %s: %s", self._id, "it cannot go on" if fatal else "it has to abort", error)
        self._accumulator.shut()
        self.error = error
        self.state = State.FATAL if fatal else State.ABORTABLE
        failure = self._wrong("send")
        assert failure is not None
        # Soon, not now: first everything that the engine is telling at the moment is decided.
        fail = self._engine.fail_all if fatal else self._engine.fail_unsent
        asyncio.get_running_loop().call_soon(fail, failure)


def _added_code(answer: Any) -> list[int]:
    """Return the error codes that concern the request as a whole.

    One code for all partitions is the coordinator's, unless it is UNKNOWN_TOPIC_OR_PARTITION.
    """
    codes = {
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    return [code for code in codes if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] if len(codes) == 1 else []


def _look_at(task: asyncio.Task[None]) -> None:
    """Read the exception of a task that is done, so that asyncio does not log that nobody retrieved it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("%s: %s", task.get_name(), error)
