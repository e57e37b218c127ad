from collections.abc import Iterable
from typing import Final, Self, final

from typing_extensions import Buffer

from kbroker._core.wire.record_batch import BatchInfo

COLUMN_NAMES: Final[tuple[str, ...]]

@final
class FlatBuffer:
    """The memory of one column, read-only: `memoryview(column)`. `len()` is its number of items."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class BinaryColumn:
    """A column of byte strings.

    Row i is data[offsets[i]:offsets[i + 1]]; it is null when bit i of `validity`, least significant first, is not set.
    """

    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def data(self) -> FlatBuffer: ...
    @property
    def offsets(self) -> FlatBuffer: ...
    @property
    def validity(self) -> FlatBuffer: ...
    @property
    def null_count(self) -> int:
        """The number of rows that are null."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> bytes | None:
        """Return the bytes of a row, or None when it is null. Raises IndexError for a row that does not exist."""


@final
class Columns:
    """The columns of `count` records, in Arrow's layout: numbers are little-endian.

    Reading a column that was not asked for raises ValueError.
    """

    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that were asked for, in the order of COLUMN_NAMES."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that `topic_indexes` refers to."""

    @property
    def topic_indexes(self) -> FlatBuffer:
        """For each record an index into `topics`."""

    @property
    def partitions(self) -> FlatBuffer: ...
    @property
    def timestamp_types(self) -> FlatBuffer:
        """For each record 0 for the producer's time, 1 for the broker's."""

    @property
    def offsets(self) -> FlatBuffer: ...
    @property
    def timestamps(self) -> FlatBuffer:
        """For each record its timestamp in milliseconds since 1970."""

    @property
    def keys(self) -> BinaryColumn: ...
    @property
    def values(self) -> BinaryColumn: ...
    @property
    def header_offsets(self) -> FlatBuffer:
        """Record i has rows header_offsets[i] to header_offsets[i + 1] of `header_names` and `header_values`."""

    @property
    def header_names(self) -> BinaryColumn: ...
    @property
    def header_values(self) -> BinaryColumn: ...
    def __len__(self) -> int: ...

@final
class RecordColumns:
    def __new__(
        cls, start_offset: int = 0, end_offset: int = ..., columns: Iterable[str] | None = None
    ) -> Self: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def next_partition(self, topic: str, partition: int) -> None: ...
    def add(self, batch: BatchInfo, payload: Buffer) -> int: ...
    def finish(self) -> Columns: ...
