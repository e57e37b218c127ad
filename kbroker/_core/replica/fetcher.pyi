from kbroker._core.base.throttle import Throttle
from kbroker._core.replica.followed import FollowedPartitions

class ReplicaFetcher(FollowedPartitions):
    def __init__(
        self,
        node_id: int,
        leader_id: int,
        *,
        broker_epoch: int = -1,
        client_id: str = "",
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        max_bytes: int = 10485760,
        max_partition_bytes: int = 1048576,
        backoff_ms: int = 1000,
        request_timeout_ms: int = 30000,
        throttle: Throttle | None = None,
    ) -> None: ...
    def set_broker_epoch(self, broker_epoch: int) -> None: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def damaged(self) -> int: ...
