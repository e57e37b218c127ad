"""An obvious model of a partition with transactions: a list of what was appended, from which all else is computed.

In Apache Kafka these are ProducerStateManager, UnifiedLog.lastStableOffset and TransactionIndex (KIP-98).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """A batch: data of a producer, or the marker that ends its transaction."""

    base_offset: int
    last_offset: int
    producer_id: int
    epoch: int
    is_transactional: bool
    marker: bool | None = None
    """For a marker: whether it commits; None for data."""
    coordinator_epoch: int = -1


@dataclass(frozen=True)
class Aborted:
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass
class TransactionModel:
    entries: list[Entry] = field(default_factory=list)
    start_offset: int = 0
    retained_from: int = 0
    """The offset at which a log without batches goes on."""

    @property
    def end_offset(self) -> int:
        return self.entries[-1].last_offset + 1 if self.entries else self.retained_from

    # --- changes

    def append(self, producer_id: int, epoch: int, count: int, *, is_transactional: bool) -> Entry:
        end = self.end_offset
        self.entries.append(Entry(end, end + count - 1, producer_id, epoch, is_transactional))
        return self.entries[-1]

    def end(self, producer_id: int, epoch: int, coordinator_epoch: int, *, commit: bool) -> Entry:
        end = self.end_offset
        self.entries.append(Entry(end, end, producer_id, epoch, True, commit, coordinator_epoch))
        return self.entries[-1]

    def truncate_to(self, offset: int) -> None:
        self.entries = [entry for entry in self.entries if entry.last_offset < offset]
        if self.end_offset < self.start_offset:
            # A batch is removed whole. A log does not end before it starts: it goes on from there.
            self.entries, self.retained_from = [], self.start_offset

    # --- questions

    def open_transactions(self, before: int | None = None) -> dict[int, int]:
        """Return a dict: producer id -> first offset of its open transaction, as they were at offset `before`."""
        found: dict[int, int] = {}
        for entry in self.entries:
            if before is not None and entry.base_offset >= before:
                break
            if entry.marker is not None:
                found.pop(entry.producer_id, None)
            elif entry.is_transactional:
                found.setdefault(entry.producer_id, entry.base_offset)
        return found

    @property
    def first_undecided_offset(self) -> int:
        return min(self.open_transactions().values(), default=(1 << 63) - 1)

    @property
    def last_stable_offset(self) -> int:
        return min(max(self.first_undecided_offset, self.start_offset), self.end_offset)

    def aborted(self) -> list[Aborted]:
        found = []
        for entry in self.entries:
            if entry.marker is False:
                before = self.open_transactions(entry.base_offset)
                first = before.pop(entry.producer_id, None)
                if first is not None:
                    stable = min(before.values(), default=entry.last_offset + 1)
                    found.append(Aborted(entry.producer_id, first, entry.last_offset, stable))
        return found

    def aborted_within(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the aborted transactions that a consumer must be told of with the batches from `offset` to `end`."""
        return [
            (at.producer_id, at.first_offset)
            for at in self.aborted()
            if at.last_offset >= offset and at.first_offset < end
        ]

    def committed(self) -> list[int]:
        """Return the offsets of the data that a read_committed consumer gets, up to the last stable offset."""
        aborted = {
            offset
            for at in self.aborted()
            for entry in self.entries
            if entry.producer_id == at.producer_id
            and entry.marker is None
            and entry.is_transactional
            and at.first_offset <= entry.base_offset <= at.last_offset
            for offset in range(entry.base_offset, entry.last_offset + 1)
        }
        return [
            offset
            for entry in self.entries
            if entry.marker is None
            for offset in range(entry.base_offset, entry.last_offset + 1)
            if self.start_offset <= offset < self.last_stable_offset and offset not in aborted
        ]

    def epochs(self) -> dict[int, tuple[int, int]]:
        """Return (producer epoch, coordinator epoch) of each producer."""
        found: dict[int, tuple[int, int]] = {}
        for entry in self.entries:
            if entry.producer_id >= 0:
                known = found.get(entry.producer_id, (-1, -1))[1]
                found[entry.producer_id] = entry.epoch, known if entry.marker is None else entry.coordinator_epoch
        return found
