"""Reading fetched batches as a consumer with isolation.level=read_committed does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from kbroker._core.wire.record_batch import BatchInfo
from kbroker.protocol.records import ControlType, Record, control_type, read_batches
from kbroker.storage.log import Log


class AnyBatch(Protocol):
    """A record batch, or a message of an older format that looks like one."""

    @property
    def info(self) -> BatchInfo: ...
    def records(self) -> list[Record]: ...


AnyBatchT = TypeVar("AnyBatchT", bound=AnyBatch)


def judged(batches: Iterable[AnyBatchT], aborted: Iterable[tuple[int, int]]) -> Iterator[tuple[AnyBatchT, bool]]:
    """Yield the batches of a fetch, and whether each was aborted, as Kafka's consumer decides it.

    `aborted` are (producer id, first offset). Batches of a producer are aborted from the first offset of an aborted
    transaction on, until an abort marker of the producer.
    """
    waiting = sorted(aborted, key=lambda at: at[1])
    aborting: set[int] = set()
    for batch in batches:
        info = batch.info
        while waiting and waiting[0][1] <= info.last_offset:
            aborting.add(waiting.pop(0)[0])
        if info.is_control and info.record_count and ControlType.ABORT in map(control_type, batch.records()):
            aborting.discard(info.producer_id)
        yield batch, info.is_transactional and not info.is_control and info.producer_id in aborting


def committed_records(data: bytes, aborted: Iterable[tuple[int, int]], offset: int) -> tuple[list[Record], int]:
    """Return the committed records from `offset` on in the batches of a fetch, and the offset to go on with."""
    found: list[Record] = []
    for batch, is_aborted in judged(read_batches(data), aborted):
        if not batch.info.is_control and not is_aborted:
            found += [record for record in batch.records() if record.offset >= offset]
        offset = max(offset, batch.info.last_offset + 1)
    return found, offset


def read_committed(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Return every committed record from `offset` (None: the log's start) to the last stable offset."""
    offset = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while offset < log.last_stable_offset:
        data = log.read(offset, max_bytes, committed=True)
        if not data:
            break
        more, offset = committed_records(data, log.aborted_transactions(offset, max_bytes), offset)
        found += more
    return found
