from typing import final

from kbroker.errors import BadInput, ClientError

class UnreadableRecords(ClientError, BadInput):
    """Raised when records of a partition cannot be read: they are damaged, or not what the protocol says.

    `offset` is the first offset that cannot be read. The records before it have been handed out. Seeking behind
    `offset` leaves the damaged records out.
    """

    topic: str
    partition: int
    offset: int
    def __init__(self, topic: str, partition: int, offset: int, what: str) -> None: ...

@final
class RecordSource:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ConsumerRecord:
    """One record. Each field is made anew whenever it is read; the record keeps the memory of its batch alive."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 when the record has no time."""

    @property
    def timestamp_type(self) -> int:
        """0: `timestamp` is the producer's time; 1: the time when the broker appended the record."""

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that appended the record; None when it is not known."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def value_view(self) -> memoryview | None:
        """The value without a copy, or None. The view keeps everything that was fetched with the record in memory."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Pairs of a header's name and its value, which is bytes or None."""

    def __copy__(self) -> ConsumerRecord: ...
    def __deepcopy__(self, memo: object, /) -> ConsumerRecord: ...
    def __reduce__(self) -> tuple[object, tuple[str, int, bytes]]: ...

def restored_record(topic: str, partition: int, data: bytes) -> ConsumerRecord:
    """Return the ConsumerRecord that its `__reduce__` has turned into `data`. Raises ValueError for other bytes."""
