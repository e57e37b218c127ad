from collections.abc import Callable
from typing import Final, NamedTuple

from typing_extensions import Buffer

LOG: Final[int]
INDEX: Final[int]
TIME_INDEX: Final[int]
TRANSACTION_DATA: Final[int]
TRANSACTION_ABORT: Final[int]
TRANSACTION_COMMIT: Final[int]
TEXTS: Final[dict[int, str]]

class EpochRun(NamedTuple):
    leader_epoch: int
    position: int
    first_offset: int
    last_offset: int

class TransactionEvent(NamedTuple):
    kind: int
    position: int
    first_offset: int
    last_offset: int
    producer_id: int

class SegmentFinding(NamedTuple):
    file: int
    position: int
    what: str

class SegmentCheck:
    @property
    def position(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def is_sure(self) -> bool: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def epochs(self) -> list[EpochRun]: ...
    @property
    def findings(self) -> list[SegmentFinding]: ...
    @property
    def finding_count(self) -> int: ...

def check_segment(
    fd: int,
    size: int,
    base_offset: int,
    *,
    inflate: Callable[[int, memoryview, int], Buffer],
    index: Buffer = b"",
    time_index: Buffer = b"",
    end_offset: int | None = None,
    gaps: bool = False,
    zeros_allowed: bool = False,
    transactions: Callable[[list[TransactionEvent]], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> SegmentCheck: ...
