"""A slow and obvious model of a log: a list of batches of records, without files and indexes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelRecord:
    offset: int
    timestamp: int
    value: bytes


@dataclass
class LogModel:
    """A log as a list of batches. Truncating and deleting take a slice of it."""

    batches: list[list[ModelRecord]] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """(epoch, first offset it wrote), as the log knows them."""

    def records(self, offset: int | None = None) -> list[ModelRecord]:
        offset = self.start_offset if offset is None else max(offset, self.start_offset)
        return [record for batch in self.batches for record in batch if record.offset >= offset]

    def append(self, records: list[tuple[int, bytes]]) -> int:
        base_offset = self.end_offset
        self.batches.append(
            [ModelRecord(base_offset + at, timestamp, value) for at, (timestamp, value) in enumerate(records)]
        )
        self.end_offset += len(records)
        return base_offset

    def truncate_to(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        self.batches = [batch for batch in self.batches if batch[-1].offset < offset]
        self.start_offset = min(self.start_offset, offset)
        # A batch is removed whole, with its records below `offset`; the log never ends before it starts.
        self.end_offset = max(self.start_offset, self.batches[-1][-1].offset + 1 if self.batches else 0)
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end_offset]

    def delete_before(self, offset: int) -> None:
        if offset > self.start_offset:
            self.start_offset = offset

    def begin_epoch(self, epoch: int) -> None:
        if epoch > (self.epochs[-1][0] if self.epochs else -1):
            self.epochs = [entry for entry in self.epochs if entry[1] < self.end_offset]
            self.epochs.append((epoch, self.end_offset))

    def first_at_or_after(self, timestamp: int) -> ModelRecord | None:
        return next((record for record in self.records() if record.timestamp >= timestamp), None)

    def newest(self) -> ModelRecord | None:
        """The first record of those with the largest timestamp."""
        records = self.records()
        return max(records, key=lambda record: (record.timestamp, -record.offset)) if records else None
