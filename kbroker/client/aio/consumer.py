"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker._core.client.consumer.records import Records
from kbroker.client.aio.waiting import Waiting
from kbroker.client.consumer.consumer import (
    CLOSE_TIMEOUT_S,
    ITERATION_POLL_S,
    ConsumerOperations,
    arrow_names,
    numpy_names,
)
from kbroker.client.consumer.group import Group
from kbroker.client.errors import ClientClosed, UsageError
from kbroker.client.network.faces import Awaiting

if TYPE_CHECKING:
    from kbroker.client.config.option_types import ConsumerOptions


class AsyncConsumer(ConsumerOperations, Awaiting):
    """Reads records from Kafka or kbroker in an event loop, and fetches the next ones in the background.

    `AsyncConsumer(bootstrap_servers="localhost:9092")` takes the options of Consumer, and raises the same for wrong
    ones. Use it with `async with` and `async for`. One task at a time may poll; every other method may be called from
    any task meanwhile. Methods that need no broker (`seek`, `pause`, `position` and the like) are not coroutines.
    Methods of a RebalanceListener may be coroutines.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Unpack[ConsumerOptions]):
        super().__init__(config, **keywords)
        self._is_polling = False
        self._waiting = waiting = Waiting()
        decide = self._fetching.handle_news

        def handle_news() -> None:
            decide()
            waiting.wake_all()

        self._engine.on_told = handle_news

    # --- records --------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> Records:
        """Return the next records, at most `max_records` (None: max.poll.records).

        Returns empty Records when `timeout` seconds pass without any. In a group the poll also runs the rebalance
        listener. Other tasks of the loop get a turn even when records are there at once. Cancelling loses no record.

        Raises UsageError when nothing is subscribed to or assigned, or when another task polls; BrokerError when a
        broker refuses for good (also OFFSET_OUT_OF_RANGE with auto.offset.reset=none); LogTruncated; and
        UnreadableRecords when the next records are damaged.
        """
        return await self._poll(timeout, max_records)

    async def _poll(self, timeout: float, max_records: int | None = None, *, to_read: bool = False) -> Records:
        timeout, most = self._to_poll(timeout, max_records)
        if self._is_polling:
            raise UsageError("another task polls", hint="let one task poll, or give each a consumer")
        self._is_polling = True
        group = self._group
        try:
            if group is not None:
                group.begin_poll()
            return await self._poll_in(group, timeout, most, to_read)
        finally:
            if group is not None:
                group.end_poll()
            self._is_polling = False

    async def _poll_in(self, group: Group | None, timeout: float, most: int, to_read: bool) -> Records:
        deadline = asyncio.get_running_loop().time() + timeout
        await asyncio.sleep(0)
        came: asyncio.Future[None] | None = None
        while True:
            if group is not None:
                await self._run_steps(group)
                group.check()
            records = self._engine.poll(0, most, to_read)
            if self._engine.has_given or self._closing:
                return records
            if came is None:
                came = self._waiting.future()
                self._engine.listen()
                continue  # poll once more: records may have come before `listen`
            try:
                async with asyncio.timeout_at(deadline):
                    await came
            except TimeoutError:
                return records
            came = None

    async def _run_steps(self, group: Group, *, leaving: bool = False) -> None:
        while (step := group.steps.begin_next(leaving=leaving)) is not None:
            try:
                found = step.call()
                if inspect.isawaitable(found):
                    await found
            finally:
                step.is_called = True
                group.steps.finish(step)

    async def poll_arrow(
        self, timeout: float = 1.0, max_records: int | None = None, columns: Iterable[str] | None = None
    ) -> Any:
        """Poll, and return the records as a pyarrow.RecordBatch; see `Records.arrow` for its columns.

        Raises what `poll` raises, ValueError for an unknown column, and ImportError without pyarrow. After an exception
        the next poll returns the same records: none is lost.
        """
        names = arrow_names(columns)
        self._engine.settle()
        try:
            return (await self._poll(timeout, max_records)).arrow(names)
        except BaseException:
            self._engine.take_back()
            raise

    async def poll_numpy(
        self,
        timeout: float = 1.0,
        max_records: int | None = None,
        columns: Iterable[str] | None = None,
        *,
        dtypes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Poll, and return the records as NumPy arrays; see `Records.numpy` for the arrays and for `dtypes`.

        Raises what `poll` raises, and ValueError for an unknown column or a dtype that does not fit. After an exception
        the next poll returns the same records: none is lost.
        """
        names = numpy_names(columns, dtypes)
        self._engine.settle()
        try:
            return (await self._poll(timeout, max_records)).numpy(names, dtypes=dtypes)
        except BaseException:
            self._engine.take_back()
            raise

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over records until the consumer is closed: poll, and wait while there are none.

        Positions and commits stand behind the last record that the iterator has yielded. A later loop, or `poll`, goes
        on there. Raises what `poll` raises.
        """
        while not self._closing:
            if (reading := self._engine.reading()) is not None:
                for record in reading:
                    yield record
            else:
                await self._poll(ITERATION_POLL_S, to_read=True)

    # --- the end --------------------------------------------------------------------------------------------

    async def unsubscribe(self) -> None:
        """Give up all partitions, also those assigned by hand, and leave the group.

        The rebalance listener is called before this returns, in the calling task.
        """
        group = self._group
        if group is not None and group.subscription is not None:
            await self._drive(group, group.unsubscribe("it has unsubscribed"))
            if self._closing:
                return  # the listener has closed the consumer
        await self._thread.awaited(self._fetching.assign({}))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit (with enable.auto.commit), tell the rebalance listener, leave the group and end the thread.

        Leaving the group takes at most `timeout` seconds. A poll that waits in another task returns.
        """
        await self._close(timeout, commit=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. After an exception without a commit: the last poll's records may not have been processed."""
        await self._close(CLOSE_TIMEOUT_S, commit=kind is None)

    async def _close(self, timeout: float, *, commit: bool) -> None:
        if self._thread.is_forked:
            return
        self._closing = True
        self._engine.stop_reading()
        self._waiting.wake_all()
        group = self._group
        try:
            if group is not None and self._thread.is_running:
                await self._drive(group, group.unsubscribe("it is closed", timeout_s=timeout, commit=commit))
        finally:
            await self._thread.stopped()

    async def _drive(self, group: Group, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run `coroutine`, which leaves the group, on the client's thread, and meanwhile the steps that it waits for.

        A step, or another task, may close the client meanwhile. Then the group is left, and this returns.
        """
        call = asyncio.ensure_future(self._thread.awaited(coroutine))
        try:
            while not call.done():
                came = self._waiting.future()
                self._engine.listen()
                await self._run_steps(group, leaving=True)
                waited: set[asyncio.Future[Any]] = {call, came}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            await self._run_steps(group, leaving=True)
            call.result()
        except ClientClosed:
            if not self._closing:
                raise
        finally:
            call.cancel()
