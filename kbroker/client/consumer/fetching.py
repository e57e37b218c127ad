"""The leaders, positions and errors of a consumer's partitions. For the client's thread.

A partition is fetched unless it is in one of these sets:

* `_stale`: its leader is looked for, by fresh metadata;
* `_lost`: it has no position, and the offset to begin at is looked for;
* `_unproven`: its leader is newer than the last record, and is asked whether it has that record (KIP-320).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.consumer.record import UnreadableRecords
from kbroker.client.config.option import Options
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
from kbroker.client.network.backoff import Backoff, retry_backoff
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.cluster_view import ClusterView
from kbroker.client.network.versions import choose
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import inflate

log = logging.getLogger("kbroker.client")

EARLIEST, LATEST = -2, -1  #: timestamps that ListOffsets understands
RESETS = {"earliest": EARLIEST, "latest": LATEST}
USABLE_EPOCH_VERSION = 3  #: the first version of OffsetForLeaderEpoch that clients are allowed to use
NOT_FOUND = (-1, -1)  #: (offset, timestamp) where there is no record of that time or later

Place = tuple[int, int]  #: an offset, and the leader epoch of the record before it (-1: not known)


def fetch_engine(options: Options) -> FetchEngine:
    """Return a FetchEngine that fetches as the options say."""
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
    """Finds leaders and positions for the partitions of an engine."""

    def __init__(self, engine: FetchEngine, cluster: Cluster):
        self.engine = engine
        self.cluster = cluster
        self._options = cluster.network.options
        self._topics: set[str] = set()  # topics of the assigned partitions
        self._led: dict[TopicPartition, tuple[int, int]] = {}  # (leader id, leader epoch)
        self._stale: set[TopicPartition] = set()  # not fetched until there are fresh metadata
        self._lost: set[TopicPartition] = set()  # without a position
        self._new: set[TopicPartition] = set()  # of these, the ones whose committed offset was not asked for yet
        self._waiting: set[TopicPartition] = set()  # without a position, and none is looked for until `begin`
        self.committed: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Place]]] | None = None
        """Returns the group's committed positions of partitions, where it has one; None without a group."""
        self._unproven: set[TopicPartition] = set()  # with a leader that may not have what was read
        self._failures: dict[TopicPartition, tuple[int, Backoff]] = {}  # the offset that fails again and again
        self._missing: set[TopicPartition] = set()  # of `_stale`, the ones that do not exist, as the log has said
        self._resting: dict[TopicPartition, tuple[int, int]] = {}  # leaders that are not asked for a while
        self._mending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._assignments = 0  # the number of assignments so far
        engine.on_told = self.handle_news
        cluster.on_view.append(self._seen)

    # --- what is assigned -----------------------------------------------------------------------------------

    async def assign(self, wanted: Mapping[TopicPartition, int], waiting: Collection[TopicPartition] = ()) -> None:
        """Read exactly these partitions, from their offsets on.

        Offset -1: go on at the position that the partition has; without one at the group's committed offset, or where
        auto.offset.reset says. For partitions in `waiting` no position is looked for until `begin`.
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
        """Drop errors that wait for a poll and concern no single partition: they were about an earlier assignment.

        An error that concerns the new assignment too comes again.
        """
        self._assignments += 1
        self.engine.forget_errors()

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Look for the positions of partitions that were `waiting`, unless `seek` has set them."""
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

    def handle_news(self) -> None:
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
        """Fetch a partition again after a retriable error, with fresh metadata.

        That begins at once if the offset has not failed before, or if the broker has named the leader (KIP-951); else
        after a backoff.
        """
        log.log(
            logging.DEBUG if error_of(code) in RETRIABLE else logging.WARNING,
            "%s: %s at offset %d", partition, error_of(code).name, offset,
        )  # fmt: skip
        leader = self._led.pop(partition, None)
        failed, backoff = self._failures.get(partition, (-1, None))
        if backoff is None or failed != offset:
            self._failures[partition] = (offset, retry_backoff(self._options))
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

    def _mend(self) -> None:
        if self._wants_mending and (self._mending is None or self._mending.done()):
            self._mending = self._spawn(self._mend_all())

    @property
    def _wants_mending(self) -> bool:
        return bool(self._stale or self._lost or self._unproven)

    async def _mend_all(self) -> None:
        """Look for leaders and positions until all partitions have them."""
        backoff = retry_backoff(self._options)
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
                    self._report_refusals()
                await self._find_positions()
                await self._prove_positions()
            except ClientError as error:
                if assignments == self._assignments:
                    self._report(error)
            except Exception:  # a mistake here must not end the task: the consumer would stand still in silence
                log.exception("finding leaders and positions has failed; it is tried again")
            if self._wants_mending:
                await asyncio.sleep(backoff.next_s())

    def _report_refusals(self) -> None:
        """Act on partitions without a leader: have a poll raise a refusal, and log partitions that do not exist."""
        for partition in self._stale:
            refused = self._refusal_of(partition)
            if not refused.retriable:
                self._report(refused, partition)
            elif refused.hint == NO_SUCH_PARTITION and partition not in self._missing:
                self._missing.add(partition)
                log.warning("%s", refused)
        self._missing &= self._stale

    def _report(self, error: ClientError, partition: TopicPartition | None = None) -> None:
        """Log an error if it is retriable, else have the next poll raise it.

        What has failed is tried again in any case.
        """
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
            self._report(why, partition)

    def _place(self, found: Mapping[TopicPartition, Place]) -> None:
        for partition, place in found.items():
            self._lost.discard(partition)
            # A `seek` meanwhile wins.
            if tuple(partition) in self.engine.assigned() and self.engine.position(*partition) < 0:
                self.engine.seek(*partition, *place)

    # --- whether a new leader has what was read (KIP-320) -----------------------------------------------------

    async def _prove_positions(self) -> None:
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition in self._unproven - self._stale:
            if partition in self._led:
                leader_id, leader_epoch = self._led[partition]
                by_leader[leader_id][partition] = leader_epoch
        outcomes = await asyncio.gather(
            *(self._prove_at(leader_id, led) for leader_id, led in by_leader.items()), return_exceptions=True
        )
        for error in outcomes:
            if isinstance(error, ClientError):
                self._report(error)
            elif error is not None:
                raise error

    async def _prove_at(self, leader_id: int, led: Mapping[TopicPartition, int]) -> None:
        """Ask a leader about partitions, and act on its answers. `led`: the leader's epoch of each partition."""

        def is_unproven(partition: TopicPartition) -> bool:
            """Return whether the leader still has to prove itself. During each wait it may be replaced or given up."""
            is_leader = self._led.get(partition) == (leader_id, led[partition])
            return is_leader and partition in self._unproven and tuple(partition) in self.engine.assigned()

        connection = await self.cluster.connection(leader_id)
        here = [partition for partition in led if is_unproven(partition)]
        if choose(ApiKey.OFFSET_FOR_LEADER_EPOCH, connection.served) < USABLE_EPOCH_VERSION:
            for partition in here:
                self._go_on(partition)
            return
        asked = {partition: self.engine.epochs(*partition) for partition in here}
        for partition in [partition for partition, epochs in asked.items() if epochs[3] < 0]:
            del asked[partition]
            self._go_on(partition)  # a `seek` came meanwhile: no record that was read has to be in the log
        if not asked:
            return
        answer = await connection.call(_epochs_request(asked, led))
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.topic, row.partition)
                if partition in asked and is_unproven(partition):
                    self._judge(partition, asked[partition], row)

    def _judge(self, partition: TopicPartition, asked: tuple[int, int, int, int], row: Any) -> None:
        """Act on the leader's answer to OffsetForLeaderEpoch for one partition, as Java's consumer does."""
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
            return  # a `seek`, or records that were under way, came meanwhile: the next round asks again
        position, _, fetch_offset, _ = asked
        known = row.end_offset >= 0 and row.leader_epoch >= 0
        if known and row.end_offset >= fetch_offset:
            self._go_on(partition)
        elif known and row.end_offset >= position:
            self.engine.seek(*partition, *asked[:2])  # only fetched records that no poll has returned are gone
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
        self.engine.lead(*partition, *self._led[partition])

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- offsets --------------------------------------------------------------------------------------------

    async def offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (offset, timestamp) of each partition's first record at the given time or later; NOT_FOUND: none.

        EARLIEST and LATEST may be asked for in place of a time. Raises ClientError when a leader does not answer.
        """
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
        """Ask all leaders at once, in one attempt, for what is not in `found` yet, and add the answers to `found`.

        Returns for each partition without an answer the error that says why. An answer counts even if another leader
        fails.
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

        async def look_up_at(node_id: int, partitions: Mapping[TopicPartition, int]) -> None:
            try:
                refused.update(await self._list_offsets(node_id, partitions, found))
            except ClientError as error:
                refused.update(dict.fromkeys(partitions, error))

        await asyncio.gather(*(look_up_at(*each) for each in by_leader.items()))
        if refused:
            self.cluster.refresh_soon()
        return refused

    def _refusal_of(self, partition: TopicPartition) -> BrokerError:
        """Return the error of a partition without a leader."""
        topic = self.cluster.view.topics.get(partition.topic)
        return partition_refusal(self._leaderless(partition), partition, len(topic.partitions) if topic else 0)

    def _leaderless(self, partition: TopicPartition) -> int:
        """Return the error code that says why a partition has no leader."""
        topic = self.cluster.view.topics.get(partition.topic)
        there = topic.partitions.get(partition.partition_id) if topic is not None else None
        if there is not None:
            return there.error_code or ErrorCode.LEADER_NOT_AVAILABLE
        return (topic.error_code if topic is not None else 0) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _list_offsets(
        self, node_id: int, asked: Mapping[TopicPartition, int], found: dict[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, ClientError]:
        """Ask one leader, and add its answers to `found`. Returns the errors of the partitions that it has refused."""
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
        # Below version 2 there is no isolation level, and the broker has no transactions.
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
                    found[partition] = NOT_FOUND  # messages of magic 0 have no timestamps
                elif row.error_code:
                    refused[partition] = refusal(row.error_code, None, str(partition))
                elif partition in asked:
                    offset = row.offset if version else next(iter(row.old_style_offsets), -1)
                    # -1 is an answer only to a time: every log has a beginning and an end.
                    if offset >= (-1 if asked[partition] >= 0 else 0):
                        found[partition] = (offset, row.timestamp)
        for partition in asked.keys() - found.keys() - refused.keys():
            refused[partition] = MalformedAnswer(f"{connection.address} answered ListOffsets without {partition}")
        return refused

    async def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of topics. Raises BrokerError when a topic is not there."""
        creates = self.cluster.creates_topics
        found = [await self.cluster.topic(name, allow_auto_creation=creates) for name in topics]
        return [
            TopicPartition(topic.name, partition_id) for topic in found for partition_id in sorted(topic.partitions)
        ]


def _first(errors: Iterable[ClientError]) -> ClientError:
    """Return the error to raise: one that is not retriable if there is such."""
    return min(errors, key=lambda error: error.retriable)


def _epochs_request(
    asked: Mapping[TopicPartition, tuple[int, int, int, int]], led: Mapping[TopicPartition, int]
) -> Any:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for partition, (_, _, _, epoch) in asked.items():
        row = M.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=partition.partition_id, current_leader_epoch=led[partition], leader_epoch=epoch
        )
        by_topic[partition.topic].append(row)
    return M.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            M.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=rows)
            for topic, rows in by_topic.items()
        ],
    )
