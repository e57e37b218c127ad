from collections.abc import Callable

from kbroker._core.client.consumer.poll import FetchPoll

class FetchEngine(FetchPoll):
    dropped: int
    def __init__(
        self,
        inflate: Callable[[int, memoryview, int], bytes],
        *,
        client_id: str = "",
        rack: str = "",
        read_committed: bool = False,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        max_bytes: int = 52428800,
        max_partition_bytes: int = 1048576,
        queued_max_bytes: int = 67108864,
        check_crcs: bool = True,
        request_timeout_ms: int = 30000,
    ) -> None: ...
