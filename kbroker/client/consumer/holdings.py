"""The partitions that a member has, and how they come and go: between polls, and with calls of the user's listener.

A partition goes in these steps. First a poll holds it: no more of its records are handed out. Then its offset is
committed (with enable.auto.commit). Then the listener is told. Then it is no longer assigned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress

from kbroker.client.consumer.fetching import Fetching
from kbroker.client.consumer.group_metadata import OffsetAndMetadata
from kbroker.client.consumer.offsets import positions_of
from kbroker.client.consumer.steps import Steps
from kbroker.model import TopicPartition


class RebalanceListener:
    """What `subscribe` tells about rebalances: make a subclass, and override what you want to know.

    `poll` calls the methods, in the thread that polls. `commit`, `seek` and the consumer's other methods work there.
    """

    def on_assigned(self, partitions: list[TopicPartition]) -> object:
        """Called after a rebalance with the partitions that were added; the list may be empty.

        No record of them has been handed out yet: `seek` here to begin elsewhere.
        """

    def on_revoked(self, partitions: list[TopicPartition]) -> object:
        """Called before these partitions go to other members: the last chance to commit their offsets."""

    def on_lost(self, partitions: list[TopicPartition]) -> object:
        """Called when these partitions are gone already, and other members may have them: nothing can be committed.

        Calls `on_revoked` unless overridden.
        """
        return self.on_revoked(partitions)


class Holdings:
    """The partitions of one member. For the client's thread; one of its coroutines may run at a time."""

    def __init__(
        self,
        fetching: Fetching,
        steps: Steps,
        listener: Callable[[], RebalanceListener],
        auto_commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Awaitable[None]] | None,
    ):
        self.fetching = fetching
        self.engine = fetching.engine
        self.steps = steps
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.are_lost = False
        """Whether these partitions are lost: others may have them already, and nothing can be committed."""
        self._listener = listener
        self._auto_commit = auto_commit

    async def add(self, added: Collection[TopicPartition]) -> None:
        """Add partitions. The listener is told, even if there are none."""
        self.partitions |= frozenset(added)
        await self.fetching.assign(dict.fromkeys(sorted(self.partitions), -1), waiting=added)
        if self.are_lost:
            self._hold(added)
        await self.steps.post(lambda: self._listener().on_assigned(sorted(added)))
        self.fetching.begin(added)

    async def give_up(
        self, partitions: Collection[TopicPartition], *, tell_of_none: bool = False, commit: bool = True
    ) -> None:
        """Give up partitions during polls, with their offsets committed (if `commit`, and with enable.auto.commit).

        `tell_of_none`: tell the listener even if there are none. If all partitions are lost meanwhile, the listener is
        told of a loss instead.
        """
        going = frozenset(partitions) & self.partitions
        if not going and not tell_of_none:
            return
        positions: dict[TopicPartition, OffsetAndMetadata] = {}

        def hold() -> None:
            self._hold(going)
            positions.update(positions_of(self.engine, going))

        await self.steps.post(hold)
        if commit and positions and self._auto_commit is not None and not self.are_lost:
            await self._auto_commit(positions)
        await self._let_go(going)

    def note_loss(self) -> None:
        """Note that all partitions are lost: none of their records are handed out any more.

        `lose` then lets them go.
        """
        self.are_lost = True
        self._hold(self.partitions)

    async def lose(self) -> None:
        """Let lost partitions go during a poll."""
        if self.partitions:
            await self._let_go(self.partitions)
        self.are_lost = False

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            with suppress(KeyError):  # removed meanwhile
                self.engine.hold(*partition)

    async def _let_go(self, going: frozenset[TopicPartition]) -> None:
        def notify_listener() -> object:
            # Removed here, in the step: a consumer that is closed meanwhile must not tell the listener once more.
            self.partitions -= going
            if self.are_lost:
                return self._listener().on_lost(sorted(going)) if going else None
            return self._listener().on_revoked(sorted(going))

        await self.steps.post(notify_listener)
        await self.fetching.assign(dict.fromkeys(self.partitions, -1))
