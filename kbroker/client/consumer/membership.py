"""What a membership in a group has with either protocol: `classic.py` and `consumer_protocol.py` are the two.

A membership runs as coroutines on the client's thread: it joins, sends heartbeats, and learns which partitions it is to
have. It changes its partitions through `Holdings`, whose steps run during polls. So partitions come and go only between
two polls, with the user's listener told.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.client.config.option import Options
from kbroker.client.consumer.coordinator import Coordinator
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata
from kbroker.client.errors import ClientError
from kbroker.client.network.cluster_view import ClusterView
from kbroker.errors import ErrorCode
from kbroker.model import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.consumer.holdings import Holdings
    from kbroker.client.consumer.steps import Steps

log = logging.getLogger("kbroker.client")


@dataclass(frozen=True)
class SubscriptionPattern:
    """A regular expression in RE2's syntax that the brokers match against whole topic names.

    Needs group.protocol=consumer and Kafka 4.0 or later. Raises ValueError when it is empty or no string.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise ValueError(f"pattern {self.pattern!r}: a string that is not empty")


@dataclass(frozen=True)
class Subscription:
    """What is subscribed to: names of topics, a pattern that whole names must match, or an expression for the brokers.

    `with_internal`: the pattern also matches the brokers' internal topics.
    """

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    expression: str | None = None
    with_internal: bool = False

    def names(self, view: ClusterView) -> frozenset[str]:
        """Return the names of the topics that are subscribed to in a cluster."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, topic in view.topics.items()
            if self.pattern.fullmatch(name)
            and not topic.error_code
            and (self.with_internal or not (topic.is_internal or name in INTERNAL_TOPICS))
        )


@dataclass
class Place:
    """The parts of a consumer that a membership works with."""

    options: Options
    coordinator: Coordinator
    holdings: Holdings
    steps: Steps
    subscription: Callable[[], Subscription]
    """Returns the current subscription."""
    fail: Callable[[ClientError], object]
    """Ends the membership for good: every poll raises the error from now on."""


class Membership(ABC):
    """A member of a group. For the client's thread, except `identity`."""

    def __init__(self, place: Place):
        self.place = place
        self.cluster = place.coordinator.cluster
        self._holdings = place.holdings
        self._coordinator = place.coordinator
        self._identity = ConsumerGroupMetadata(place.coordinator.group_id, -1, "", place.options["group.instance.id"])
        self._overdue = False  # it leaves, or has left, because nobody polled for max.poll.interval.ms
        self._interest: frozenset[str] = frozenset()  # topics whose metadata it wants
        self._patterned = False  # it wants the metadata of all topics, to match a pattern
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error_waiting: asyncio.Future[None] | None = None

    @property
    def identity(self) -> ConsumerGroupMetadata:
        """The identity to commit with. Its generation is -1 while the member has no place in the group. Any thread."""
        return self._identity

    def start(self) -> None:
        """Begin to be a member."""
        self.cluster.on_view.append(self._seen)

    async def stop(self) -> None:
        """Stop all coroutines of the membership. The caller then gives up the holdings, and calls `leave`."""
        if self._seen in self.cluster.on_view:
            self.cluster.on_view.remove(self._seen)
        await self.cancel_all()
        self._set_interest(frozenset())
        self._set_patterned(False)

    @abstractmethod
    async def leave(self, reason: str) -> None:
        """Tell the coordinator, in one attempt, that this member leaves.

        A static member is expected to come back: with the classic protocol it says nothing, with the consumer protocol
        it says just that.
        """

    @abstractmethod
    def subscription_changed(self) -> None:
        """Take up another subscription, or changed topics of the same one."""

    @abstractmethod
    def rejoin(self, reason: str) -> None:
        """Ask the group to share its partitions anew."""

    @abstractmethod
    def poll_overdue(self) -> None:
        """Leave the group, because nobody has polled for max.poll.interval.ms; join again with the next poll."""

    @abstractmethod
    def refused(self, code: ErrorCode, who: ConsumerGroupMetadata) -> None:
        """Note that a commit, or a fetch of offsets, by `who` was refused with `code`."""

    @property
    @abstractmethod
    def is_rebalancing(self) -> bool:
        """Whether the member is about to get another generation, in which its partitions may be committed."""

    @abstractmethod
    def _seen(self, view: ClusterView) -> None:
        """Act on new metadata; called with each new view from `start` to `stop`."""

    def _set_interest(self, names: frozenset[str]) -> bool:
        """Want the metadata of these topics instead of earlier ones. Returns whether those of a new one are missing."""
        is_missing = self.cluster.add_topics(names - self._interest)
        self.cluster.remove_topics(self._interest - names)
        self._interest = names
        return is_missing

    def _set_patterned(self, patterned: bool) -> bool:
        """Want the metadata of all topics, or do not want them any more. Returns whether they are wanted anew."""
        if patterned == self._patterned:
            return False
        (self.cluster.add_everything if patterned else self.cluster.remove_everything)()
        self._patterned = patterned
        return patterned

    def _begin_overdue_leave(self) -> asyncio.Task[None]:
        """Begin to leave, because nobody has polled for max.poll.interval.ms; return the task that leaves."""
        log.warning(
            "group %r: nobody has polled for max.poll.interval.ms=%d: this member leaves until somebody does. "
            "Poll more often, with fewer records, or raise it",
            self._identity.group_id,
            self.place.options["max.poll.interval.ms"],
        )
        self._overdue = True
        return self.spawn(self._leave_overdue())

    async def _leave_overdue(self) -> None:
        try:
            await self.leave("nobody has polled for max.poll.interval.ms")
        except ClientError as error:
            log.info("%s", error)

    @property
    def asker(self) -> ConsumerGroupMetadata | None:
        """The identity with which to ask for committed offsets; None: without one."""
        return None

    def has(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether, for the coordinator, all these partitions belong to this member."""
        return self.place.holdings.partitions >= set(partitions)

    def raise_in_poll(self, error: ClientError) -> asyncio.Future[None]:
        """Have a poll raise `error`, unless `withdraw_error` comes first; it replaces an earlier one that still waits.

        The returned future is done when a poll has raised the error, or cancelled.
        """
        self.withdraw_error()
        self._error_waiting = self.place.steps.post_error(error)
        return self._error_waiting

    def withdraw_error(self) -> None:
        """Take back the error that waits, because what was refused is not wanted any more."""
        if self._error_waiting is not None:
            self._error_waiting.cancel()

    @property
    def has_error_waiting(self) -> bool:
        """Whether an error waits for a poll to raise it."""
        return self._error_waiting is not None and not self._error_waiting.done()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, which `cancel_all` will end."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel_all(self) -> None:
        """Cancel all tasks of `spawn` but the current one, wait for their end, and take back a waiting error."""
        self.withdraw_error()
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
