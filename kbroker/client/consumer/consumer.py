"""The consumer for threads, and the methods that it shares with the one for asyncio."""

from __future__ import annotations

import bisect
import concurrent.futures
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker._core.client.consumer.records import Records
from kbroker.client.arguments import offset_of, partition_of, partitions_of, seconds, times_of
from kbroker.client.config.consumer import CONSUMER, check_protocol
from kbroker.client.config.option import Options
from kbroker.client.config.parsing import parse_options, require_servers
from kbroker.client.consumer.fetching import EARLIEST, LATEST, Fetching, fetch_engine
from kbroker.client.consumer.group import Group
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.consumer.holdings import RebalanceListener
from kbroker.client.consumer.membership import Subscription, SubscriptionPattern
from kbroker.client.errors import ClientError, TimedOut, UsageError
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.faces import Blocking, operation
from kbroker.client.network.network import Network
from kbroker.client.network.thread import ClientThread
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.client.config.option_types import ConsumerOptions

ITERATION_POLL_S = 3600.0
CLOSE_TIMEOUT_S = 10.0

Offset = int | OffsetAndMetadata
Offsets = (
    Mapping[TopicPartition, int]
    | Mapping[TopicPartition, OffsetAndMetadata]
    | Mapping[TopicPartition, Offset]
    | Mapping[tuple[str, int], Offset]
)
Committed = Callable[[Mapping[TopicPartition, OffsetAndMetadata], ClientError | None], object]


