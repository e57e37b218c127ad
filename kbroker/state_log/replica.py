"""What a state machine is written to: the leader's replica of one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from typing_extensions import Buffer

Committed: TypeAlias = Callable[[ErrorCode, int], None]
"""Told once how an append ended: the error, and the base offset that the batch got (-1 with an error)."""


class Replica(Protocol):
    """A partition as its leader sees it. Any thread."""

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leadership that holds now."""
        ...

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last record."""
        ...

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one that holds `offset` on, at least one; empty at the end."""
        ...

    def append(self, batch: bytes, leader_epoch: int, committed: Committed) -> None:
        """Appends one batch, as acks=all does. `committed` is called when it is as durable as that promises, perhaps
        before this returns; with NOT_LEADER_OR_FOLLOWER when `leader_epoch` is over."""
        ...
