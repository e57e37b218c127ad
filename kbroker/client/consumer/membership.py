"""What being a member of a group is, whichever protocol it is by: `classic.py` or `consumer_protocol.py`.

A membership runs as coroutines on the client's thread: it joins, says that it is alive, learns which partitions it is
to have. It changes what it has by its `Holdings`, whose steps polls take part in; so partitions come and go only
between two polls, after the user's listener has been told.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.client.cluster_view import ClusterView
from kbroker.client.config import Options
from kbroker.client.consumer.coordinator import Coordinator
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode
from kbroker.model import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.consumer.holdings import Holdings
    from kbroker.client.consumer.steps import Steps


@dataclass(frozen=True)
class SubscriptionPattern:
    """A regular expression of RE2 that a topic's name must match as a whole, for brokers to match (Kafka 4.0 and later;
    group.protocol=consumer).
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise ValueError(f"pattern {self.pattern!r}: a string that is not empty")


@dataclass(frozen=True)
class Subscription:
    """Names of topics, or a pattern that a name must match as a whole, or an expression that the brokers match."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    expression: str | None = None
    with_internal: bool = False

    def names(self, view: ClusterView) -> frozenset[str]:
        """What it comes to in a cluster."""
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
    """What a membership has to do with."""

    options: Options
    coordinator: Coordinator
    holdings: Holdings
    steps: Steps
    subscription: Callable[[], Subscription]
    """The one that counts now."""
    fail: Callable[[ClientError], object]
    """For good: every poll raises it from now on."""


class Membership(ABC):
    """For the client's thread, but for `identity`."""

    def __init__(self, place: Place):
        self.place = place
        self.cluster = place.coordinator.cluster
        self._tasks: set[asyncio.Task[Any]] = set()
        self._said: asyncio.Future[None] | None = None

    @property
    @abstractmethod
    def identity(self) -> ConsumerGroupMetadata:
        """Who commits. While it has no place in the group generation -1. Any thread."""

    @abstractmethod
    def start(self) -> None:
        """Begin to be a member."""

    @abstractmethod
    async def stop(self) -> None:
        """Nothing more by itself: the holdings are the caller's; `leave` ends it."""

    @abstractmethod
    async def leave(self, reason: str) -> None:
        """Tell the coordinator, one attempt. Static members are expected back: they say nothing, or say that."""

    @abstractmethod
    def subscription_changed(self) -> None:
        """There is another one, or its topics have changed."""

    @abstractmethod
    def rejoin(self, reason: str) -> None:
        """The partitions are to be shared anew."""

    @abstractmethod
    def poll_overdue(self) -> None:
        """Nobody has polled for max.poll.interval.ms: leave; come back with the next poll."""

    @abstractmethod
    def refused(self, code: ErrorCode, who: ConsumerGroupMetadata) -> None:
        """A commit by `who` was refused."""

    @property
    @abstractmethod
    def is_rebalancing(self) -> bool:
        """Whether it is about to have another generation, and what is held meanwhile may be committed in that."""

    @property
    def asker(self) -> ConsumerGroupMetadata | None:
        """As whom to ask for committed offsets; None: anybody may."""
        return None

    def has(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether the coordinator thinks that all of them are this member's."""
        return self.place.holdings.partitions >= set(partitions)

    def say(self, error: ClientError) -> asyncio.Future[None]:
        """A poll raises it, unless `unsay` comes first. One waits at a time, the newest. Done or cancelled after it."""
        self.unsay()
        self._said = self.place.steps.post_error(error)
        return self._said

    def unsay(self) -> None:
        """What was refused is not wanted any more."""
        if self._said is not None:
            self._said.cancel()

    @property
    def has_to_say(self) -> bool:
        """Whether something waits for a poll to raise it."""
        return self._said is not None and not self._said.done()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that `cancel_all` ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel_all(self) -> None:
        self.unsay()
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
