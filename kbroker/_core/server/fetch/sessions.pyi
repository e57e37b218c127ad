from collections.abc import Callable

from kbroker._core.server.peer import Connection

class FetchSessions:
    def __init__(
        self,
        slots: int = 1000,
        min_eviction_ms: int = 120_000,
        fetch_max_bytes: int = 57_671_680,
        endpoint_of: Callable[[Connection], tuple[int, str, int, str | None]] | None = None,
    ) -> None: ...
    def counts(self) -> tuple[int, int, int]: ...
    @property
    def longest_search(self) -> int: ...
    def set_clock_ms(self, now_ms: int) -> None: ...
