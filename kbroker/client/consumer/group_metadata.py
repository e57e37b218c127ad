"""A consumer's identity in its group, and committed positions, as consumers and transactional producers send them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A member's identity in its group, as `Consumer.group_metadata()` returns it (KIP-447).

    A consumer whose partitions are assigned by hand needs `group_id` alone. Raises ValueError when that is empty.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("a group has a name that is not empty")


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset of the next record to read, a text of the user's choice, and the leader epoch of
    the record before that offset (-1: not known)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
