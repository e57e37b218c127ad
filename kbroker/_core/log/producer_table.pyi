from collections.abc import Sequence
from typing import NamedTuple

_Batch = tuple[int, int, int, int, int]

class RememberedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

class ProducerEntry(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    transaction_first_offset: int
    batches: list[RememberedBatch]

class ActiveProducer(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int

class ProducerTable:
    def __init__(self, maximum: int = ...) -> None: ...
    def __len__(self) -> int: ...
    def check(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        *,
        transactional: bool = False,
        verified: bool = True,
        lowest_sequence: int = ...,
        origin: int = ...,
    ) -> tuple[int, tuple[int, int, int] | None]: ...
    def remember(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        timestamp: int,
        *,
        transactional: bool = False,
    ) -> None: ...
    def end(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, *, commit: bool
    ) -> tuple[int, int]: ...
    @property
    def longest_search(self) -> int: ...
    @property
    def first_undecided_offset(self) -> int: ...
    def expire(self, oldest_timestamp: int) -> None: ...
    def restore(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        last_timestamp: int,
        transaction_first_offset: int,
        batches: Sequence[_Batch],
    ) -> None: ...
    def states(self) -> list[ActiveProducer]: ...
    def export(self) -> list[ProducerEntry]: ...
    def copy(self) -> ProducerTable: ...
