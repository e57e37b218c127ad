"""The producer that users have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kbroker._core.accumulator import Accumulator
from kbroker._core.partitioner import KINDS
from kbroker._core.produce_engine import ProduceEngine
from kbroker._core.record_sender import RecordSender
from kbroker.client.admin_results import CommittedOffset
from kbroker.client.cluster import Cluster
from kbroker.client.cluster_view import ClusterView, TopicView
from kbroker.client.config import Options, parse_options
from kbroker.client.connection import Network
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata
from kbroker.client.errors import ClientClosed, ClientError, TimedOut, UsageError, raise_for
from kbroker.client.producer.compression import CompressionThread
from kbroker.client.producer.errors import REFUSALS, NoSuchPartition
from kbroker.client.producer.options import PRODUCER
from kbroker.client.producer.sender import Sender
from kbroker.client.producer.transactions import Transactions
from kbroker.client.thread import ClientThread
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.compression import Codec

if TYPE_CHECKING:
    from kbroker.client.option_types import ProducerOptions

log = logging.getLogger("kbroker.client")

IDEMPOTENT_IN_FLIGHT = 5  #: a broker remembers so many batches of a producer in a partition


class Producer(RecordSender):
    """Sends records to Kafka or kbroker, in the background. Every method may be called from any thread.

    `Producer(bootstrap_servers="localhost:9092")`, or a mapping of options with Kafka's names. A context manager: its
    end waits for what was sent.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Unpack[ProducerOptions]):
        options = parse_options(PRODUCER, config, keywords, "the producer")
        self.options = options
        acks, idempotent = options["acks"], options["enable.idempotence"]
        if idempotent and acks != -1:
            raise ValueError(f"enable.idempotence=true needs acks=all, not acks={acks}")
        in_flight = options["max.in.flight.requests.per.connection"]
        if idempotent and in_flight > IDEMPOTENT_IN_FLIGHT:
            raise ValueError(
                f"enable.idempotence=true allows max.in.flight.requests.per.connection up to {IDEMPOTENT_IN_FLIGHT}"
            )
        transactional_id = options["transactional.id"]
        if transactional_id is not None and (idempotent is False or acks != -1 or in_flight > IDEMPOTENT_IN_FLIGHT):
            raise ValueError(
                "transactional.id needs enable.idempotence=true, acks=all and max.in.flight.requests.per.connection up "
                f"to {IDEMPOTENT_IN_FLIGHT}"
            )
        if idempotent is None:
            idempotent = acks == -1 and in_flight <= IDEMPOTENT_IN_FLIGHT
        named, enqueue_ms = options["partitioner"], options["queue.enqueue.timeout.ms"]
        codec = Codec[options["compression.type"].upper()]
        accumulator = Accumulator(
            memory=options["buffer.memory"],
            records=options["queue.buffering.max.messages"],
            max_record_size=options["max.request.size"],
            batch_size=options["batch.size"],
            linger_ms=options["linger.ms"],
            codec=codec,
            partitioner=KINDS.get(named, 0) if isinstance(named, str) else 0,
            sticky_bytes=options["partitioner.sticky.bytes"],
            idempotent=idempotent,
            transactional=transactional_id is not None,
        )
        super().__init__(
            accumulator,
            partitioner=None if isinstance(named, str) else named,
            key_encoder=options["key.encoder"],
            value_encoder=options["value.encoder"],
            block_ms=options["max.block.ms"] if enqueue_ms is None else enqueue_ms,
        )
        self._idempotent = idempotent
        self._transactions: Transactions | None = None
        self._engine = ProduceEngine(
            accumulator,
            client_id=options["client.id"],
            transactional_id=transactional_id,
            acks=acks,
            request_timeout_ms=options["request.timeout.ms"],
            delivery_timeout_ms=options["delivery.timeout.ms"],
            max_in_flight=in_flight,
            max_request_size=options["max.request.size"],
        )
        self._compression = None
        if codec:
            level = options["compression.level"]
            self._compression = CompressionThread(accumulator, codec, level, options["client.id"])
        self._thread = ClientThread(options["client.id"], options["receive.message.max.bytes"])
        try:
            self._thread.call(self._start(options))
        except BaseException:
            self.close(timeout=0)
            raise
        self._thread.at_exit = self.close

    async def _start(self, options: Options) -> None:
        self._cluster = Cluster(Network(self._thread, options))
        self._cluster.on_view.append(self._seen)
        if options["transactional.id"] is not None:
            self._transactions = Transactions(
                self._engine, self._cluster, options["transactional.id"], options["transaction.timeout.ms"]
            )
        self._sender = Sender(
            self._engine,
            idempotent=self._idempotent,
            retries=options["retries"],
            delivery_timeout_ms=options["delivery.timeout.ms"],
            retry_backoff_ms=options["retry.backoff.ms"],
            retry_backoff_max_ms=options["retry.backoff.max.ms"],
            refresh=self._refresh,
            renew=self._renew,
            transactions=self._transactions,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._thread.pump.add(self._engine)
        if self._idempotent and self._transactions is None:
            self._renew()

    # --- topics ---------------------------------------------------------------------------------------------

    def await_topic(self, topic: str) -> None:
        """Until its metadata are there; BrokerError or TimedOut when they are not within max.block.ms."""
        self._thread.check()
        if not topic:
            raise NoSuchPartition("a topic's name is empty", code=ErrorCode.INVALID_TOPIC_EXCEPTION)
        if self._thread.is_own_thread:
            raise UsageError(f"topic {topic!r} is not known yet, and a callback cannot wait for it")
        limit_s = None if self.options["max.block.ms"] < 0 else self.options.seconds("max.block.ms")
        self._thread.call(self._learn(topic, limit_s), limit_s, f"metadata of topic {topic!r}")

    async def _learn(self, topic: str, timeout_s: float | None) -> None:
        create = self.options["allow.auto.create.topics"]

        async def attempt() -> None:
            await self._cluster.metadata([topic], allow_auto_creation=create)
            found = self._cluster.view.topics.get(topic)
            if found is None:
                raise_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, f"topic {topic!r}")
            elif not found.partitions:
                raise_for(found.error_code or ErrorCode.LEADER_NOT_AVAILABLE, None, f"topic {topic!r}")

        await self._cluster.retried(attempt, timeout_s=timeout_s)
        if topic not in self.accumulator.topics:
            self._cluster.add_topics([topic])
            self._take(self._cluster.view.topics[topic])

    def _seen(self, view: ClusterView) -> None:
        for name in self.accumulator.topics:
            found = view.topics.get(name)
            if found is not None and found.partitions:
                self._take(found)

    def _take(self, topic: TopicView) -> None:
        partitions = [topic.partitions.get(i) for i in range(max(topic.partitions) + 1)]
        self.accumulator.set_topic(
            topic.name,
            [-1 if each is None else each.leader_id for each in partitions],
            [-1 if each is None else each.leader_epoch for each in partitions],
        )

    def _refresh(self, topics: Collection[str]) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._spawn(self._refresh_until_led())

    async def _refresh_until_led(self) -> None:
        """Metadata again and again, while there are records for a partition without a leader."""
        while True:
            try:
                await self._cluster.refresh()
            except ClientError:
                pass
            self._seen(self._cluster.view)
            await asyncio.sleep(self.options.seconds("retry.backoff.ms"))
            leaderless, _ = self._engine.waiting()
            if not leaderless:
                return

    # --- who the producer is --------------------------------------------------------------------------------

    def _renew(self) -> None:
        self._spawn(self._initialize())

    async def _initialize(self) -> None:
        """A producer id, for as long as it takes: batches expire by themselves."""
        while True:
            try:
                answer = await self._cluster.call(
                    M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
                )
                raise_for(answer.error_code, None, "a producer id")
                break
            except ClientError:
                await asyncio.sleep(self.options.seconds("retry.backoff.ms"))
        self._sender.renewed(answer.producer_id, answer.producer_epoch)

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = self._thread.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- transactions ---------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction: whoever had the transactional.id before is fenced.

        This and what follows wait for `timeout` seconds (None: max.block.ms), then raise TimedOut, and go on in the
        background: the same call again waits for the same end. TransactionMustAbort when the transaction can only be
        aborted, TransactionFailed and ProducerFenced when the producer cannot go on.
        """
        self._transact(self._transactional().init(), timeout, "init_transactions")

    def begin_transaction(self) -> None:
        """What is sent from now on, by any thread, belongs to the transaction."""
        self._transact(self._transactional().begin(), None, "begin_transaction")

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | CommittedOffset] | Mapping[tuple[str, int], int | CommittedOffset],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit these with the transaction: for each partition the offset of the next record to be read.

        `group_metadata` is `Consumer.group_metadata()`: a consumer that has lost its partitions is refused (KIP-447).
        """
        wanted: dict[tuple[str, int], CommittedOffset] = {}
        for (topic, partition), offset in offsets.items():
            committed = offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset, -1, "")
            if committed.offset < 0:
                raise ValueError(f"{topic}-{partition}: offset {committed.offset}")
            wanted[topic, partition] = committed
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise TypeError(f"group_metadata must be a ConsumerGroupMetadata, not {type(group_metadata).__name__}")
        transactions = self._transactional()
        if wanted:
            what = "send_offsets_to_transaction"
            self._transact(transactions.send_offsets(wanted, group_metadata), timeout, what)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush, then make everything of the transaction visible at once."""
        self._transact(self._transactional().commit(), timeout, "commit_transaction")

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Nothing of the transaction is ever seen by readers of committed records; what was not sent is not."""
        self._transact(self._transactional().abort(), timeout, "abort_transaction")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` begins one, and commits it; or aborts it when there is an exception."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException as error:
            try:
                self.abort_transaction()
            except ClientError as failure:
                error.add_note(f"and the transaction could not be aborted: {failure}")
            raise

    def _transactional(self) -> Transactions:
        self._thread.check()
        if self._transactions is None:
            raise UsageError("the producer has no transactional.id")
        return self._transactions

    def _transact(self, work: Coroutine[Any, Any, None], timeout: float | None, what: str) -> None:
        limit_s = timeout
        if timeout is None and self.options["max.block.ms"] >= 0:
            limit_s = self.options.seconds("max.block.ms")
        self._thread.call(work, limit_s, what)

    # --- the end --------------------------------------------------------------------------------------------

    def refused(self, kind: str, text: str) -> Exception:
        if kind == "shut" and self._transactions is not None:
            return self._transactions.refusal()
        return REFUSALS[kind](text)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is delivered or has failed; TimedOut after `timeout` seconds."""
        self._thread.check()
        if self._thread.is_own_thread:
            raise UsageError("a flush in a callback would wait for itself")
        if not self.accumulator.flush(None if timeout is None else int(timeout * 1000)):
            raise TimedOut(f"{self.accumulator.record_count} records are not delivered after {timeout:g} s")

    def close(self, timeout: float | None = None) -> None:
        """Flush, for `timeout` seconds at most (delivery.timeout.ms bounds it anyway), then end; what is left fails."""
        if not self._thread.is_running:
            return
        started = time.monotonic()
        limit_s = self.options.seconds("delivery.timeout.ms") if timeout is None else timeout
        if self._transactions is not None and timeout != 0 and not self._thread.is_own_thread:
            try:
                self._thread.call(self._transactions.end(), limit_s, "abort_transaction")
            except ClientError as error:
                log.warning("the open transaction could not be ended: %s", error)
        self.accumulator.close()
        try:
            if not self._thread.is_own_thread:
                left = limit_s - (time.monotonic() - started)
                self.accumulator.flush(None if timeout is None else max(0, int(left * 1000)))
        finally:
            left = 10.0 if timeout is None else max(1.0, timeout - (time.monotonic() - started))
            self._thread.stop(left)
            self.fail_what_is_left(left)

    def fail_what_is_left(self, timeout_s: float) -> None:
        """After the end of the thread."""
        if self._compression is not None:
            self._compression.stop(timeout_s)
        self._engine.run_callbacks()
        self._engine.fail_all(ClientClosed("the producer was closed before the record was delivered"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
