from collections.abc import Iterable
from typing import final

from typing_extensions import Buffer

from kbroker._core.wire.record_batch import BatchInfo

@final
class Record:
    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...

def decode_records(payload: Buffer, batch: BatchInfo) -> list[Record]: ...

@final
class RecordsBuilder:
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        offset_delta: int | None = None,
    ) -> int: ...
    def records(self) -> bytes: ...
    def build(
        self,
        payload: Buffer | None = None,
        attributes: int = 0,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        max_timestamp: int | None = None,
    ) -> bytes: ...
