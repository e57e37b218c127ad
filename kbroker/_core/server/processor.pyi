from collections.abc import Callable, Iterable, Mapping, Sequence

from typing_extensions import Buffer

from kbroker._core.server.cold_reader import ColdReader
from kbroker._core.server.counters import ApiCounters
from kbroker._core.server.fetch.sessions import FetchSessions
from kbroker._core.log.partition_table import PartitionTable
from kbroker._core.server.peer import Connection
from kbroker._core.server.request import Request
from kbroker.net.transports import Transport

class Processor:
    def __init__(
        self,
        name: str,
        index: int,
        partition_table: PartitionTable,
        fetch_sessions: FetchSessions,
        cold_reader: ColdReader,
        apis: Iterable[tuple[int, int, int, int | None]],
        on_request: Callable[[Request, Processor], bool | None],
        on_close: Callable[[Connection, str], None],
        *,
        inflate: Callable[[int, memoryview, int], Buffer],
        recompress: Callable[[memoryview, Buffer, int, int | None], Buffer],
        convert: Callable[[memoryview, int, int], tuple[bytes, int]],
        down_convert: Callable[[memoryview, int, int, int], Buffer],
        listeners: Sequence[str] = ...,
        transports: Mapping[str, Callable[[], Transport]] | None = None,
        max_request_size: int = ...,
        idle_ms: int = ...,
        max_inflated_size: int = ...,
        max_response_size: int = ...,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    def run(self) -> None: ...
    def adopt(self, fd: int, listener: int = 0, token: int = -1) -> None: ...
    def take_closed(self) -> list[int]: ...
    def resume(self) -> None: ...
    def stop(self, timeout_s: float) -> None: ...
    @property
    def connection_count(self) -> int: ...
    @property
    def idle_share(self) -> float: ...
    @property
    def idle_ns(self) -> int: ...
    @property
    def turns(self) -> int: ...
    @property
    def looked_at(self) -> int: ...
    def count_error(self, api_key: int, code: int) -> None: ...
    def counters(self) -> dict[int, ApiCounters]: ...