class ConsumerOperations:
    """The methods that Consumer and AsyncConsumer share: all but polling.

    A partition is given as TopicPartition or as (topic, number). Methods that ask a broker raise BrokerError when it
    refuses, and TimedOut or ConnectionFailed when they are not done within default.api.timeout.ms.
    """

    _thread: ClientThread

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Unpack[ConsumerOptions]):
        self.options = options = parse_options(CONSUMER, config, keywords, "the consumer")
        check_protocol(options)
        self._engine = fetch_engine(options)
        self._group: Group | None = None
        self._closing = False
        require_servers(options)
        self._thread = ClientThread(options["client.id"], options["receive.message.max.bytes"])
        try:
            self._thread.call(self._start(options))
        except BaseException:
            self._thread.stop()
            raise
        if self._group is not None:
            self._thread.at_exit = self._group.leave_at_exit

    async def _start(self, options: Options) -> None:
        cluster = Cluster(Network(self._thread, options))
        cluster.creates_topics = options["allow.auto.create.topics"]
        cluster.logs_missing = True
        self._fetching = Fetching(self._engine, cluster)
        if options["group.id"] is not None:
            self._group = Group(self._fetching)
        self._thread.pump.add(self._engine)

    # --- what is read ---------------------------------------------------------------------------------------

    @operation
    async def assign(
        self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition | tuple[str, int]]
    ) -> None:
        """Read exactly these partitions. The group's other members are not asked whether they read them too.

        A mapping gives the offset to begin at in each partition. Without an offset, or with -1, a partition goes on
        at the position it has, else at the group's committed offset, else where auto.offset.reset says.

        Raises UsageError while topics are subscribed to, and ValueError for an offset below -1.
        """
        await self._assign(partitions)

    async def _assign(
        self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition | tuple[str, int]]
    ) -> None:
        if self._group is not None and self._group.subscription is not None:
            raise UsageError("partitions are assigned by the group", hint="unsubscribe first")
        if isinstance(partitions, Mapping):
            wanted = {partition_of(partition): offset for partition, offset in partitions.items()}
        else:
            wanted = dict.fromkeys(partitions_of(partitions), -1)
        for partition, offset in wanted.items():
            if offset < -1:
                raise ValueError(f"{partition}: offset {offset} is negative")
        await self._fetching.assign(wanted)

    @operation
    async def assign_topics(self, *topics: str) -> None:
        """Read all partitions that these topics have now, as `assign` does without offsets.

        Raises BrokerError when a topic is not there, and UsageError while topics are subscribed to.
        """
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(f"a topic is a name, and several are arguments of their own: not {topic!r}")
        await self._assign(await self._fetching.partitions_of(topics))

    @operation
    async def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str] | SubscriptionPattern,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share the partitions of topics with the other members of the group, instead of an earlier subscription.

        `topics` are names, or a pattern that must match the whole name; topics that are created later count too. With
        group.protocol=consumer a SubscriptionPattern lets the brokers match. `listener` is called during polls, when
        partitions come or go.

        Raises UsageError without group.id, and while partitions are assigned by hand; ValueError for an empty name.
        """
        group = self._in_group("subscribe")
        if isinstance(topics, SubscriptionPattern):
            if self.options["group.protocol"] != "consumer":
                raise UsageError("the brokers match no patterns", hint="set group.protocol=consumer, or compile it")
            subscription = Subscription(expression=topics.pattern)
        elif isinstance(topics, re.Pattern):
            subscription = Subscription(pattern=topics, with_internal=not self.options["exclude.internal.topics"])
        else:
            subscription = Subscription(_topic_names(topics))
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise TypeError(f"listener must be a RebalanceListener, not {listener!r}")
        if group.subscription is None and self._engine.is_assigned:
            if group.is_leaving:
                raise UsageError("its partitions are being given up", hint="subscribe when unsubscribe has returned")
            raise UsageError("partitions are assigned by hand", hint="unsubscribe first")
        await group.subscribe(subscription, listener)

    def subscription(self) -> frozenset[str] | re.Pattern[str] | SubscriptionPattern | None:
        """Return the topics or the pattern that `subscribe` was given; None when nothing is subscribed to."""
        found = self._group.subscription if self._group is not None else None
        if found is None:
            return None
        if found.expression is not None:
            return SubscriptionPattern(found.expression)
        return found.pattern or found.topics

    def enforce_rebalance(self, reason: str = "the user wants it") -> None:
        """Ask the group to share its partitions anew. `reason` is what the broker logs.

        With group.protocol=consumer only the brokers decide about that, and the call just logs a warning. Raises
        UsageError when nothing is subscribed to.
        """
        group = self._in_group("rebalance")
        if group.subscription is None:
            raise UsageError("nothing is subscribed to")
        self._thread.call_soon(group.rejoin, reason)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return this member's identity, for `Producer.send_offsets_to_transaction`.

        Raises UsageError without group.id.
        """
        return self._in_group("be a member").metadata

    def _in_group(self, what: str) -> Group:
        self._thread.check()
        if self._group is None:
            raise UsageError(f"only in a group can one {what}", hint="set group.id")
        return self._group

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read now: assigned by hand, or by the group as of the last poll."""
        return [TopicPartition(*key) for key in self._engine.assigned()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`: the next record is the one there, or the first one behind it.

        Raises UsageError when the partition is not assigned, and ValueError for a negative offset.
        """
        self._check(topic, partition)
        self._engine.seek(topic, partition, offset_of(offset, TopicPartition(topic, partition)))

    @operation
    async def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go to the first record of each of these partitions, or of all assigned ones when none is named.

        Raises UsageError when a partition is not assigned.
        """
        await self._seek_to(EARLIEST, partitions)

    @operation
    async def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go behind the last record of each of these partitions, or of all assigned ones when none is named.

        With isolation.level=read_committed that is before the first open transaction. Raises UsageError when a
        partition is not assigned.
        """
        await self._seek_to(LATEST, partitions)

    async def _seek_to(self, where: int, partitions: tuple[TopicPartition | tuple[str, int], ...]) -> None:
        chosen = partitions_of(partitions) or self.assignment()
        for partition, (offset, _) in (await self._offsets(dict.fromkeys(chosen, where))).items():
            self.seek(*partition, offset)

    def pause(self, topic: str, partition: int) -> None:
        """Neither fetch nor hand out records of the partition until `resume`.

        Raises UsageError when the partition is not assigned.
        """
        self._check(topic, partition)
        self._engine.pause(topic, partition)

    def resume(self, topic: str, partition: int) -> None:
        """Go on with a paused partition, where it stopped. Raises UsageError when the partition is not assigned."""
        self._check(topic, partition)
        self._engine.resume(topic, partition)

    def paused(self) -> list[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return [each for each in self.assignment() if self._engine.is_paused(*each)]

    def position(self, topic: str, partition: int) -> int | None:
        """Return the offset of the next record that is handed out; None while it is not known.

        Raises UsageError when the partition is not assigned.
        """
        self._check(topic, partition)
        found = self._engine.position(topic, partition)
        return found if found >= 0 else None

    def _check(self, topic: str, partition: int) -> None:
        self._thread.check_process()
        if (topic, partition) not in self._engine.assigned():
            raise UsageError(f"{topic}-{partition} is not assigned")

    # --- offsets --------------------------------------------------------------------------------------------

    @operation
    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return each partition's offset of the first record at that time or later; None where no record is so late.

        Times are milliseconds since 1970. Raises ValueError for a negative time.
        """
        found = await self._offsets(times_of(times))
        return {partition: offset if offset >= 0 else None for partition, (offset, _) in found.items()}

    @operation
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """Ask the leaders for the first offset of each partition. Raises BrokerError when a partition is not there."""
        found = await self._offsets(dict.fromkeys(partitions_of(partitions), EARLIEST))
        return {partition: offset for partition, (offset, _) in found.items()}

    @operation
    async def end_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        """Ask the leaders for the end of each partition: the offset behind its last record.

        With isolation.level=read_committed the end is the first offset of an open transaction, if there is one. Raises
        BrokerError when a partition is not there.
        """
        found = await self._offsets(dict.fromkeys(partitions_of(partitions), LATEST))
        return {partition: offset for partition, (offset, _) in found.items()}

    @operation
    async def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Store where the group is to go on: at these offsets, or behind all records that were handed out.

        `offsets` has the offset of the next record to read. The commit is tried again for `timeout` seconds; None:
        default.api.timeout.ms. Raises CommitFailed when the group may have given a partition to another member,
        UsageError without group.id, and ValueError for a negative offset.
        """
        group = self._in_group("commit")
        await group.commit(self._to_commit(group, offsets), timeout_s=timeout)

    def _to_commit(self, group: Group, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return group.positions()
        wanted = {}
        for given, offset in offsets.items():
            partition = partition_of(given)
            wanted[partition] = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            offset_of(wanted[partition].offset, partition)
        return wanted

    @operation
    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed position in each partition; None where nothing is committed.

        `timeout` is in seconds; None: default.api.timeout.ms. Raises UsageError without group.id.
        """
        wanted = partitions_of(partitions)
        found = await self._in_group("commit").committed(wanted, timeout_s=timeout)
        return {partition: found.get(partition) for partition in wanted}

    async def _offsets(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        return await self._fetching.offsets(asked)

    def _to_poll(self, timeout: float, max_records: int | None) -> tuple[float, int]:
        """Check that this thread may poll now.

        Return the poll's timeout in seconds and the most records that it returns.
        """
        self._thread.check()
        if self._thread.is_own_thread:
            raise UsageError("poll on the client's own thread")
        most: int = self.options["max.poll.records"] if max_records is None else max_records
        if most < 1:
            raise ValueError(f"max_records={most}: at least 1")
        timeout_s = seconds(timeout)
        if not (self._engine.is_assigned or (self._group is not None and self._group.subscription is not None)):
            raise UsageError(
                "nothing is subscribed to, and nothing is assigned",
                hint="call subscribe, assign or assign_topics before",
            )
        return timeout_s, most


class Consumer(ConsumerOperations, Blocking):
    """Reads records from Kafka or kbroker, and fetches the next ones in the background.

    Options are keywords, `Consumer(bootstrap_servers="localhost:9092")`, or a mapping with Kafka's names. The consumer
    is a context manager. One thread at a time may poll; every other method may be called from any thread meanwhile.
    Iterating over the consumer polls. Partitions are TopicPartition or (topic, number).

    The constructor raises TypeError for an option that does not exist, and ValueError for a value that is not allowed
    or contradicts another option.
    """

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> Records:
        """Return the next records, at most `max_records` (None: max.poll.records).

        Returns empty Records when `timeout` seconds pass without any. Ctrl-C ends the wait. In a group the poll also
        runs the rebalance listener, and callbacks of `commit_async`.

        Raises UsageError when nothing is subscribed to or assigned, BrokerError when a broker refuses for good (also
        OFFSET_OUT_OF_RANGE with auto.offset.reset=none), LogTruncated, and UnreadableRecords when the next records are
        damaged.
        """
        return self._poll(timeout, max_records)

    def _poll(self, timeout: float, max_records: int | None = None, *, to_read: bool = False) -> Records:
        timeout, most = self._to_poll(timeout, max_records)
        group = self._group
        if group is None:
            return self._engine.poll(int(timeout * 1000), most, to_read)
        try:
            group.begin_poll()
            return self._poll_in(group, timeout, most, to_read)
        finally:
            group.end_poll()

    def _poll_in(self, group: Group, timeout: float, most: int, to_read: bool) -> Records:
        until = time.monotonic() + timeout
        left = timeout
        while True:
            if group.steps.are_waiting:
                group.steps.run()
            group.check()
            records = self._engine.poll(int(left * 1000), most, to_read)
            # Up to the return stands nothing that a signal's handler can interrupt: an exception would lose `records`.
            if self._engine.has_given:
                return records
            left = until - time.monotonic()
            if left <= 0 or self._closing:
                return records

    def poll_arrow(
        self, timeout: float = 1.0, max_records: int | None = None, columns: Iterable[str] | None = None
    ) -> Any:
        """Poll, and return the records as a pyarrow.RecordBatch; see `Records.arrow` for its columns.

        Raises what `poll` raises, ValueError for an unknown column, and ImportError without pyarrow. After an exception
        the next poll returns the same records: none is lost.
        """
        names = arrow_names(columns)
        self._engine.settle()
        try:
            return self._poll(timeout, max_records).arrow(names)
        except BaseException:
            self._engine.take_back()
            raise

    def poll_numpy(
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
            return self._poll(timeout, max_records).numpy(names, dtypes=dtypes)
        except BaseException:
            self._engine.take_back()
            raise

    def read_range(
        self, topic: str, partition: int, start: int, until: int, timeout: float = 60.0
    ) -> Iterator[Records]:
        """Yield the records of one partition from offset `start` to `until`, without the record at `until`.

        The partition is assigned by hand, alone: nothing else is read meanwhile. The iterator ends once reading has
        come to `until`, also where compaction or a transaction has left no record right before it.

        Raises TimedOut when nothing comes for `timeout` seconds, ValueError when `start` is negative or behind `until`,
        and what `poll` raises. Where `start` is no longer in the log, auto.offset.reset decides: none raises
        BrokerError, earliest and latest go on there.
        """
        place = TopicPartition(topic, partition)
        if not offset_of(start, place) <= offset_of(until, place):
            raise ValueError(f"{place}: from offset {start} to {until}")
        self.assign({place: start})
        self._engine.stop_at(topic, partition, until)
        while not self._engine.has_reached_stops:
            records = self.poll(timeout)
            if not len(records):
                if self._engine.has_reached_stops:
                    return
                at = self.position(topic, partition)
                raise TimedOut(f"{place}: nothing came for {timeout:g} s between offset {at} and {until}")
            behind = records.next_offsets()[place]
            if behind > until:
                records = records[: bisect.bisect_left(records, until, key=lambda record: record.offset)]
                if not len(records):
                    return
            yield records
            if behind >= until:
                return  # records behind `until` may be damaged, but were not asked for

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records without end: poll, and wait while there are none. For one thread at a time.

        Positions and commits stand behind the last record that the iterator has yielded. A later loop, or `poll`, goes
        on there. Raises what `poll` raises.
        """
        while True:
            if (reading := self._engine.reading()) is not None:
                yield from reading
            else:
                self._poll(ITERATION_POLL_S, to_read=True)

    def commit_async(
        self, offsets: Offsets | None = None, callback: Committed | None = None
    ) -> concurrent.futures.Future[None]:
        """Commit as `commit` does, but without waiting and in a single attempt.

        A later poll calls `callback(offsets, error)`; `error` is None when the offsets are committed. The Future ends
        with the same outcome. Raises UsageError without group.id, and ValueError for a negative offset.
        """
        group = self._in_group("commit")
        wanted = self._to_commit(group, offsets)

        async def commit() -> None:
            error = None
            try:
                await group.commit_once(wanted)
            except ClientError as refused:
                error = refused
                raise
            finally:
                if callback is not None:
                    group.steps.post(lambda: callback(wanted, error))

        return self._thread.submit(commit())

    def unsubscribe(self) -> None:
        """Give up all partitions, also those assigned by hand, and leave the group.

        The rebalance listener is called before this returns, in the calling thread. Raises UsageError when called on
        the client's own thread.
        """
        group = self._group
        if self._thread.is_own_thread:
            raise UsageError("a blocking call on the client's own thread")
        if group is not None and group.subscription is not None:
            group.steps.drive(self._thread.submit(group.unsubscribe("it has unsubscribed")))
            if self._closing:
                return  # the listener has closed the consumer
        self._thread.call(self._fetching.assign({}))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit (with enable.auto.commit), tell the rebalance listener, leave the group and end the thread.

        That takes at most `timeout` seconds. A poll that waits in another thread returns.
        """
        self._close(timeout, commit=True)

    def _close(self, timeout: float, *, commit: bool) -> None:
        if self._thread.is_forked:
            return
        until = time.monotonic() + timeout
        self._closing = True
        self._engine.stop_reading()
        self._engine.interrupt()
        group = self._group
        try:
            if group is not None and self._thread.is_running and not self._thread.is_own_thread:
                ending = group.unsubscribe("it is closed", timeout_s=timeout, commit=commit)
                group.steps.drive(self._thread.submit(ending))
                group.steps.run(leaving=True)
        finally:
            self._thread.stop(max(until - time.monotonic(), 0.1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. After an exception without a commit: the last poll's records may not have been processed."""
        self._close(CLOSE_TIMEOUT_S, commit=kind is None)


def arrow_names(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Check the arguments of `poll_arrow` before there are records that an exception could lose.

    Raises ValueError for an unknown column, and ImportError without pyarrow.
    """
    names = None if columns is None else tuple(columns)
    Records().columns(names)
    Records().arrow(())
    return names


def numpy_names(columns: Iterable[str] | None, dtypes: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Check the arguments of `poll_numpy` before there are records that an exception could lose.

    Raises ValueError for an unknown column or a wrong dtype.
    """
    names = None if columns is None else tuple(columns)
    Records().numpy(names, dtypes=dtypes)
    return names


def _topic_names(given: str | Iterable[str]) -> frozenset[str]:
    if not isinstance(given, Iterable):
        raise TypeError(f"topics must be names or a compiled pattern, not {given!r}")
    names = frozenset([given] if isinstance(given, str) else given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"topics {given!r}: names, or a compiled pattern")
    for name in names:
        if name.startswith("^"):  # librdkafka takes such a name for a pattern
            raise ValueError(f"{name!r} is no topic's name; give a pattern as re.compile({name!r})")
    return names
