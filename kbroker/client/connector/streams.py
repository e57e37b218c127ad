"""What a connector's user reads from, and how one engine's records get there.

There is no thread between: whoever wants a record and finds none polls the engine for all streams (`Feed.fill`), one of
them at a time. A stream with enough chunks pauses its partitions until it has fewer.

Locks: `Feed._lock` guards who polls, the routes and the chunks that wait; `MessageStream._lock` what the
stream is reading and how far it is. The second may be taken under the first, never the other way round.
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
"""A poll ends when there are records, or `FetchEngine.interrupt` says so."""
POLL_RECORDS = 10_000


class ConsumerTimeout(TimedOut):
    """A stream had no record within consumer.timeout.ms. Reading on is allowed."""


class Waiting(NamedTuple):
    """A chunk for a stream."""

    partition: TopicPartition
    chunk: Records | ClientError
    brought: Records | None = None  # that it is of


class MessageStream:
    """Records of the partitions that this stream's share of the topics are now; an iterator, for one thread at a time.

    It ends when the connector is shut down. ConsumerTimeout after consumer.timeout.ms without a record. What it has
    given counts as read, the record in the caller's hands too: that is what is committed. While one of its streams is
    there so is the connector.
    """

    def __init__(self, connector: object, feed: Feed, timeout_s: float | None, most_chunks: int):
        self._connector = connector
        self._feed = feed
        self._timeout_s = timeout_s
        self._most_chunks = most_chunks
        self._lock = threading.Lock()
        self._reading: Iterator[ConsumerRecord] = iter(())
        self._partition: TopicPartition | None = None  # of `_reading`
        self._last: ConsumerRecord | None = None  # that it gave
        self._begun: Waiting | None = None  # what is begun, but still in `_waiting`
        self._positions: dict[TopicPartition, int] = {}  # behind what was given, of all but `_partition`
        # With the feed's lock:
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
            except BaseException:  # a Ctrl-C while it was on its way
                if record is not None:
                    self._reading, self._last = itertools.chain((record,), self._reading), before
                raise
            self._feed.fill(self, self._timeout_s)

    def partitions(self) -> list[TopicPartition]:
        """Those it has now."""
        return sorted(self._partitions)

    # --- for the feed ---------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """With the lock: nothing more of what is being read."""
        if self._partition is not None and self._last is not None:
            self._positions[self._partition] = self._last.offset + 1
        self._reading, self._partition, self._last = iter(()), None, None

    def _begin(self, records: Records, waiting: Waiting) -> None:
        with self._lock:
            self._reading, self._partition, self._begun = iter(records), waiting.partition, waiting

    def _has(self, partition: TopicPartition, brought: Records) -> bool:
        """With the feed's lock: whether it was put here already."""
        return any(
            each is not None and each.partition == partition and each.brought is brought
            for each in (self._begun, *self._waiting)
        )

    def _position(self, partition: TopicPartition) -> int | None:
        """Behind what was given of it; None when nothing was."""
        with self._lock:
            if partition == self._partition and self._last is not None:
                return self._last.offset + 1
            return self._positions.get(partition)

    def _drop(self, partition: TopicPartition) -> None:
        """Give no more of it, and forget where it stood. With the feed's lock."""
        with self._lock:
            if partition == self._partition:
                self._leave()
            self._positions.pop(partition, None)
        self._partitions.discard(partition)
        kept = [each for each in self._waiting if each.partition != partition]
        self._waiting.clear()
        self._waiting.extend(kept)


class Feed:
    """Between one engine and the streams of a connector."""

    def __init__(self, engine: FetchEngine, check: Callable[[], None]):
        """`check` raises when there will be no more records, and why."""
        self._engine = engine
        self._check = check
        self._lock = threading.Lock()  # left by itself: a Ctrl-C may come in the middle of a Condition's methods
        self._turn = threading.Condition(self._lock)
        self._is_taken = False  # somebody polls, or changes what is read
        self._wanted = 0  # how many want to change it: nobody polls meanwhile
        # What reads on must not keep its users' streams, and so the connector, for ever.
        self._routes: WeakValueDictionary[TopicPartition, MessageStream] = WeakValueDictionary()
        self._first: dict[TopicPartition, int] = {}  # where a partition begins, as far as that is known
        self._brought: list[Records] = []  # by the last poll, and not in the streams yet
        self._is_ended = False

    # --- for streams ----------------------------------------------------------------------------------------

    def fill(self, stream: MessageStream, timeout_s: float | None) -> None:
        """Returns when the stream has something to read; StopIteration when it will have nothing any more."""
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
                if not has_taken:  # it was taken from the stream
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
            # A Ctrl-C may come between any two lines: then it has begun, and is here still.
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
        """What was brought, to the streams: first for who wants a record, and wherever what they have is counted."""
        while self._brought:
            brought = self._brought[0]
            for partition in brought.partitions():
                stream = self._routes.get(partition)
                if stream is not None and not stream._has(partition, brought):
                    chunk = brought.of_partition(*partition)
                    self._first.setdefault(partition, chunk[0].offset)
                    self._put(stream, Waiting(partition, chunk, brought))
            del self._brought[0]

    def _fail(self, partition: TopicPartition, error: UnreadableRecords) -> None:
        stream = self._routes.get(partition)
        if stream is not None:
            self._put(stream, Waiting(partition, error))

    def _put(self, stream: MessageStream, waiting: Waiting) -> None:
        stream._waiting.append(waiting)
        if len(stream._waiting) >= stream._most_chunks and not stream._is_full:
            stream._is_full = True
            for each in stream._partitions:
                self._engine.pause(*each)

    def _maybe_resume(self, stream: MessageStream) -> None:
        """When fewer chunks wait."""
        if stream._is_full and len(stream._waiting) < stream._most_chunks:
            for each in stream._partitions:
                self._engine.resume(*each)
            stream._is_full = False

    # --- for the member -------------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody polls meanwhile, nor gets a chunk: what is read may be changed."""
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
        """Where each partition goes on behind what streams have given; those where that is not known are left out."""
        with self._lock:
            self._distribute()
            found = {}
            polls = self._is_taken and not while_held
            for partition, stream in self._routes.items():
                position = stream._position(partition)
                if position is None:
                    position = self._first.get(partition)
                # The engine's own is past what a poll has taken out and not brought here yet.
                if position is None and not polls:
                    position = self._engine.position(*partition)
                if position is not None and position >= 0:
                    found[partition] = position
            return found

    def drop(self, partitions: set[TopicPartition]) -> None:
        """While held: streams give no more of these."""
        with self._lock:
            self._distribute()
            for partition in partitions:
                stream = self._routes.pop(partition, None)
                if stream is not None:
                    stream._drop(partition)
                    self._maybe_resume(stream)
                self._first.pop(partition, None)

    def add(self, routes: Mapping[TopicPartition, MessageStream], offsets: Mapping[TopicPartition, int]) -> None:
        """While held, once the engine has them; from where on, as far as that is known."""
        with self._lock:
            for partition, stream in routes.items():
                self._routes[partition] = stream
                if partition in offsets:
                    self._first[partition] = offsets[partition]
                stream._partitions.add(partition)
                if stream._is_full:
                    self._engine.pause(*partition)

    def end(self) -> None:
        """Streams end, those that wait at once."""
        with self._lock:
            self._is_ended = True
            for stream in self._routes.values():
                with stream._lock:
                    stream._leave()
            self._turn.notify_all()
        self._engine.interrupt()
