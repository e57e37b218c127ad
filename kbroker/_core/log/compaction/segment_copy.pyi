from typing import Protocol, final

from typing_extensions import Buffer

from kbroker._core.log.compaction.cleaned_transactions import LastBatches, Transactions
from kbroker._core.log.compaction.dedupe_map import DedupeMap

class _Inflate(Protocol):
    def __call__(self, codec: int, data: memoryview, magic: int = 2, /) -> Buffer: ...

class _Deflate(Protocol):
    def __call__(self, codec: int, data: bytes, magic: int = 2, /) -> Buffer: ...

def feed_map(
    segment: Buffer,
    map: DedupeMap,
    *,
    inflate: _Inflate,
    start_offset: int = 0,
    transactions: Transactions | None = None,
) -> tuple[int, int, bool]: ...

@final
class SegmentCopy:
    @property
    def output(self) -> memoryview: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def taken(self) -> int: ...
    @property
    def batches_read(self) -> int: ...
    @property
    def records_read(self) -> int: ...
    @property
    def batches_kept(self) -> int: ...
    @property
    def records_kept(self) -> int: ...

def copy_segment(
    segment: Buffer,
    map: DedupeMap,
    *,
    inflate: _Inflate,
    deflate: _Deflate,
    now_ms: int,
    delete_retention_ms: int,
    retain_old_tombstones: bool = True,
    transactions: Transactions | None = None,
    producers: LastBatches | None = None,
    into: SegmentCopy | None = None,
) -> SegmentCopy: ...
