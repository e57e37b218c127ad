"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kbroker._core.delivery import Deliveries, Delivery
from kbroker.client.aio.waiting import Waiting
from kbroker.client.config import parse_options
from kbroker.client.errors import ClientError, TimedOut, UsageError
from kbroker.client.faces import Awaiting
from kbroker.client.producer.errors import QueueFull
from kbroker.client.producer.options import PRODUCER
from kbroker.client.producer.producer import Producer
from kbroker.client.producer.transaction_calls import TransactionOperations

if TYPE_CHECKING:
    from kbroker.client.option_types import ProducerOptions

log = logging.getLogger("kbroker.client")

COMPRESSION_ENDS_S = 1.0  #: within that, once nothing is left to compress

T = TypeVar("T")
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class TopicNotKnown(UsageError):
    """Nothing is known yet of the topic, and the call does not wait."""

    hint = "await await_topic, or send instead of send_nowait"

    def __init__(self, topic: str):
        super().__init__(f"the partitions of topic {topic!r} are not known yet")
        self.topic = topic


class _Impatient(Producer):
    """A producer whose calls never wait."""

    def __init__(self, config: Mapping[str, Any] | None, /, **keywords: Unpack[ProducerOptions]):
        if parse_options(PRODUCER, config, keywords, "the producer")["producer.type"] == "sync":
            raise ValueError(
                "producer.type=sync would block the event loop; await send_and_wait of an AsyncProducer instead"
            )
        super().__init__(config, **keywords)
        self.block_ms = 0

    def await_topic(self, topic: str) -> None:
        self._thread.check()
        raise TopicNotKnown(topic)


class AsyncProducer(TransactionOperations, Awaiting):
    """Sends records to Kafka or kbroker, in the background. For any event loops and any tasks.

    `AsyncProducer(bootstrap_servers="localhost:9092")`, with the options of Producer, but for producer.type=sync.
    `async with`: its end waits for what was sent.
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
        self._waiting = waiting = Waiting()
        engine = self._producer._engine
        decide = self._background.sender.told

        def told() -> None:
            decide()
            waiting.tell()

        engine.on_told = told

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
        """Put a record into the queue, as soon as there is room; what it returns is awaited for the delivery.

        See Producer.send. QueueFull when there is no room within max.block.ms.
        """
        try:
            return self._producer.send(topic, value, key, headers, partition, timestamp)
        except (TopicNotKnown, QueueFull):
            return await self._patiently(lambda: self._producer.send(topic, value, key, headers, partition, timestamp))

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """The same, and wait until it is delivered. Raises why it is not."""
        return await (await self.send(topic, value, key, headers, partition, timestamp))

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Put a record into the queue now, or raise QueueFull or TopicNotKnown. Nothing tells what becomes of it."""
        self._producer.send_nowait(topic, value, key, headers, partition, timestamp)

    async def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Headers | None = None,
        partitions: int | Sequence[int] | Any | None = None,
        timestamps: int | Sequence[int] | Any | None = None,
    ) -> Deliveries:
        """A record for each of `values`, as Producer.send_many; what it returns is awaited for all deliveries.

        Other tasks may put theirs in between when the queue is full.
        """
        if headers is not None:
            headers = list(headers.items() if isinstance(headers, Mapping) else headers)
        taken: Deliveries | None = None

        def attempt() -> Deliveries:
            nonlocal taken
            before = 0 if taken is None else len(taken)
            taken = self._producer.send_some(topic, values, keys, headers, partitions, timestamps, taken)
            if len(taken) < len(values):
                raise _Partly(f"no room for {len(values) - len(taken)} of {len(values)} records", len(taken) > before)
            return taken

        return await self._patiently(attempt)

    async def await_topic(self, topic: str) -> None:
        """Until its metadata are there; BrokerError or TimedOut when they are not within max.block.ms."""
        block_ms: int = self.options["max.block.ms"]
        await self._thread.awaited(self._background.learn(topic, None if block_ms < 0 else block_ms / 1000))

    async def _patiently(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, once there is room; it is called again as soon as there is some."""
        loop = asyncio.get_running_loop()
        deadline = None if self._room_s is None else loop.time() + self._room_s
        room: asyncio.Future[None] | None = None
        while True:
            try:
                return attempt()
            except TopicNotKnown as unknown:
                await self.await_topic(unknown.topic)
            except QueueFull as full:
                if isinstance(full, _Partly) and full.got_on and self._room_s is not None:
                    deadline = loop.time() + self._room_s
                if room is None:
                    room = self._waiting.future()
                    self._accumulator.listen()
                    continue  # there may have been some just before
                try:
                    async with asyncio.timeout_at(deadline):
                        await room
                except TimeoutError:
                    raise QueueFull(full.message) from None
                room = None

    # --- transactions ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction():` begins one, and commits it; or aborts it when there is an exception.

        Records of every task that sends meanwhile are in it.
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
        """Wait until everything sent before is delivered or has failed; TimedOut after `timeout` seconds."""
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
        """Flush, for `timeout` seconds at most (delivery.timeout.ms bounds it anyway), then end; what is left fails."""
        if not self._thread.is_running:
            return
        started = time.monotonic()
        try:
            try:
                await self._end_transaction(timeout)
            finally:
                self._accumulator.close()
                self._waiting.tell()
            await self.flush(None if timeout is None else max(0.0, timeout - (time.monotonic() - started)))
        except ClientError:
            pass  # what is left fails, and its Deliveries say so
        finally:
            await self._thread.stopped()
            self._producer.fail_what_is_left(COMPRESSION_ENDS_S)
            self._waiting.tell()

    async def _end_transaction(self, timeout: float | None) -> None:
        if self._background.transactions is None or timeout == 0:
            return
        limit_s = self.options.seconds("delivery.timeout.ms") if timeout is None else timeout
        ending = self._within(limit_s, self._background.transactions.end(), "abort_transaction")
        try:
            await self._thread.awaited(ending)
        except ClientError as error:
            log.warning("the open transaction could not be ended: %s", error)


class _Partly(QueueFull):
    """Some of many records are in the queue; `got_on`: more than at the attempt before."""

    def __init__(self, message: str, got_on: bool):
        super().__init__(message)
        self.got_on = got_on
