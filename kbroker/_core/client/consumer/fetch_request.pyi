from collections.abc import Iterable
from typing import Any

def encode_fetch(
    version: int,
    asks: Iterable[tuple[Any, ...]],
    forgotten: Iterable[tuple[Any, ...]] = (),
    *,
    client_id: bytes = b"",
    rack: bytes = b"",
    isolation_level: int = 0,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    max_bytes: int = 52428800,
    max_partition_bytes: int = 1048576,
    session_id: int = 0,
    session_epoch: int = -1,
    replica_id: int = -1,
    replica_epoch: int = -1,
) -> bytes: ...
