"""The streams that a connector's user reads from, and how the records of one fetch engine get into them.

There is no thread in between: a stream that has no record polls the engine for all streams (`Feed.fill`), one stream at
a time. A stream that has enough chunks pauses its partitions until it has fewer.

Locks: `Feed._lock` guards who polls, the routes, and the chunks that wait in streams. `MessageStream._lock` guards what
the stream is reading and its positions. `MessageStream._lock` may be taken under `Feed._lock`, never the other way
round.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.consumer.record import ConsumerRecord, UnreadableRecords
from kbroker._core.client.consumer.records import Records
from kbroker.client.errors import ClientError, TimedOut
from kbroker.model import TopicPartition

POLL_S = 3600.0
"""The longest poll of the engine. It ends earlier when there are records, or by `FetchEngine.interrupt`."""
POLL_RECORDS = 10_000


class ConsumerTimeout(TimedOut):
    """Raised by a stream when there is no record within consumer.timeout.ms. The stream can be read further."""


class Waiting(NamedTuple):
    """A chunk that waits in a stream: records of one partition, or the error to raise instead of them."""

    partition: TopicPartition
    chunk: Records | ClientError
    brought: Records | None = None  # the Records of the poll that the chunk is from


class MessageStream:
    """An iterator over the records of the partitions that this stream has now. For one thread at a time.

    The iterator ends when the connector is shut down. A record counts as read, and is committed, from the moment it is
    handed out. A stream keeps its connector alive.

    Raises ConsumerTimeout when there is no record within consumer.timeout.ms, UnreadableRecords when the next records
    of a partition are damaged, and BrokerError when a broker refuses for good.
    """

    def __init__(self, connector: object, feed: Feed, timeout_s: float | None, most_chunks: int):
        self._connector = connector
        self._feed = feed
        self._timeout_s = timeout_s
        self._most_chunks = most_chunks
        self._lock = threading.Lock()
        self._reading: Iterator[ConsumerRecord] = iter(())
        self._partition: TopicPartition | None = None  # the partition of `_reading`
        self._last: ConsumerRecord | None = None  # the last record that `_reading` gave
        self._begun: Waiting | None = None  # the chunk that `_reading` is from while it is still in `_waiting`
        self._positions: dict[TopicPartition, int] = {}  # behind the records handed out, except of `_partition`
        # Guarded by the feed's lock:
        self._waiting: deque[Waiting] = deque()
        self._partitions: set[TopicPartition] = set()
        self._is_full = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        while True:
            before, record = self._last, None
            try:
                with self._lock:
                    for record in self._reading:
                        self._last = record
                        return record
                    self._leave()
            except BaseException:  # Ctrl-C before the record was returned: it is handed out again
                if record is not None:
                    self._reading, self._last = itertools.chain((record,), self._reading), before
                raise
            self._feed.fill(self, self._timeout_s)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that this stream has now, sorted."""
        return sorted(self._partitions)

    # --- for the feed ---------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Stop reading the current chunk, and note its position. The caller holds `_lock`."""
        if self._partition is not None and self._last is not None:
            self._positions[self._partition] = self._last.offset + 1
        self._reading, self._partition, self._last = iter(()), None, None

    def _begin(self, records: Records, waiting: Waiting) -> None:
        with self._lock:
            self._reading, self._partition, self._begun = iter(records), waiting.partition, waiting

    def _has(self, partition: TopicPartition, brought: Records) -> bool:
        """Return whether a chunk of `partition` that the poll result `brought` has is in this stream already.

        The caller holds the feed's lock.
        """
        return any(
            each is not None and each.partition == partition and each.brought is brought
            for each in (self._begun, *self._waiting)
        )

    def _position(self, partition: TopicPartition) -> int | None:
        """Return the offset behind the last record handed out of the partition; None when none was."""
        with self._lock:
            if partition == self._partition and self._last is not None:
                return self._last.offset + 1
            return self._positions.get(partition)

    def _drop(self, partition: TopicPartition) -> None:
        """Hand out no more of the partition, and forget its position. The caller holds the feed's lock."""
        with self._lock:
            if partition == self._partition:
                self._leave()
            self._positions.pop(partition, None)
        self._partitions.discard(partition)
        kept = [each for each in self._waiting if each.partition != partition]
        self._waiting.clear()
        self._waiting.extend(kept)


