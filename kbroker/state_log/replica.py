"""What a state machine is written to: the leader's replica of one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from typing_extensions import Buffer

Committed: TypeAlias = Callable[[ErrorCode, int], None]
"""Told once how an append ended: the error, and the base offset that the batch got (-1 with an error)."""


NO_GUARD = 0


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

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = NO_GUARD) -> None:
        """Appends one batch, as acks=all does. `committed` is called when it is as durable as that promises, perhaps
        before this returns; with NOT_LEADER_OR_FOLLOWER when `leader_epoch` is over. `guard`: of `verify`, for a first
        batch of a transaction; with INVALID_TXN_STATE when it needs one and has none that holds."""
        ...

    def verify(self, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        """To be called before a transaction's coordinator is asked whether it is to begin here, or with `adds` to let
        it begin here (KIP-890).

        Returns a guard, which the next marker of the producer breaks; NO_GUARD: nobody has to be asked. Raises
        KbrokerError when a batch of the producer would be refused whatever the coordinator says.
        """
        ...
