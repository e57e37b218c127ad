"""Who leads a consumer's partitions, where it stands in them, what becomes of errors. For the client's thread.

A partition is in one of these states: it is fetched; `_stale`: who leads it is asked for; `_lost`: where to begin is
asked for; `_unproven`: its leader is a later one than that of the last record, and is asked whether it has that record
too (KIP-320).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.consumer.record import UnreadableRecords
from kbroker.client.cluster import Backoff, Cluster
from kbroker.client.cluster_view import ClusterView
from kbroker.client.config import Options
from kbroker.client.errors import (
    NO_SUCH_PARTITION,
    RETRIABLE,
    BrokerError,
    ClientError,
    LogTruncated,
    MalformedAnswer,
    error_of,
    partition_refusal,
    refusal,
)
from kbroker.client.versions import choose
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import inflate

log = logging.getLogger("kbroker.client")

EARLIEST, LATEST = -2, -1  #: timestamps that ListOffsets understands
RESETS = {"earliest": EARLIEST, "latest": LATEST}
USABLE_EPOCH_VERSION = 3  #: of OffsetForLeaderEpoch: before it only brokers were allowed to ask
NOT_FOUND = (-1, -1)  #: offset and timestamp

Place = tuple[int, int]  #: an offset, and the leader epoch of the record before it, -1 not known


def fetch_engine(options: Options) -> FetchEngine:
    """One that fetches as the options say."""
    limit: int = options["inflated.max.bytes"]
    return FetchEngine(
        lambda codec, data, magic: inflate(codec, data, limit, magic=magic),
        client_id=options["client.id"],
        rack=options["client.rack"],
        read_committed=options["isolation.level"] == "read_committed",
        min_bytes=options["fetch.min.bytes"],
        max_wait_ms=options["fetch.max.wait.ms"],
        max_bytes=options["fetch.max.bytes"],
        max_partition_bytes=options["max.partition.fetch.bytes"],
        queued_max_bytes=options["queued.max.bytes"],
        check_crcs=options["check.crcs"],
        request_timeout_ms=options["request.timeout.ms"],
    )


class Fetching:
    """Keeps an engine's partitions led and positioned."""

    def __init__(self, engine: FetchEngine, cluster: Cluster):
        self.engine = engine
        self.cluster = cluster
        self._options = cluster.network.options
        self._topics: set[str] = set()  # of what is assigned
        self._led: dict[TopicPartition, tuple[int, int]] = {}
        self._stale: set[TopicPartition] = set()  # stand still until there are fresh metadata
        self._lost: set[TopicPartition] = set()  # have no position
        self._new: set[TopicPartition] = set()  # of these, those that the group has not been asked about
        self._waiting: set[TopicPartition] = set()  # have none and get none until `begin`
        self.committed: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Place]]] | None = None
        """Where a group has come to in partitions, as far as it has."""
        self._unproven: set[TopicPartition] = set()  # have a leader that may not have what was read
        self._failures: dict[TopicPartition, tuple[int, Backoff]] = {}  # offset that fails, again and again
        self._missing: set[TopicPartition] = set()  # of `_stale`: their topics do not have them, as the log has said
        self._resting: dict[TopicPartition, tuple[int, int]] = {}  # by whom they are not tried for a while
        self._mending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._assignments = 0  # so far
        engine.on_told = self._told
        cluster.on_view.append(self._seen)

    # --- what is assigned -----------------------------------------------------------------------------------

    async def assign(self, wanted: Mapping[TopicPartition, int], waiting: Collection[TopicPartition] = ()) -> None:
        """Exactly these, from their offsets on; -1: where they are already, else where the group has come to or
        auto.offset.reset says. No position is looked for of those in `waiting` until `begin`.
        """
        before = {TopicPartition(*key) for key in self.engine.assigned()}
        if before != wanted.keys():
            self.forget_errors()
        for partition in before - wanted.keys():
            self.engine.remove(*partition)
            self._led.pop(partition, None)
        for partition, offset in wanted.items():
            if partition not in before:
                self.engine.assign(*partition, offset)
            elif offset >= 0:
                self.engine.seek(*partition, offset)
        topics = {partition.topic for partition in wanted}
        self.cluster.add_topics(topics - self._topics)
        self.cluster.remove_topics(self._topics - topics)
        self._topics = topics
        self._seen(self.cluster.view)
        self._stale |= {partition for partition in wanted if partition not in self._led}
        self._waiting = (self._waiting & wanted.keys()) | set(waiting)
        self._new |= wanted.keys() - before
        self._find_missing()

    def forget_errors(self) -> None:
        """What waits to be raised of no partition, or is about to, was about what was assigned before: what concerns
        this too comes again."""
        self._assignments += 1
        self.engine.forget_errors()

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Look for the positions of those that were `waiting`, unless somebody has sought them."""
        self._waiting -= set(partitions)
        self._find_missing()

    def _find_missing(self) -> None:
        assigned = (TopicPartition(*key) for key in self.engine.assigned())
        self._lost |= {each for each in assigned if each not in self._waiting and self.engine.position(*each) < 0}
        self._mend()

    def _seen(self, view: ClusterView) -> None:
        for key in self.engine.assigned():
            partition = TopicPartition(*key)
            found = view.partition(*partition)
            leader = (found.leader_id, found.leader_epoch) if found is not None else (-1, -1)
            if self._resting.get(partition) == leader:
                continue
            if leader[0] >= 0 and (partition in self._stale or self._led.get(partition) != leader):
                self._resting.pop(partition, None)
                self._stale.discard(partition)
                self._led[partition] = leader
                if 0 <= self.engine.epochs(*partition)[3] < leader[1]:
                    self.engine.lead(*partition, -1)
                    self._unproven.add(partition)
                else:
                    self._unproven.discard(partition)
                    self.engine.lead(*partition, *leader)
        self._mend()

    # --- errors ---------------------------------------------------------------------------------------------

    def _told(self) -> None:
        for topic, partition_id, code, offset, leader_id, leader_epoch in self.engine.take_news():
            partition = TopicPartition(topic, partition_id)
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                log.info("%s: offset %d is not there", partition, offset)
                if self._options["auto.offset.reset"] == "none":
                    refused = BrokerError(f"{partition}: there is no offset {offset}", code=error_of(code))
                    self.engine.raise_in_poll(refused, *partition)
                    continue
                self.engine.seek(*partition, -1)
                self._lost.add(partition)
                self._new.discard(partition)
            elif code == ErrorCode.CORRUPT_MESSAGE:
                damaged = UnreadableRecords(topic, partition_id, offset, "the broker found them corrupt")
                self.engine.raise_in_poll(damaged, *partition)
            elif error_of(code) in RETRIABLE or error_of(code) == ErrorCode.UNKNOWN_SERVER_ERROR:
                self._try_again(partition, code, offset, leader_id, leader_epoch)
            else:
                error = BrokerError(f"{partition}: {error_of(code).name}", code=error_of(code))
                self.engine.raise_in_poll(error, *partition)
        self._mend()

    def _try_again(self, partition: TopicPartition, code: int, offset: int, leader_id: int, leader_epoch: int) -> None:
        """With fresh metadata; at once where it has not failed before, or the broker has told who leads (KIP-951)."""
        log.log(
            logging.DEBUG if error_of(code) in RETRIABLE else logging.WARNING,
            "%s: %s at offset %d", partition, error_of(code).name, offset,
        )  # fmt: skip
        leader = self._led.pop(partition, None)
        failed, backoff = self._failures.get(partition, (-1, None))
        if backoff is None or failed != offset:
            self._failures[partition] = (offset, self._new_backoff())
            self._stale.add(partition)
        elif leader is None:
            self._stale.add(partition)
        else:
            self._resting[partition] = leader
            self.cluster.network.thread.loop.call_later(backoff.next_s(), self._look_again, partition)
        if leader_id in self.cluster.view.nodes:
            self.cluster.note_leader(*partition, leader_id, leader_epoch, ())

    def _look_again(self, partition: TopicPartition) -> None:
        if self._resting.pop(partition, None) is not None:
            self._stale.add(partition)
            self._mend()

    def _new_backoff(self) -> Backoff:
        return Backoff(self._options.seconds("retry.backoff.ms"), self._options.seconds("retry.backoff.max.ms"))

    def _mend(self) -> None:
        if self._wants_mending and (self._mending is None or self._mending.done()):
            self._mending = self._spawn(self._mend_all())

    @property
    def _wants_mending(self) -> bool:
        return bool(self._stale or self._lost or self._unproven)

    async def _mend_all(self) -> None:
        """Metadata and positions, again and again, until all have them."""
        backoff = self._new_backoff()
        while self._wants_mending:
            current = {TopicPartition(*key) for key in self.engine.assigned()}
            self._stale &= current
            self._unproven &= current
            self._resting = {partition: leader for partition, leader in self._resting.items() if partition in current}
            self._failures = {partition: row for partition, row in self._failures.items() if partition in current}
            self._lost = {partition for partition in self._lost & current if self.engine.position(*partition) < 0}
            assignments = self._assignments
            try:
                if self._stale:
                    await self.cluster.refresh()
                    self._seen(self.cluster.view)
                    self._say_what_is_refused()
                await self._find_positions()
                await self._prove_positions()
            except ClientError as error:
                if assignments == self._assignments:
                    self._say(error)
            if self._wants_mending:
                await asyncio.sleep(backoff.next_s())

    def _say_what_is_refused(self) -> None:
        """Partitions that have no leader because the broker does not let us have them."""
        for partition in self._stale:
            refused = self._refusal_of(partition)
            if not refused.retriable:
                self._say(refused, partition)
            elif refused.hint == NO_SUCH_PARTITION and partition not in self._missing:
                self._missing.add(partition)
                log.warning("%s", refused)
        self._missing &= self._stale

    def _say(self, error: ClientError, partition: TopicPartition | None = None) -> None:
        """It is tried again whatever it is; what will not pass by itself is raised by the next poll."""
        if error.retriable:
            log.warning("%s", error)
        elif partition is None:
            self.engine.raise_in_poll(error)
        elif tuple(partition) in self.engine.assigned():
            self.engine.raise_in_poll(error, *partition)

    async def _find_positions(self) -> None:
        lost = self._lost - self._stale
        reset = self._options["auto.offset.reset"]
        self._new &= {TopicPartition(*key) for key in self.engine.assigned()}
        if self.committed is not None and (new := lost & self._new):
            committed = await self.committed(new)
            self._new -= new
            self._place(committed)
            lost -= committed.keys()
        if not lost:
            return
        if reset == "none":
            self._lost -= lost
            for partition in lost:
                refused = BrokerError(f"{partition}: no offset to begin at", code=ErrorCode.OFFSET_OUT_OF_RANGE)
                self.engine.raise_in_poll(refused, *partition, until_seek=True)
            return
        found: dict[TopicPartition, tuple[int, int]] = {}
        unanswered = await self._look_up(dict.fromkeys(lost, RESETS[reset]), found)
        self._place({partition: (offset, -1) for partition, (offset, _) in found.items()})
        for partition, why in unanswered.items():
            self._say(why, partition)

    def _place(self, found: Mapping[TopicPartition, Place]) -> None:
        for partition, place in found.items():
            self._lost.discard(partition)
            # Whoever has sought meanwhile knows better.
            if tuple(partition) in self.engine.assigned() and self.engine.position(*partition) < 0:
                self.engine.seek(*partition, *place)

    # --- whether a new leader has what was read (KIP-320) -----------------------------------------------------

    async def _prove_positions(self) -> None:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in self._unproven - self._stale:
            if partition in self._led:
                by_leader[self._led[partition][0]].append(partition)
        outcomes = await asyncio.gather(
            *(self._prove_at(node_id, partitions) for node_id, partitions in by_leader.items()), return_exceptions=True
        )
        for error in outcomes:
            if isinstance(error, ClientError):
                self._say(error)
            elif error is not None:
                raise error

    async def _prove_at(self, node_id: int, partitions: Collection[TopicPartition]) -> None:
        connection = await self.cluster.connection(node_id)
        if choose(ApiKey.OFFSET_FOR_LEADER_EPOCH, connection.served) < USABLE_EPOCH_VERSION:
            for partition in partitions:
                self._go_on(partition)
            return
        asked = {partition: self.engine.epochs(*partition) for partition in partitions if self._is_here(partition)}
        for partition in [partition for partition, epochs in asked.items() if epochs[3] < 0]:
            del asked[partition]
            self._go_on(partition)  # somebody has sought: nothing that was read has to be there
        if not asked:
            return
        answer = await connection.call(self._ask_epochs(asked))
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.topic, row.partition)
                if partition in asked and self._is_here(partition):
                    self._judge(partition, asked[partition], row)

    def _is_here(self, partition: TopicPartition) -> bool:
        return partition in self._unproven and tuple(partition) in self.engine.assigned()

    def _ask_epochs(self, asked: Mapping[TopicPartition, tuple[int, int, int, int]]) -> M.Message:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for partition, (_, _, _, epoch) in asked.items():
            row = M.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=partition.partition_id,
                current_leader_epoch=self._led[partition][1],
                leader_epoch=epoch,
            )
            by_topic[partition.topic].append(row)
        message = M.OffsetForLeaderEpochRequest(replica_id=-1)
        message.topics = [
            M.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=rows)
            for topic, rows in by_topic.items()
        ]
        return message

    def _judge(self, partition: TopicPartition, asked: tuple[int, int, int, int], row: Any) -> None:
        """What the leader's answer means for where we stand; as in Java's consumer."""
        if row.error_code:
            code = error_of(row.error_code)
            if code in RETRIABLE or code == ErrorCode.UNKNOWN_SERVER_ERROR:
                self._unproven.discard(partition)
                self._led.pop(partition, None)
                self._stale.add(partition)
                self.cluster.refresh_soon()
            else:
                self._go_on(partition)
                self.engine.raise_in_poll(BrokerError(f"{partition}: {code.name}", code=code), *partition)
            return
        if self.engine.epochs(*partition)[2:] != asked[2:]:
            return  # somebody has sought, or what was under way has come: the next round asks again
        position, _, fetch_offset, _ = asked
        known = row.end_offset >= 0 and row.leader_epoch >= 0
        if known and row.end_offset >= fetch_offset:
            self._go_on(partition)
        elif known and row.end_offset >= position:
            self.engine.seek(*partition, *asked[:2])  # only what nobody has read is another's now
            self._go_on(partition)
        elif self._options["auto.offset.reset"] == "none":
            self._go_on(partition)
            divergent = row.end_offset if known else None
            self.engine.raise_in_poll(LogTruncated(partition, position, divergent), *partition, until_seek=True)
        else:
            self._go_on(partition)
            if known:
                log.warning("%s was truncated: reading goes back from %d to %d", partition, position, row.end_offset)
                self.engine.seek(*partition, row.end_offset, row.leader_epoch)
            else:
                log.warning("%s was truncated: reading begins where auto.offset.reset says", partition)
                self.engine.seek(*partition, -1)
                self._lost.add(partition)

    def _go_on(self, partition: TopicPartition) -> None:
        self._unproven.discard(partition)
        if tuple(partition) in self.engine.assigned():
            self.engine.lead(*partition, *self._led[partition])

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- offsets --------------------------------------------------------------------------------------------

    async def offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, its timestamp) of the first record at a timestamp or later (-1, -1: none), or EARLIEST, LATEST."""
        found: dict[TopicPartition, tuple[int, int]] = {}

        async def attempt() -> None:
            refused = await self._look_up(asked, found)
            if refused:
                raise _first(refused.values())

        await self.cluster.retried(attempt)
        return found

    async def _look_up(
        self, asked: Mapping[TopicPartition, int], found: dict[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, ClientError]:
        """One attempt at what is not `found` yet, of all leaders at once: what one knows counts, whatever becomes of
        the others. Why there is no answer, by partition.
        """
        missing = asked.keys() - found.keys()
        topics = {partition.topic for partition in missing}
        unknown = self.cluster.add_topics(topics)
        try:
            if unknown or any(self.cluster.leader(*partition) is None for partition in missing):
                await self.cluster.refresh()
        finally:
            self.cluster.remove_topics(topics)
        refused: dict[TopicPartition, ClientError] = {}
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition in missing:
            view = self.cluster.leader(*partition)
            if view is None:
                refused[partition] = self._refusal_of(partition)
            else:
                by_leader[view.leader_id][partition] = asked[partition]

        async def ask(node_id: int, partitions: Mapping[TopicPartition, int]) -> None:
            try:
                refused.update(await self._ask_offsets(node_id, partitions, found))
            except ClientError as error:
                refused.update(dict.fromkeys(partitions, error))

        await asyncio.gather(*(ask(*each) for each in by_leader.items()))
        if refused:
            self.cluster.refresh_soon()
        return refused

    def _refusal_of(self, partition: TopicPartition) -> BrokerError:
        """Of one that nobody leads."""
        topic = self.cluster.view.topics.get(partition.topic)
        return partition_refusal(self._leaderless(partition), partition, len(topic.partitions) if topic else 0)

    def _leaderless(self, partition: TopicPartition) -> int:
        """Why nobody leads it."""
        topic = self.cluster.view.topics.get(partition.topic)
        there = topic.partitions.get(partition.partition_id) if topic is not None else None
        if there is not None:
            return there.error_code or ErrorCode.LEADER_NOT_AVAILABLE
        return (topic.error_code if topic is not None else 0) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _ask_offsets(
        self, node_id: int, asked: Mapping[TopicPartition, int], found: dict[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, ClientError]:
        """What it has refused."""
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for partition, timestamp in asked.items():
            row = M.ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition_id, timestamp=timestamp)
            by_topic[partition.topic].append(row)
        message = M.ListOffsetsRequest(replica_id=-1)
        message.topics = [
            M.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=rows) for topic, rows in by_topic.items()
        ]
        connection = await self.cluster.connection(node_id)
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        # Below version 2 there is no isolation level, and no transaction that could be open.
        if self._options["isolation.level"] == "read_committed" and version >= 2:
            message.isolation_level = 1
        if version == 0 and any(timestamp >= 0 for timestamp in asked.values()):
            raise BrokerError(
                f"{connection.address}: records are found by time from Kafka 0.10.1 on",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        answer = await connection.call(message)
        refused: dict[TopicPartition, ClientError] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if row.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and partition in asked:
                    found[partition] = NOT_FOUND  # messages of magic 0 have no time
                elif row.error_code:
                    refused[partition] = refusal(row.error_code, None, str(partition))
                elif partition in asked:
                    offset = row.offset if version else next(iter(row.old_style_offsets), -1)
                    # Only at a time there may be nothing: every log has a beginning and an end.
                    if offset >= (-1 if asked[partition] >= 0 else 0):
                        found[partition] = (offset, row.timestamp)
        for partition in asked.keys() - found.keys() - refused.keys():
            refused[partition] = MalformedAnswer(f"{connection.address} answered ListOffsets without {partition}")
        return refused

    async def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of topics, which must be there."""
        creates = self.cluster.creates_topics
        found = [await self.cluster.topic(name, allow_auto_creation=creates) for name in topics]
        return [
            TopicPartition(topic.name, partition_id) for topic in found for partition_id in sorted(topic.partitions)
        ]


def _first(errors: Iterable[ClientError]) -> ClientError:
    """The one to raise: what will not pass by itself, if there is such."""
    return min(errors, key=lambda error: error.retriable)
