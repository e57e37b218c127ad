"""The producer for threads."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kbroker._core.client.producer.accumulator import Accumulator
from kbroker._core.client.producer.engine import ProduceEngine
from kbroker._core.client.producer.partitioner import KINDS
from kbroker._core.client.producer.record_sender import RecordSender
from kbroker.client.arguments import seconds
from kbroker.client.config.parsing import parse_options, require_servers
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import ClientClosed, ClientError, TimedOut, UsageError
from kbroker.client.handlers import batch_caller, guarded, seeing_batches, seeing_records
from kbroker.client.network.faces import Blocking
from kbroker.client.network.thread import ClientThread
from kbroker.client.producer.background import Background
from kbroker.client.producer.calls import Calls
from kbroker.client.producer.compression import CompressionThread
from kbroker.client.producer.errors import REFUSALS, NoSuchPartition, RecordTooLarge
from kbroker.client.producer.older import older_form
from kbroker.client.producer.transaction_calls import TransactionOperations
from kbroker.errors import ErrorCode
from kbroker.protocol.compression import Codec

if TYPE_CHECKING:
    from kbroker.client.config.option_types import ProducerOptions
    from kbroker.client.zookeeper.discovery import Discovery

log = logging.getLogger("kbroker.client")

UNCLOSED_S = 1.0  #: how long a producer that is collected without `close` may flush
IDEMPOTENT_IN_FLIGHT = 5  #: how many batches of one producer a broker remembers for each partition


class Producer(RecordSender, TransactionOperations, Blocking):
    """Sends records to Kafka or kbroker, in the background. Every method may be called from any thread.

    Options are keywords, `Producer(bootstrap_servers="localhost:9092")`, or a mapping with Kafka's names. The producer
    is a context manager: the end of the `with` block waits until what was sent is delivered or has failed.

    The constructor raises TypeError for an option that does not exist, and ValueError for a value that is not allowed
    or contradicts another option. With zookeeper.connect it raises ConnectionFailed when ZooKeeper is not reached.
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
            max_record_size=min(options["max.request.size"], options["buffer.memory"]),
            batch_size=options["batch.size"],
            linger_ms=options["linger.ms"],
            codec=codec,
            partitioner=KINDS.get(named, 0) if isinstance(named, str) else 0,
            sticky_bytes=options["partitioner.sticky.bytes"],
            batch_records=options["batch.num.messages"],
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
        self._engine = ProduceEngine(
            accumulator,
            client_id=options["client.id"],
            transactional_id=transactional_id,
            acks=acks,
            request_timeout_ms=options["request.timeout.ms"],
            delivery_timeout_ms=options["delivery.timeout.ms"],
            max_in_flight=in_flight,
            max_request_size=options["max.request.size"],
            older_form=older_form,
        )
        if handlers := seeing_batches(options["handlers"]):
            self._engine.on_leaving = batch_caller(handlers)
        self._discovery: Discovery | None = None
        self._compression = None
        if codec:
            level = options["compression.level"]
            self._compression = CompressionThread(accumulator, codec, level, options["client.id"])
        require_servers(options)
        self._thread = ClientThread(options["client.id"], options["receive.message.max.bytes"])
        self._thread.at_fork = accumulator.abandon
        try:
            self._thread.call(self._start())
            if options["zookeeper.connect"]:
                from kbroker.client.zookeeper.discovery import Discovery

                self._discovery = Discovery(options)
                self._discovery.feed(self._background.cluster)
        except BaseException:
            self.close(timeout=0)
            raise
        at_exit = weakref.WeakMethod(self.close)
        self._thread.at_exit = lambda timeout_s: (close := at_exit()) and close(timeout_s)
        self._add_calls()
        for handler in options["handlers"]:
            guarded(handler.started, self)

    def _add_calls(self) -> None:
        """Replace the send methods where handlers see each record, or where producer.type=sync."""
        options = self.options
        handlers = seeing_records(options["handlers"])
        if handlers or options["producer.type"] == "sync":
            calls = Calls(self, handlers, synchronous=options["producer.type"] == "sync")
            self.send = calls.send  # type: ignore[method-assign, assignment]
            self.send_nowait = calls.send_nowait  # type: ignore[method-assign]
            self.send_many = calls.send_many  # type: ignore[method-assign]

    async def _start(self) -> None:
        self._background = Background(self._thread, self._engine, self.options, idempotent=self._idempotent)

    # --- topics ---------------------------------------------------------------------------------------------

    def await_topic(self, topic: str) -> None:
        """Wait until the partitions of `topic` are known, for at most max.block.ms.

        Raises NoSuchPartition when the name is empty, BrokerError when the broker refuses the topic, TimedOut when the
        time is over, and UsageError when called in a callback on the producer's thread.
        """
        self._thread.check()
        if not topic:
            raise NoSuchPartition(
                "a topic's name is empty", code=ErrorCode.INVALID_TOPIC_EXCEPTION, hint="name a topic"
            )
        if self._thread.is_own_thread:
            raise UsageError(f"topic {topic!r} is not known yet, and a callback cannot wait for it")
        self._thread.call(self._background.await_topic(topic))

    def has_partition(self, topic: str, partition: int) -> bool:
        """Ask a broker for fresh metadata and return whether the partition is there now: the topic may have grown.

        Returns False without asking where waiting is not possible: on the producer's thread, or with max.block.ms=0.
        """
        limit_s = self._background.block_s
        if self._thread.is_own_thread or limit_s == 0:
            return False
        return self._thread.call(self._background.count_partitions(topic, limit_s)) > partition

    # --- transactions ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """A context manager that runs one transaction: `with producer.transaction(): ...`.

        It begins a transaction, and commits it at the end of the block. An exception in the block aborts the
        transaction and is raised again. Raises what `begin_transaction` and `commit_transaction` raise.
        """
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

    # --- the end --------------------------------------------------------------------------------------------

    def refused(self, kind: str, text: str) -> Exception:
        """Return the exception for a record that is refused at the call; `kind` is a key of REFUSALS, or "shut"."""
        if kind == "shut":
            self._thread.check()
            if self._background.broken is not None:
                return self._background.broken
            if self._background.transactions is not None:
                return self._background.transactions.refusal()
        if kind == "too_large" and self.options["buffer.memory"] < self.options["max.request.size"]:
            return RecordTooLarge(text, hint="send less at once, or raise buffer.memory")
        return REFUSALS[kind](text)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is delivered or has failed; `timeout` None: as long as it takes.

        Raises TimedOut when that takes more than `timeout` seconds, ClientClosed when the producer is closed, and
        UsageError when called in a callback on the producer's thread.
        """
        self._thread.check()
        if self._thread.is_own_thread:
            raise UsageError("a flush in a callback would wait for itself")
        if not self.accumulator.flush(None if timeout is None else int(seconds(timeout) * 1000)):
            raise TimedOut(f"{self.accumulator.record_count} records are not delivered after {timeout:g} s")

    def close(self, timeout: float | None = None) -> None:
        """Abort an open transaction, flush for at most `timeout` seconds, then end the producer's thread.

        delivery.timeout.ms bounds the flush too. Records that are not delivered by then fail with ClientClosed. A
        prepared transaction stays open. Closing a closed producer does nothing.
        """
        if not self._thread.is_running:
            return
        started = time.monotonic()
        limit_s = self.options.seconds("delivery.timeout.ms") if timeout is None else timeout
        # The constructor calls this with timeout=0 when it fails: then `_background` may not exist yet.
        if timeout != 0 and not self._thread.is_own_thread and self._background.transactions is not None:
            try:
                self._thread.call(self._background.transactions.end(), limit_s, "abort_transaction")
            except ClientError as error:
                log.warning("the open transaction could not be ended: %s", error)
        self.accumulator.close()
        try:
            if not self._thread.is_own_thread:
                left = limit_s - (time.monotonic() - started)
                self.accumulator.flush(None if timeout is None else max(0, int(left * 1000)))
            for handler in self.options["handlers"]:
                guarded(handler.closing)
        finally:
            left = 10.0 if timeout is None else max(1.0, timeout - (time.monotonic() - started))
            self._thread.stop(left)
            self.fail_what_is_left(left)

    def fail_what_is_left(self, timeout_s: float) -> None:
        """Stop the helpers, run the callbacks that are due, and fail all other records. The thread must have ended."""
        if self._discovery is not None:
            self._discovery.close()
        if self._compression is not None:
            self._compression.stop(timeout_s)
        self._engine.run_callbacks()
        self._engine.fail_all(ClientClosed("the producer was closed before the record was delivered"))

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.is_running:
            said = f"a producer ({self.options['client.id']}) was not closed"
            warnings.warn(said, ResourceWarning, stacklevel=2, source=self)
            self.close(timeout=UNCLOSED_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
