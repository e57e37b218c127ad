"""The partitions that a member has, and how they come and go: between polls, told to the user's listener.

What goes is held first: from a poll on, all of whose records were handed out by earlier ones, no more of it comes out;
then offsets are committed (enable.auto.commit), then the listener is told, then it is gone.
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
    """Make a subclass. Called in the thread that polls, inside `poll`; `commit`, `seek` and the like work there."""

    def on_assigned(self, partitions: list[TopicPartition]) -> object:
        """These came, after a rebalance; maybe none. No record of them has been handed out: seek to begin elsewhere."""

    def on_revoked(self, partitions: list[TopicPartition]) -> object:
        """These are about to go: the last time to commit their offsets."""

    def on_lost(self, partitions: list[TopicPartition]) -> object:
        """These have gone without a word, others may have them already: nothing of them can be committed."""
        return self.on_revoked(partitions)


class Holdings:
    """For the client's thread. One of its coroutines at a time."""

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
        """Whether the coordinator has given what is here to others, so that nothing of it can be committed."""
        self._listener = listener
        self._auto_commit = auto_commit

    async def take(self, added: Collection[TopicPartition]) -> None:
        """These come. The listener is told even of none."""
        self.partitions |= frozenset(added)
        await self.fetching.assign(dict.fromkeys(sorted(self.partitions), -1), waiting=added)
        if self.are_lost:
            self._hold(added)
        await self.steps.post(lambda: self._listener().on_assigned(sorted(added)))
        self.fetching.begin(added)

    async def give_up(
        self, partitions: Collection[TopicPartition], *, tell_of_none: bool = False, commit: bool = True
    ) -> None:
        """These go, by a poll, with their offsets committed. When all is lost meanwhile, as lost."""
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
        """All there is is lost. No more records of it come out; `lose` lets it go."""
        self.are_lost = True
        self._hold(self.partitions)

    async def lose(self) -> None:
        """What is lost goes, by a poll."""
        if self.partitions:
            await self._let_go(self.partitions)
        self.are_lost = False

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            with suppress(KeyError):  # removed meanwhile
                self.engine.hold(*partition)

    async def _let_go(self, going: frozenset[TopicPartition]) -> None:
        def tell() -> object:
            # Here, so that nobody is told twice who ends it all meanwhile.
            self.partitions -= going
            if self.are_lost:
                return self._listener().on_lost(sorted(going)) if going else None
            return self._listener().on_revoked(sorted(going))

        await self.steps.post(tell)
        await self.fetching.assign(dict.fromkeys(self.partitions, -1))
