"""Where state is kept: what a coordinator asks of the internal topic that its records are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kbroker.state_log.replica import Replica


class StateTopic(Protocol):
    """`__consumer_offsets` or `__transaction_state` as this broker sees it. Any thread."""

    def ensure(self) -> None:
        """Creates it unless it exists. May block; raises KbrokerError when it cannot be created now."""
        ...

    def partition_count(self) -> int | None:
        """How many partitions it has; None while it does not exist."""
        ...

    def default_partition_count(self) -> int:
        """How many it will have."""
        ...

    def led_partitions(self) -> Iterable[int]:
        """The partitions that this broker leads."""
        ...

    def replica(self, partition_id: int) -> Replica | None:
        """The replica of a partition that this broker leads, else None."""
        ...
