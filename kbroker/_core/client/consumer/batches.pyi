from collections.abc import Callable, Iterable
from typing import final

from typing_extensions import Buffer

from kbroker._core.client.consumer.record import UnreadableRecords

@final
class Chunk:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def error(self) -> UnreadableRecords | None: ...
    def __len__(self) -> int: ...

def read_chunk(
    topic: str,
    partition: int,
    data: Buffer,
    inflate: Callable[[int, memoryview, int], bytes],
    *,
    position: int = 0,
    aborted: Iterable[tuple[int, int]] | None = None,
    check_crcs: bool = True,
) -> Chunk: ...
