from collections.abc import Callable, Iterable
from typing import Any, final

from typing_extensions import Buffer

from kbroker._core.dedupe_map import DedupeMap

_Inflate = Callable[[int, memoryview], Buffer]
_Deflate = Callable[[int, bytes], Buffer]

@final
class LastBatches:
    def __init__(self, producers: Iterable[tuple[int, int, int]] = ()) -> None: ...
    def __len__(self) -> int: ...

@final
class Transactions:
    def __init__(self, aborted: Iterable[tuple[Any, ...]] = ()) -> None: ...
    @property
    def kept(self) -> list[tuple[Any, ...]]: ...

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
    def __init__(self) -> None: ...
    @property
    def output(self) -> bytes: ...
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
    transactions: Transactions | None = None,
    producers: LastBatches | None = None,
) -> SegmentCopy: ...
