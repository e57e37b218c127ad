from typing import NamedTuple

from kbroker._core.client.pump import Engine
from kbroker._core.log.partition_state import PartitionState

KINDS: tuple[str, ...]

class ReplicaTrouble(NamedTuple):
    topic: str
    partition_id: int
    kind: str
    leader_epoch: int
    error: int
    offset: int
    diverging_epoch: int
    diverging_end: int
    log_start_offset: int

class FollowedLag(NamedTuple):
    topic: str
    partition_id: int
    offset: int
    lag: int
    is_stopped: bool

class FollowedPartitions(Engine):
    def follow(self, state: PartitionState, topic_id: bytes, leader_epoch: int) -> None: ...
    def forget(self, state: PartitionState) -> None: ...
    def resume(self, state: PartitionState, leader_epoch: int, after_ms: int = 0) -> None: ...
    def take_news(self) -> list[ReplicaTrouble]: ...
    def lag(self) -> list[FollowedLag]: ...
    def awaken(self) -> None: ...
