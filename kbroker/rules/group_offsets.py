"""The offsets that one group has committed: values in, values out.

A commit is pending from the call that hands it to the log until the log has made it durable; what a consumer reads
back is durable. Offsets of a transaction are kept apart until its marker says how it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.model import TopicPartition

NO_EXPIRY = -1


class CommittedOffset(NamedTuple):
    """One committed offset. `record_offset` is the base offset of its record's batch: the newer one wins."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    """Set by OffsetCommit v2-v4 with a retention time only."""
    record_offset: int = -1


class GroupOffsets:
    """Committed, pending and transactional offsets of one group. Not thread-safe."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self._pending: dict[TopicPartition, CommittedOffset] = {}
        self.transactions: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        """Offsets of transactions that have not ended yet, by producer id."""

    @property
    def is_busy(self) -> bool:
        """Whether a commit or a transaction is on its way."""
        return bool(self._pending or self.transactions)

    def copy(self) -> GroupOffsets:
        """What is known now, for a reader who takes his time."""
        copied = GroupOffsets()
        copied.committed, copied._pending = dict(self.committed), dict(self._pending)
        copied.transactions = {producer_id: dict(offsets) for producer_id, offsets in self.transactions.items()}
        return copied

    # --- commits -----------------------------------------------------------------------------------------
    def begin(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """`offsets` are on their way into the log."""
        self._pending.update(offsets)

    def finish(self, offsets: Mapping[TopicPartition, CommittedOffset], record_offset: int) -> None:
        """`offsets` are durable, in the batch at `record_offset`."""
        for partition, committed in offsets.items():
            staged = self._pending.get(partition)
            if staged is None:
                continue  # the topic was deleted meanwhile
            if staged is committed:
                del self._pending[partition]
            self.put(partition, committed._replace(record_offset=record_offset))

    def fail(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """`offsets` did not get into the log."""
        for partition, committed in offsets.items():
            if self._pending.get(partition) is committed:
                del self._pending[partition]

    def put(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Takes `committed` unless a newer record has been taken already."""
        known = self.committed.get(partition)
        if known is None or known.record_offset <= committed.record_offset:
            self.committed[partition] = committed

    def put_transactional(self, producer_id: int, partition: TopicPartition, committed: CommittedOffset) -> None:
        """An offset of a transaction that is still open."""
        self.transactions.setdefault(producer_id, {})[partition] = committed

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """The producer's transaction has ended: its offsets count, or are forgotten."""
        for partition, committed in self.transactions.pop(producer_id, {}).items():
            if commit:
                self.put(partition, committed)

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit for `partition` is on its way: who asked for stable offsets has to wait (KIP-447)."""
        return partition in self._pending or any(partition in offsets for offsets in self.transactions.values())

    # --- removal -----------------------------------------------------------------------------------------
    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forgets all about `partitions`; returns those that had a committed offset."""
        removed = []
        for partition in partitions:
            self._pending.pop(partition, None)
            for offsets in self.transactions.values():
                offsets.pop(partition, None)
            if self.committed.pop(partition, None) is not None:
                removed.append(partition)
        if removed:
            self.transactions = {producer_id: left for producer_id, left in self.transactions.items() if left}
        return removed

    def remove_topic(self, topic: str) -> list[TopicPartition]:
        """Forgets all about a topic; returns the partitions that had a committed offset."""
        known = {p for p in (*self.committed, *self._pending) if p.topic == topic}
        known.update(p for offsets in self.transactions.values() for p in offsets if p.topic == topic)
        return self.remove(sorted(known))

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        empty_since_ms: int | None,
        is_subscribed: Callable[[str], bool] | None = None,
    ) -> list[TopicPartition]:
        """The partitions whose offsets are due to be removed (KIP-211); removes nothing. All times are wall clock.

        `empty_since_ms`: the group has had no member since then; None: count from each commit.
        `is_subscribed`: topics for which a member may ask again are spared.
        """

        def is_due(committed: CommittedOffset) -> bool:
            if committed.expire_timestamp_ms != NO_EXPIRY:
                return now_ms >= committed.expire_timestamp_ms
            since_ms = committed.commit_timestamp_ms if empty_since_ms is None else empty_since_ms
            return now_ms - since_ms >= retention_ms

        return [
            partition
            for partition, committed in self.committed.items()
            if is_due(committed)
            and partition not in self._pending
            and not (is_subscribed is not None and is_subscribed(partition.topic))
        ]
