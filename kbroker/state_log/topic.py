"""The internal topic of a coordinator's records, as the coordinator uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kbroker.state_log.replica import Replica


class StateTopic(Protocol):
    """`__consumer_offsets` or `__transaction_state` as this broker sees it. May be used by any thread."""

    def ensure(self) -> None:
        """Create the topic unless it exists. May block. Raises KbrokerError if it cannot be created now.

        With LEADER_NOT_AVAILABLE it is just being created, and the caller is to ask again.
        """
        ...

    def partition_count(self) -> int | None:
        """The number of partitions; None while the topic does not exist."""
        ...

    def default_partition_count(self) -> int:
        """The number of partitions that the topic will get when it is created."""
        ...

    def led_partitions(self) -> Iterable[int]:
        """The partitions that this broker leads."""
        ...

    def replica(self, partition_id: int) -> Replica | None:
        """The replica of a partition that this broker leads, else None."""
        ...
