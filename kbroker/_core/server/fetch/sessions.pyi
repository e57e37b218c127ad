from collections.abc import Callable
from typing import Protocol

from kbroker._core.base.throttle import Throttle
from kbroker._core.server.peer import Connection

class _Leader(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int: ...
    @property
    def rack(self) -> str | None: ...

class FetchSessions:
    def __init__(
        self,
        slots: int = 1000,
        min_eviction_ms: int = 120_000,
        fetch_max_bytes: int = 57_671_680,
        leader_of: Callable[[Connection, str | None, bytes | None, int], _Leader | None] | None = None,
        read_replica_of: Callable[[Connection, str, int, str, int], int] | None = None,
        rack: str | None = None,
        throttle: Throttle | None = None,
    ) -> None: ...
    def counts(self) -> tuple[int, int, int]: ...
    @property
    def longest_search(self) -> int: ...
    def set_clock_ms(self, now_ms: int) -> None: ...
