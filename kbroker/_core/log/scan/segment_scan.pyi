from collections.abc import Callable
from typing import Final, NamedTuple, final

from typing_extensions import Buffer

from kbroker._core.log.producer_table import ProducerTable

REASONS: Final[dict[int, str]]

class FoundBatch(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int

class SegmentScan:
    @property
    def valid_size(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def last_time_entry(self) -> int: ...
    @property
    def bytes_since_index(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def index(self) -> bytes: ...
    @property
    def time_index(self) -> bytes: ...
    @property
    def aborted(self) -> bytes: ...
    @property
    def marker_seen(self) -> bool: ...
    @property
    def gaps(self) -> bool: ...
    @property
    def epochs(self) -> list[tuple[int, int]]: ...
    @property
    def reason(self) -> str | None: ...

def scan_segment(
    fd: int,
    size: int,
    base_offset: int,
    *,
    position: int = 0,
    next_offset: int | None = None,
    verify: bool = True,
    index_interval_bytes: int = 4096,
    max_timestamp: int = -1,
    max_timestamp_offset: int = -1,
    last_time_entry: int = -1,
    latest_epoch: int = -1,
    producers: ProducerTable | None = None,
    producers_from: int = 0,
    progress: Callable[[int], None] | None = None,
) -> SegmentScan: ...
@final
class SegmentWalk:
    def __init__(self, base_offset: int, *, index_interval_bytes: int = 4096) -> None: ...
    def add(self, batches: Buffer) -> None: ...
    def scanned(self) -> SegmentScan: ...

def find_batch(
    fd: int, size: int, *, position: int = 0, timestamp: int = -1, offset: int = -1
) -> FoundBatch | None: ...
