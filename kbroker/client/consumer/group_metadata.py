"""Who a consumer is in its group, as a transactional producer tells the broker with the offsets that it commits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """`Consumer.group_metadata()`; with a group_id alone for a consumer that is assigned its partitions (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("a group has a name that is not empty")
