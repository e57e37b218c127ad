from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, SupportsIndex, final, overload

from kbroker._core.wire.columns import Columns
from kbroker._core.client.consumer.batches import Chunk
from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker.model import TopicPartition

@final
class RecordIterator:
    def __iter__(self) -> Self: ...
    def __next__(self) -> ConsumerRecord: ...

@final
class Handout: ...

@final
class Records:
    """The records of one poll: a sequence of ConsumerRecord.

    The records of each partition are in the order of their offsets, one partition after the other. Indexing and slicing
    (in steps of 1) work too. Several threads may read the same Records only by iterating. Reading raises
    UnreadableRecords when a batch is damaged.
    """

    def __init__(self, chunks: Iterable[Chunk] = (), max_records: int | None = None) -> None:
        """Take at most the first `max_records` records of `chunks`, which `read_chunk` makes."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ConsumerRecord]: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, index: slice, /) -> Records: ...
    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have records here, in the order of their first records."""

    def of_partition(self, topic: str, partition: int) -> Records:
        """Return the records of one partition."""

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Return for each partition the offset to go on at behind these records: what a commit of them stores."""

    def columns(self, columns: Iterable[str] | None = None) -> Columns:
        """Return all records as flat columns (kbroker._core.wire.columns.Columns).

        `columns` names those that are wanted; what is not wanted is not copied. None: all columns. Raises ValueError
        for an unknown name, and UnreadableRecords when a batch is damaged.
        """

    def arrow(self, columns: Iterable[str] | None = None) -> Any:
        """Return all records as a pyarrow.RecordBatch.

        Its columns: topic (dictionary of string), partition (int32), offset (int64), timestamp (timestamp[ms, UTC]),
        timestamp_type (int8), key and value (binary), headers (list of struct<key: string, value: binary>). `columns`
        names those that are wanted; None: all.

        Raises ImportError without pyarrow, ValueError for an unknown name, and UnreadableRecords when a batch is
        damaged.
        """

    def numpy(
        self, columns: Iterable[str] | None = None, *, dtypes: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return all records as a dict of NumPy arrays, which are read-only.

        `topic` has indexes into `topics`, an object array of str; `partition`, `offset`, `timestamp` and
        `timestamp_type` are integers. `value` has the bytes of all values one behind the other (uint8): row i is
        value[value_offsets[i]:value_offsets[i + 1]], and null where value_valid[i] is false. `key` likewise. Row i's
        headers are rows header_offsets[i] to header_offsets[i + 1] of `header_key` and `header_value`, which are like
        `value`.

        `columns` names those that are wanted; None: all. `dtypes` gives a NumPy dtype for "key" or "value": then each
        is one element of that type. Raises ValueError for an unknown name or when a key or value has not the size of
        its dtype, and UnreadableRecords when a batch is damaged.
        """

    def __copy__(self) -> Records: ...
    def __deepcopy__(self, memo: object, /) -> Records: ...
