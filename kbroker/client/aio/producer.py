"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.client.aio.waiting import Waiting
from kbroker.client.config.parsing import parse_options
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import ClientError, TimedOut, UsageError
from kbroker.client.handlers import (
    ProducerHandler,
    QueuedRecord,
    call_after_enqueue,
    call_before_enqueue,
    guarded,
    seeing_records,
)
from kbroker.client.network.faces import Awaiting
from kbroker.client.producer.columns import is_column, objects_of, queued_records
from kbroker.client.producer.errors import NoSuchPartition, QueueFull
from kbroker.client.producer.producer import Producer
from kbroker.client.producer.transaction_calls import TransactionOperations

if TYPE_CHECKING:
    from kbroker.client.config.option_types import ProducerOptions

log = logging.getLogger("kbroker.client")

COMPRESSION_ENDS_S = 1.0  #: how long to wait for the compression thread, which has nothing left to do

T = TypeVar("T")
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class TopicNotKnown(UsageError):
    """Raised by a call that does not wait when the topic's partitions are not known yet. `topic` is its name."""

    hint = "await await_topic, or send instead of send_nowait"

    def __init__(self, topic: str):
        super().__init__(f"the partitions of topic {topic!r} are not known yet")
        self.topic = topic


class _Impatient(Producer):
    """A Producer whose calls never wait, for AsyncProducer.

    AsyncProducer repeats a call once there is room, and calls handlers and encoders itself before.
    """

    def __init__(self, config: Mapping[str, Any] | None, /, **keywords: Unpack[ProducerOptions]):
        if parse_options(PRODUCER, config, keywords, "the producer")["producer.type"] == "sync":
            raise ValueError(
                "producer.type=sync would block the event loop; await send_and_wait of an AsyncProducer instead"
            )
        self.waiting = Waiting()
        super().__init__(config, **keywords)
        self.block_ms = 0
        self.encode_key = self.encode_value = None

    def _add_calls(self) -> None:
        pass

    def fail_what_is_left(self, timeout_s: float) -> None:
        super().fail_what_is_left(timeout_s)
        self.waiting.wake_all()

    def await_topic(self, topic: str) -> None:
        self._thread.check()
        raise TopicNotKnown(topic)

    def has_partition(self, topic: str, partition: int) -> bool:
        self._thread.call_soon(self._background.cluster.refresh_soon)
        return False


