"""The offsets that one group has committed: values in, values out.

A commit is staged from its append until the log has made it durable; consumers read back only durable offsets. Offsets
of a transaction are kept apart until its marker says how it has ended (KIP-98). The order of records in the log
decides, as in a replay, and not the order in which they become durable. A marker ends the offsets that its transaction
has written before it. A removal also removes the offsets that open transactions have written before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.model import TopicPartition

NO_EXPIRY = -1


class CommittedOffset(NamedTuple):
    """One committed offset. `record_offset` is the base offset of its record's batch; the greater one wins."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    """Set only by OffsetCommit v2 to v4 with a retention time."""
    record_offset: int = -1


class StagedOffsets:
    """Offsets that are being appended to the log and are not durable yet."""

    __slots__ = ("markers", "offsets", "producer_id")

    def __init__(self, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None):
        self.offsets = offsets
        """The offsets, without those that were removed meanwhile."""
        self.producer_id = producer_id
        """The producer to whose transaction they belong; None: to no transaction."""
        self.markers: list[tuple[int, bool]] = []
        """(offset, commit) of the producer's markers that came meanwhile; each ends what is before it in the log."""


class GroupOffsets:
    """Committed, pending and transactional offsets of one group. Not thread-safe."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.transactions: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        """Offsets of transactions that have not ended yet, by producer id."""
        self._staged: list[StagedOffsets] = []

    @property
    def is_busy(self) -> bool:
        """Whether a commit is staged or a transaction is open."""
        return bool(self.transactions or self._staged)

    def has_transaction(self, producer_id: int) -> bool:
        """Whether the producer has offsets here that its marker would end."""
        return producer_id in self.transactions or any(one.producer_id == producer_id for one in self._staged)

    def copy(self) -> GroupOffsets:
        """A copy of the present state, to be read without the lock."""
        copied = GroupOffsets()
        copied.committed = dict(self.committed)
        copied.transactions = {producer_id: dict(offsets) for producer_id, offsets in self.transactions.items()}
        copied._staged = [StagedOffsets(one.offsets, one.producer_id) for one in self._staged]
        return copied

    # --- commits -----------------------------------------------------------------------------------------
    def begin(self, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None = None) -> StagedOffsets:
        """Stage offsets that are being appended. `offsets` must not change. Followed by `finish` or `fail`."""
        staged = StagedOffsets(offsets, producer_id)
        self._staged.append(staged)
        return staged

    def finish(self, staged: StagedOffsets, record_offset: int) -> None:
        """Take note that staged offsets are durable, in the batch at `record_offset`."""
        self._staged.remove(staged)
        commit = next((commit for marker, commit in staged.markers if record_offset < marker), None)
        for partition, committed in staged.offsets.items():
            written = committed._replace(record_offset=record_offset)
            if staged.producer_id is None or commit:
                self.set_committed(partition, written)
            elif commit is None:
                self.set_transactional(staged.producer_id, partition, written)

    def fail(self, staged: StagedOffsets) -> None:
        """Drop staged offsets: they did not get into the log."""
        self._staged.remove(staged)

    def set_committed(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Set the committed offset, unless there is one with a newer record."""
        known = self.committed.get(partition)
        if known is None or known.record_offset <= committed.record_offset:
            self.committed[partition] = committed

    # --- transactions ------------------------------------------------------------------------------------
    def set_transactional(self, producer_id: int, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Set an offset of an open transaction, unless that transaction has one with a newer record."""
        offsets = self.transactions.setdefault(producer_id, {})
        known = offsets.get(partition)
        if known is None or known.record_offset <= committed.record_offset:
            offsets[partition] = committed

    def end_transaction(self, producer_id: int, commit: bool, marker_offset: int) -> None:
        """Commit or drop the offsets that the producer's transaction has written before `marker_offset`.

        To be called before the producer's next transaction writes to a partition that this one has written to.
        """
        for staged in self._staged:
            if staged.producer_id == producer_id:
                staged.markers.append((marker_offset, commit))
        left: dict[TopicPartition, CommittedOffset] = {}
        for partition, committed in self.transactions.pop(producer_id, {}).items():
            if committed.record_offset >= marker_offset:
                left[partition] = committed
            elif commit:
                self.set_committed(partition, committed)
        if left:
            self.transactions[producer_id] = left

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit for `partition` is staged or in an open transaction: stable reads have to wait (KIP-447)."""
        return any(partition in staged.offsets for staged in self._staged) or any(
            partition in offsets for offsets in self.transactions.values()
        )

    # --- removal -----------------------------------------------------------------------------------------
    def known(self) -> set[TopicPartition]:
        """The partitions for which the log may have records."""
        found = {*self.committed}
        for offsets in (*self.transactions.values(), *(staged.offsets for staged in self._staged)):
            found.update(offsets)
        return found

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove all offsets of `partitions`. An open transaction stays open until its marker, even without offsets."""
        gone = frozenset(partitions)
        for partition in gone:
            self.committed.pop(partition, None)
            for offsets in self.transactions.values():
                offsets.pop(partition, None)
        for staged in self._staged:
            staged.offsets = {p: committed for p, committed in staged.offsets.items() if p not in gone}

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        empty_since_ms: int | None,
        is_subscribed: Callable[[str], bool] | None = None,
    ) -> list[TopicPartition]:
        """The partitions whose offsets have expired (KIP-211); removes nothing. All times are wall clock time.

        `empty_since_ms`: since when the group has no members; None: retention counts from each commit.
        `is_subscribed`: offsets of topics for which it is true do not expire.
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
            and not self.is_unstable(partition)
            and not (is_subscribed is not None and is_subscribed(partition.topic))
        ]
