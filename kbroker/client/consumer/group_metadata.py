"""Who a consumer is in its group and how far it has come, as it and transactional producers tell the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset to go on at, a text of the user's, the leader epoch of the record before."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