class AsyncProducer(TransactionOperations, Awaiting):
    """Sends records to Kafka or kbroker, in the background. Any tasks of any event loops may use it.

    `AsyncProducer(bootstrap_servers="localhost:9092")` takes the options of Producer, except producer.type=sync, and
    raises the same for wrong ones. The end of an `async with` block waits until what was sent is delivered or has
    failed.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Unpack[ProducerOptions]):
        self._producer = _Impatient(config, **keywords)
        self.options = options = self._producer.options
        self._thread = self._producer._thread
        self._background = self._producer._background
        self._accumulator = self._producer.accumulator
        enqueue_ms = options["queue.enqueue.timeout.ms"]
        block_ms = options["max.block.ms"] if enqueue_ms is None else enqueue_ms
        self._room_s: float | None = block_ms / 1000 if block_ms >= 0 else None
        self._waiting = waiting = self._producer.waiting
        self._handlers: Sequence[ProducerHandler] = seeing_records(options["handlers"])
        self._encode_key, self._encode_value = options["key.encoder"], options["value.encoder"]
        self._is_plain = not self._handlers and self._encode_key is None and self._encode_value is None
        engine = self._producer._engine
        decide = self._background.sender.handle_news

        def handle_news() -> None:
            decide()
            waiting.wake_all()

        engine.on_told = handle_news

    # --- sending --------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Put a record into the queue as soon as there is room. Await the returned Delivery to know what became of it.

        See `Producer.send` for the arguments. Returns None when a handler has dropped the record. Raises QueueFull when
        there is no room within max.block.ms, RecordTooLarge, NoSuchPartition, BrokerError or TimedOut when the topic
        cannot be found, and ClientClosed when the producer is closed.
        """
        if not self._is_plain:
            record = call_before_enqueue(self._handlers, QueuedRecord(topic, value, key, headers, partition, timestamp))
            # A record that a handler has dropped has no Delivery.
            return None if record is None else await self._enqueue(record)  # type: ignore[return-value]
        if headers is not None:
            headers = _kept(headers)
        try:
            return self._producer.send(topic, value, key, headers, partition, timestamp)
        except (TopicNotKnown, NoSuchPartition, QueueFull):
            return await self._patiently(
                topic, lambda: self._producer.send(topic, value, key, headers, partition, timestamp)
            )

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record as `send` does, and wait until it is delivered. Raises the ClientError of a failed delivery."""
        delivery = await self.send(topic, value, key, headers, partition, timestamp)
        return delivery if delivery is None else await delivery

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Put a record into the queue now, without a Delivery: nothing tells what becomes of it.

        Raises QueueFull when there is no room, TopicNotKnown when the topic's partitions are not known yet, and else
        what `send` raises.
        """
        if self._is_plain:
            self._producer.send_nowait(topic, value, key, headers, partition, timestamp)
            return
        record = call_before_enqueue(self._handlers, QueuedRecord(topic, value, key, headers, partition, timestamp))
        if record is not None:
            with self._telling(record):
                self._encoded(record)()

    async def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Headers | Any | None = None,
        partitions: int | Sequence[int | None] | Any | None = None,
        timestamps: int | Sequence[int] | Any | None = None,
    ) -> Deliveries:
        """Put a record for each of `values` into the queue. Await the returned Deliveries for all deliveries.

        See `Producer.send_many` for the arguments. When the queue is full, records of other tasks may get in between.
        Raises what `send` raises; the exception says how many records were taken before.
        """
        if headers is not None and not is_column(headers):
            headers = _kept(headers)
        if self._handlers:
            return await self._send_each(queued_records(topic, values, keys, headers, partitions, timestamps))
        if self._encode_value is not None:
            values = [self._encode_value(value) for value in objects_of(values)]
        if self._encode_key is not None and keys is not None:
            keys = [self._encode_key(key) for key in objects_of(keys, "keys")]
        taken: Deliveries | None = None

        def attempt() -> Deliveries:
            nonlocal taken
            before = 0 if taken is None else len(taken)
            taken = self._producer.send_some(topic, values, keys, headers, partitions, timestamps, taken)
            if len(taken) < len(values):
                raise _Partly(f"no room for {len(values) - len(taken)} of {len(values)} records", len(taken) > before)
            return taken

        return await self._patiently(topic, attempt)

    async def await_topic(self, topic: str) -> None:
        """Wait until the partitions of `topic` are known, for at most max.block.ms.

        Raises BrokerError when the broker refuses the topic, and TimedOut when the time is over.
        """
        await self._thread.awaited(self._background.await_topic(topic))

    async def _send_each(self, records: Iterable[QueuedRecord]) -> Deliveries:
        sent: list[Delivery] = []
        try:
            for record in records:
                left = call_before_enqueue(self._handlers, record)
                if left is not None:
                    sent.append(await self._enqueue(left))
        except BaseException as error:
            if sent:
                error.add_note(f"{len(sent)} records of this call were taken before")
            raise
        return Deliveries.of(sent)

    async def _enqueue(self, record: QueuedRecord) -> Delivery:
        with self._telling(record):
            return await self._patiently(record.topic, self._encoded(record))

    @contextlib.contextmanager
    def _telling(self, record: QueuedRecord) -> Iterator[None]:
        """A context manager that tells the handlers whether its block has put the record into the queue.

        The block has, if it raises no exception.
        """
        try:
            yield
        except BaseException:
            call_after_enqueue(self._handlers, record, False)
            raise
        call_after_enqueue(self._handlers, record, True)

    def _encoded(self, record: QueuedRecord) -> Callable[[], Delivery]:
        """Encode the record, and return the function that sends it, which may be called any number of times."""
        value = record.value if self._encode_value is None else self._encode_value(record.value)
        key = record.key if self._encode_key is None else self._encode_key(record.key)
        headers = None if record.headers is None else _kept(record.headers)
        return lambda: self._producer.send(record.topic, value, key, headers, record.partition, record.timestamp)

    async def _patiently(self, topic: str, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds, and return its result.

        It is called again when the topic is known, when it has grown, and when there is room. Raises QueueFull when
        there is no room within `_room_s`; an attempt that takes some records starts that anew.
        """
        has_asked = False
        loop = asyncio.get_running_loop()
        deadline = None if self._room_s is None else loop.time() + self._room_s
        room: asyncio.Future[None] | None = None
        while True:
            try:
                return attempt()
            except TopicNotKnown as unknown:
                await self.await_topic(unknown.topic)
            except NoSuchPartition:
                if has_asked:
                    raise
                has_asked = True  # the topic may have grown
                await self._thread.awaited(self._background.count_partitions(topic, self._room_s))
            except QueueFull as full:
                if isinstance(full, _Partly) and full.got_on and self._room_s is not None:
                    deadline = loop.time() + self._room_s
                if room is None:
                    room = self._waiting.future()
                    self._accumulator.listen()
                    continue  # attempt once more: there may have been room before `listen`
                try:
                    async with asyncio.timeout_at(deadline):
                        await room
                except TimeoutError:
                    raise QueueFull(full.message) from None
                room = None

    # --- transactions ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """An asynchronous context manager that runs one transaction: `async with producer.transaction(): ...`.

        It begins a transaction, and commits it at the end of the block. An exception in the block aborts the
        transaction and is raised again. Records that other tasks send meanwhile are in the transaction too.
        """
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException as error:
            try:
                await self.abort_transaction()
            except ClientError as failure:
                error.add_note(f"and the transaction could not be aborted: {failure}")
            raise

    # --- the end --------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is delivered or has failed; `timeout` None: as long as it takes.

        Raises TimedOut when that takes more than `timeout` seconds, and ClientClosed when the producer is closed.
        """
        self._thread.check()
        last = self._accumulator.begin_flush()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    progress = self._waiting.future()
                    self._accumulator.listen()
                    if self._accumulator.is_flushed(last) or not self._thread.is_running:
                        progress.cancel()
                        return
                    await progress
        except TimeoutError:
            raise TimedOut(f"{self._accumulator.record_count} records are not delivered after {timeout:g} s") from None

    async def close(self, timeout: float | None = None) -> None:
        """Abort an open transaction, flush for at most `timeout` seconds, then end the producer's thread.

        delivery.timeout.ms bounds the flush too. Records that are not delivered by then fail with ClientClosed. A
        prepared transaction stays open. Closing a closed producer does nothing.
        """
        if not self._thread.is_running:
            return
        started = time.monotonic()
        try:
            try:
                await self._end_transaction(timeout)
            finally:
                self._accumulator.close()
                self._waiting.wake_all()
            await self.flush(None if timeout is None else max(0.0, timeout - (time.monotonic() - started)))
        except ClientError:
            pass  # what is left fails, and its Deliveries say so
        finally:
            for handler in self.options["handlers"]:
                await asyncio.to_thread(guarded, handler.closing)
            await self._thread.stopped()
            self._producer.fail_what_is_left(COMPRESSION_ENDS_S)

    def __del__(self) -> None:
        """Do nothing: the Producer inside is collected too, and flushes for UNCLOSED_S."""

    async def _end_transaction(self, timeout: float | None) -> None:
        if self._background.transactions is None or timeout == 0:
            return
        limit_s = self.options.seconds("delivery.timeout.ms") if timeout is None else timeout
        ending = self._within(limit_s, self._background.transactions.end(), "abort_transaction")
        try:
            await self._thread.awaited(ending)
        except ClientError as error:
            log.warning("the open transaction could not be ended: %s", error)


def _kept(headers: Headers) -> Headers:
    """Return headers that can be iterated more than once."""
    return headers if isinstance(headers, Mapping | list | tuple) else list(headers)


class _Partly(QueueFull):
    """Raised when only some records of a `send_many` had room.

    `got_on`: this attempt has put some into the queue.
    """

    def __init__(self, message: str, got_on: bool):
        super().__init__(message)
        self.got_on = got_on
