"""A consumer's group: subscription, membership, committed offsets, and how polls take part in them.

A poll calls `begin_poll` before and `end_poll` after, and runs `steps` in between. Consumer and AsyncConsumer differ
only in how they do that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from kbroker.client.consumer import offsets
from kbroker.client.consumer.classic import ClassicMembership
from kbroker.client.consumer.consumer_protocol import ConsumerMembership
from kbroker.client.consumer.coordinator import Coordinator
from kbroker.client.consumer.fetching import Fetching
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.consumer.holdings import Holdings, RebalanceListener
from kbroker.client.consumer.membership import Membership, Place, Subscription
from kbroker.client.consumer.steps import Steps
from kbroker.client.errors import ClientError, CommitFailed
from kbroker.model import TopicPartition

log = logging.getLogger("kbroker.client")

COMMIT_SHARE = 0.6  #: the last commit's share of the time that ending may take


class Group:
    """One consumer's part in its group. Coroutines are for the client's thread."""

    def __init__(self, fetching: Fetching):
        self._fetching = fetching
        self._engine = fetching.engine
        self._cluster = fetching.cluster
        self._options = options = fetching.cluster.network.options
        self._thread = fetching.cluster.network.thread
        self.group_id: str = options["group.id"]
        self.steps = Steps(self._thread.loop, self._engine.interrupt)
        self.coordinator = Coordinator(self._cluster, self.group_id)
        self.subscription: Subscription | None = None
        self._listener = RebalanceListener()
        self._membership: Membership | None = None
        self._failure: ClientError | None = None
        auto = options["enable.auto.commit"]
        self._holdings = Holdings(fetching, self.steps, lambda: self._listener, self._commit_going if auto else None)
        self._interval_s = options.seconds("auto.commit.interval.ms") if auto else None
        self._commit_at = time.monotonic() + (self._interval_s or 0)
        self._polling = False
        self._polled_at = 0.0  # when the last poll ended
        self._handed_to: ConsumerGroupMetadata | None = None  # the member's identity when the last poll ended
        self._watch: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        fetching.committed = self._positions

    # --- what polls do, in their thread ---------------------------------------------------------------------

    def begin_poll(self) -> None:
        """Note that the records of earlier polls are processed; commit their offsets if an automatic commit is due."""
        self._polling = True
        if self._interval_s is not None and time.monotonic() >= self._commit_at:
            self._commit_at = time.monotonic() + self._interval_s
            positions = self.positions()
            if positions:
                self._thread.call_soon(self._commit_soon, positions, self.identity)

    def check(self) -> None:
        """Raise the error that has ended the membership, if there is one."""
        if self._failure is not None:
            raise self._failure

    def end_poll(self) -> None:
        """Note when the poll has ended, and as which member the records were handed out."""
        if self.identity.generation_id >= 0:
            self._handed_to = self.identity
        self._polled_at = time.monotonic()
        self._polling = False

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions behind the handed-out records of all assigned partitions that have one."""
        return offsets.positions_of(self._engine, self._engine.assigned())

    @property
    def identity(self) -> ConsumerGroupMetadata:
        """Who this member is now. For any thread."""
        membership = self._membership
        if membership is None:
            return ConsumerGroupMetadata(self.group_id, -1, "", self._options["group.instance.id"])
        return membership.identity

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        """The identity that this member had when polls handed out the records. For any thread.

        A member that has lost its place still has its last identity, and its offsets are refused: with generation -1
        brokers would take it for a client that is in no group, and accept them.
        """
        identity = self.identity
        return identity if identity.generation_id >= 0 else self._handed_to or identity

    @property
    def is_leaving(self) -> bool:
        """Whether the consumer has unsubscribed but not left yet: the assigned partitions are still the group's."""
        return self.subscription is None and self._membership is not None

    # --- subscribing ----------------------------------------------------------------------------------------

    async def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        self.subscription = subscription
        self._listener = listener or RebalanceListener()
        if self._membership is not None:
            self._fetching.forget_errors()
            self._membership.subscription_changed()
            return
        place = Place(
            self._options,
            self.coordinator,
            self._holdings,
            self.steps,
            lambda: self.subscription or Subscription(),
            self._fail,
        )
        by_consumer = self._options["group.protocol"] == "consumer"
        self._membership = ConsumerMembership(place) if by_consumer else ClassicMembership(place)
        self._failure = None
        self._polled_at = time.monotonic()
        self._watch = self._spawn(self._watch_polls())
        self._membership.start()

    async def unsubscribe(
        self, reason: str, *, timeout_s: float | None = None, commit: bool = True, tell: bool = True
    ) -> None:
        """Commit (if enable.auto.commit and `commit`), give up all partitions, leave the group.

        `tell`: call the rebalance listener. Takes at most `timeout_s` seconds; None: default.api.timeout.ms. Failures
        are logged.
        """
        membership, self.subscription = self._membership, None
        if self._watch is not None:
            self._watch.cancel()
        limit_s = self._options.seconds("default.api.timeout.ms") if timeout_s is None else timeout_s
        ends_at = self._thread.loop.time() + limit_s
        try:
            if self._interval_s is not None and commit and not self._holdings.are_lost:
                # Before the membership stops: a rebalance under way may bring the generation that can commit.
                await self._commit_last(self.positions(), limit_s * COMMIT_SHARE)
            if membership is None:
                return
            await membership.stop()
            if self._holdings.are_lost and tell:
                await self._holdings.lose()
            elif tell:
                await self._holdings.give_up(self._holdings.partitions, commit=False)
            async with asyncio.timeout_at(ends_at):
                await membership.leave(reason)
        except (ClientError, TimeoutError) as error:
            log.warning("group %r: leaving: %s", self.group_id, error or "it took too long")
        finally:
            self._membership = self._handed_to = None
            self._holdings.are_lost = False  # a later membership begins without partitions, so nothing is lost

    def leave_at_exit(self, timeout_s: float) -> None:
        """Leave the group when the interpreter exits, without a commit. For any thread.

        A program that has not closed its consumer may not have processed the last records.
        """
        if self.subscription is not None:
            leaving = self.unsubscribe("its process ends", timeout_s=timeout_s, commit=False, tell=False)
            self._thread.call(leaving, timeout_s)

    def rejoin(self, reason: str) -> None:
        if self._membership is not None:
            self._membership.rejoin(reason)

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        self._engine.interrupt()

    async def _watch_polls(self) -> None:
        limit_s = self._options.seconds("max.poll.interval.ms")
        while True:
            left_s = limit_s if self._polling else self._polled_at + limit_s - time.monotonic()
            if left_s <= 0 and self._membership is not None:
                self._membership.poll_overdue()
                left_s = limit_s
            await asyncio.sleep(left_s)

    # --- offsets --------------------------------------------------------------------------------------------

    async def commit(
        self, wanted: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_s: float | None = None
    ) -> None:
        """Commit offsets, trying again for `timeout_s` seconds; None: default.api.timeout.ms.

        Raises CommitFailed when the group may have given a partition to another member.
        """
        if wanted:
            await self._cluster.retried(lambda: self._commit(wanted, self.identity), timeout_s=timeout_s)

    async def commit_once(self, wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets in a single attempt: a retry could overwrite a later commit."""
        if wanted:
            await self._commit(wanted, self.identity)

    async def _commit(self, wanted: Mapping[TopicPartition, OffsetAndMetadata], who: ConsumerGroupMetadata) -> None:
        membership = self._membership
        if membership is not None and who.generation_id < 0:
            raise CommitFailed(f"group {self.group_id!r}: nothing is committed: this member has no place in it now")
        try:
            await offsets.commit(self.coordinator, who, wanted)
        except CommitFailed as error:
            if membership is not None:
                is_rebalancing = membership.is_rebalancing or membership.identity != who
                membership.refused(error.code, who)
                # The member is in another generation, or will be soon. If it has these partitions there, a retry helps.
                error.retriable = is_rebalancing and not self._holdings.are_lost and membership.has(wanted.keys())
            raise

    async def committed(
        self, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed positions. A partition without one is left out."""
        if not partitions:
            return {}
        return await self._cluster.retried(lambda: self._fetch(partitions), timeout_s=timeout_s)

    async def _fetch(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        membership = self._membership
        who = membership.asker if membership is not None else None
        try:
            return await offsets.fetch(self.coordinator, partitions, who)
        except ClientError as error:
            if membership is not None and who is not None:
                membership.refused(error.code, who)
            raise

    async def _positions(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return committed (offset, leader epoch) by partition, in a single attempt; for `Fetching.committed`."""
        found = await self._fetch(partitions)
        return {partition: (committed.offset, committed.leader_epoch) for partition, committed in found.items()}

    async def _commit_going(self, wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        longest_s = self._options.seconds("max.poll.interval.ms")
        await self._commit_last(wanted, min(self._options.seconds("default.api.timeout.ms"), longest_s))

    async def _commit_last(self, wanted: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Commit before partitions are given up. A failure is logged; the next member then reads the records again."""
        try:
            await self.commit(wanted, timeout_s=timeout_s)
        except ClientError as error:
            log.warning("group %r: the last commit failed: %s", self.group_id, error)

    def _commit_soon(self, positions: Mapping[TopicPartition, OffsetAndMetadata], who: ConsumerGroupMetadata) -> None:
        self._spawn(self._commit_automatically(positions, who))

    async def _commit_automatically(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata], who: ConsumerGroupMetadata
    ) -> None:
        try:
            await self._commit(positions, who)
        except ClientError as error:
            log.warning("group %r: a commit failed, the next one may do better: %s", self.group_id, error)
            if error.retriable:
                self._commit_at = min(self._commit_at, time.monotonic() + self._options.seconds("retry.backoff.ms"))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._thread.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