class Feed:
    """Brings records from one fetch engine to the streams of a connector."""

    def __init__(self, engine: FetchEngine, check: Callable[[], None]):
        """`check` raises an exception, saying why, once there will be no more records."""
        self._engine = engine
        self._check = check
        # `with self._lock`, not the Condition: Ctrl-C may come in the middle of a Condition's Python methods.
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._is_taken = False  # a thread polls, or changes what is read
        self._wanted = 0  # how many threads want to change what is read: no poll begins meanwhile
        # Weak references, because the member's thread, which holds the feed, must not keep streams and connector alive.
        self._routes: WeakValueDictionary[TopicPartition, MessageStream] = WeakValueDictionary()
        self._first: dict[TopicPartition, int] = {}  # the offset where a partition begins, where it is known
        self._brought: list[Records] = []  # records of the last poll that are not in the streams yet
        self._is_ended = False

    # --- for streams ----------------------------------------------------------------------------------------

    def fill(self, stream: MessageStream, timeout_s: float | None) -> None:
        """Return when the stream has something to read.

        Raises StopIteration when the connector is shut down, ConsumerTimeout after `timeout_s` seconds without a
        record, and the error that the next chunk stands for.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            has_taken = False
            try:
                with self._lock:
                    self._distribute()
                    if self._take_chunk(stream):
                        return
                    self._check()
                    left = POLL_S if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise ConsumerTimeout(f"no record within consumer.timeout.ms={int((timeout_s or 0) * 1000)}")
                    if self._is_taken or self._wanted:
                        self._turn.wait(min(left, POLL_S))
                        continue
                    self._is_taken = has_taken = True
                self._engine.poll(int(min(left, POLL_S) * 1000) + 1, POLL_RECORDS, into=self._brought)
            except UnreadableRecords as error:
                if not has_taken:  # the error was a chunk of this stream, not of the poll
                    raise
                with self._lock:
                    self._fail(TopicPartition(error.topic, error.partition), error)
            finally:
                if has_taken:
                    with self._lock:
                        self._is_taken = False
                        self._turn.notify_all()

    def _take_chunk(self, stream: MessageStream) -> bool:
        if self._is_ended:
            raise StopIteration
        self._maybe_resume(stream)
        while stream._waiting:
            # Ctrl-C may come between any two lines: then the chunk has begun, and is still in `_waiting`.
            waiting = stream._waiting[0]
            chunk, is_new = waiting.chunk, waiting is not stream._begun
            if is_new and isinstance(chunk, Records):
                stream._begin(chunk, waiting)
            stream._waiting.popleft()
            stream._begun = None
            self._maybe_resume(stream)
            if not isinstance(chunk, Records):
                raise chunk
            if is_new:
                return True
        return False

    def _distribute(self) -> None:
        """Put the records of the last poll into the streams, one chunk for each partition. The caller holds `_lock`."""
        while self._brought:
            brought = self._brought[0]
            for partition in brought.partitions():
                stream = self._routes.get(partition)
                if stream is not None and not stream._has(partition, brought):
                    chunk = brought.of_partition(*partition)
                    self._first.setdefault(partition, chunk[0].offset)
                    self._add_chunk(stream, Waiting(partition, chunk, brought))
            del self._brought[0]

    def _fail(self, partition: TopicPartition, error: UnreadableRecords) -> None:
        stream = self._routes.get(partition)
        if stream is not None:
            self._add_chunk(stream, Waiting(partition, error))

    def _add_chunk(self, stream: MessageStream, waiting: Waiting) -> None:
        stream._waiting.append(waiting)
        if len(stream._waiting) >= stream._most_chunks and not stream._is_full:
            stream._is_full = True
            for each in stream._partitions:
                self._engine.pause(*each)

    def _maybe_resume(self, stream: MessageStream) -> None:
        """Resume the partitions of a full stream once fewer chunks wait in it. The caller holds `_lock`."""
        if stream._is_full and len(stream._waiting) < stream._most_chunks:
            for each in stream._partitions:
                self._engine.resume(*each)
            stream._is_full = False

    # --- for the member -------------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context manager: no stream polls during its block, so that the block may change what is read."""
        with self._lock:
            self._wanted += 1
            while self._is_taken:
                self._engine.interrupt()
                self._turn.wait(0.1)
            self._wanted -= 1
            self._is_taken = True
        try:
            yield
        finally:
            with self._lock:
                self._is_taken = False
                self._turn.notify_all()

    def positions(self, *, while_held: bool = False) -> dict[TopicPartition, int]:
        """Return the offset to go on at in each partition, behind all records that streams have handed out.

        Partitions whose position is not known are left out. `while_held`: the caller is in a `held` block.
        """
        with self._lock:
            self._distribute()
            found = {}
            polls = self._is_taken and not while_held
            for partition, stream in self._routes.items():
                position = stream._position(partition)
                if position is None:
                    position = self._first.get(partition)
                # During a poll the engine's position may be past records that are not in the streams yet.
                if position is None and not polls:
                    position = self._engine.position(*partition)
                if position is not None and position >= 0:
                    found[partition] = position
            return found

    def drop(self, partitions: set[TopicPartition]) -> None:
        """Take partitions away from their streams, which hand out no more of them. Call it in a `held` block."""
        with self._lock:
            self._distribute()
            for partition in partitions:
                stream = self._routes.pop(partition, None)
                if stream is not None:
                    stream._drop(partition)
                    self._maybe_resume(stream)
                self._first.pop(partition, None)

    def add(self, routes: Mapping[TopicPartition, MessageStream], offsets: Mapping[TopicPartition, int]) -> None:
        """Give partitions to streams. Call it in a `held` block, after the engine was assigned the partitions.

        `offsets` has the offset that each partition begins at, where it is known.
        """
        with self._lock:
            for partition, stream in routes.items():
                self._routes[partition] = stream
                if partition in offsets:
                    self._first[partition] = offsets[partition]
                stream._partitions.add(partition)
                if stream._is_full:
                    self._engine.pause(*partition)

    def end(self) -> None:
        """End all streams; those that wait for a record end at once."""
        with self._lock:
            self._is_ended = True
            for stream in self._routes.values():
                with stream._lock:
                    stream._leave()
            self._turn.notify_all()
        self._engine.interrupt()
