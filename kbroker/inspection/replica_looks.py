"""Compares the replicas that running brokers have, and looks again at those that had less than their leader.

What a follower knows to be committed is behind its leader by a fetch, so its last records cannot be read at the first
look. A replica in sync has everything that its leader has committed: what it still lacks at the second look, some time
later, is a difference. So are records at its beginning that retention leaves. A replica that is not in sync may lack
any: they are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from kbroker.client.admin.results import PartitionDescription
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.inspection.replica_check import Compared, Difference, NotCompared, Replica, Tally, compare_two
from kbroker.model import TopicPartition

Outcome = Iterator[Difference | NotCompared]


class Brokers(Protocol):
    """What the looks ask running brokers. Each call may raise ClientError."""

    def describe(self, topics: Collection[str]) -> Mapping[TopicPartition, PartitionDescription]:
        """Return the partitions of those topics that there are."""

    def replica(self, partition: TopicPartition, node_id: int) -> Replica: ...

    def log_end(self, partition: TopicPartition, node_id: int) -> int | None:
        """Return the end of a replica's log; None if the broker does not tell."""

    def kept_from(self, partition: TopicPartition) -> int | None:
        """Return the first offset that retention leaves in the leader's log; None if nobody can tell."""


class _Short(NamedTuple):
    """A replica in sync that had less than its leader at the first look."""

    partition: TopicPartition
    node_id: int
    compared: Compared


class ReplicaLooks:
    """The two looks at replicas. `tally` counts their partitions. `is_compacted` tells it of a topic."""

    def __init__(self, brokers: Brokers, is_compacted: Callable[[str], bool]):
        self.tally = Tally()
        self._brokers = brokers
        self._is_compacted = is_compacted
        self._short: list[_Short] = []

    @property
    def needs_second(self) -> bool:
        """Whether a replica in sync had less than its leader."""
        return bool(self._short)

    def first(self, partition: TopicPartition, described: PartitionDescription) -> Outcome:
        """Compare each replica with the leader's; without a leader, with that of a broker that answers."""
        if len(described.replicas) > 1:
            self.tally.begin(partition)
        replicas: dict[int, Replica] = {}
        errors: dict[int, ClientError] = {}
        for node_id in sorted(described.replicas, key=lambda each: each != described.leader):
            try:
                replicas[node_id] = self._brokers.replica(partition, node_id)
            except ClientError as error:
                errors[node_id] = error
        if self._is_gone(partition, errors.values()):
            self.tally.drop(partition)
            return
        for node_id, refusal in errors.items():
            yield from self._failed(partition, node_id, f"it cannot be read: {refusal}")
        first, *others = replicas or [described.leader]
        for node_id in others:
            compared = yield from self._compare(partition, (first, replicas[first]), (node_id, replicas[node_id]))
            if compared is None or compared.is_whole:
                continue
            if first == described.leader and node_id in described.in_sync:
                self._short.append(_Short(partition, node_id, compared))
            else:
                yield from self._not_compared(partition, node_id, compared)

    def second(self) -> Outcome:
        """Look again at replicas in sync that had less than their leader: what they had to have is there by now."""
        described = self._brokers.describe({each.partition.topic for each in self._short})
        for partition, node_id, before in self._short:
            now = described.get(partition)
            if now is None:
                self.tally.drop(partition)
            elif node_id not in now.in_sync or now.leader in (-1, node_id):
                yield from self._not_compared(partition, node_id, before)
            else:
                yield from self._look_again(partition, now.leader, node_id, before)
        self._short.clear()

    def _look_again(self, partition: TopicPartition, leader: int, node_id: int, before: Compared) -> Outcome:
        try:
            ours, theirs = (self._brokers.replica(partition, each) for each in (leader, node_id))
            until = min(before.first.high_watermark, ours.bounds.high_watermark)
            start, kept = ours.bounds.start_offset, None
            if theirs.bounds.start_offset > start:
                kept = self._brokers.kept_from(partition)
            log_end = theirs.bounds.high_watermark
            if log_end < until:
                log_end = self._brokers.log_end(partition, node_id) or log_end
        except ClientError as error:
            yield from self._failed(partition, node_id, f"it cannot be read: {error}")
            return
        if log_end < until:
            what = f"it is in sync, and lacks what {_name(leader)} has committed up to offset {until}"
            yield from self._failed(partition, node_id, what, max(log_end, start))
        elif kept is not None and theirs.bounds.start_offset > max(kept, start):
            what = f"its log begins at offset {theirs.bounds.start_offset}, and retention does not say why"
            yield from self._failed(partition, node_id, what, max(kept, start))
        else:
            rest = yield from self._compare(partition, (leader, ours), (node_id, theirs), before.end, until)
            if rest is not None:
                first = rest.first._replace(high_watermark=until)
                yield from self._not_compared(partition, node_id, rest._replace(first=first))

    def _compare(
        self,
        partition: TopicPartition,
        first: tuple[int, Replica],
        other: tuple[int, Replica],
        start: int = 0,
        end: int | None = None,
    ) -> Generator[Difference | NotCompared, None, Compared | None]:
        """Compare two replicas, which are given with their brokers' ids. Return None after a difference."""
        (our_id, ours), (their_id, theirs) = first, other
        is_compacted = self._is_compacted(partition.topic)
        try:
            compared = compare_two(ours, theirs, start, end, compacted=is_compacted)
        except KbrokerError as error:
            what = f"it cannot be compared with {_name(our_id)}: {error}"
            yield from self._failed(partition, their_id, what)
            return None
        self.tally.add(partition, compared)
        if compared.difference is None:
            return compared
        offset, what = compared.difference
        yield Difference(partition, _name(their_id), offset, what.format(first=_name(our_id)))
        return None

    def _failed(self, partition: TopicPartition, node_id: int, what: str, offset: int | None = None) -> Outcome:
        self.tally.lack(partition)
        yield Difference(partition, _name(node_id), offset, what)

    def _not_compared(self, partition: TopicPartition, node_id: int, compared: Compared) -> Outcome:
        for missed in compared.not_compared(partition, _name(node_id)):
            self.tally.lack(partition)
            yield missed

    def _is_gone(self, partition: TopicPartition, errors: Iterable[ClientError]) -> bool:
        """Whether a broker does not know the topic because it was deleted meanwhile."""
        return any(
            each.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in errors
        ) and partition not in self._brokers.describe([partition.topic])


def _name(node_id: int) -> str:
    return f"broker {node_id}"
