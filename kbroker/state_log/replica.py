"""The leader's replica of one partition, as a state machine uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from typing_extensions import Buffer

Committed: TypeAlias = Callable[[ErrorCode, int], None]
"""Called once with the outcome of an append: the error, and the batch's base offset (-1 with an error)."""


NO_GUARD = 0


class Replica(Protocol):
    """A partition as its leader sees it. May be used by any thread."""

    @property
    def leader_epoch(self) -> int:
        """The partition's leader epoch now."""
        ...

    @property
    def led_since(self) -> int:
        """The leader epoch in which this broker became the leader. It has led without a break since."""
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
        """Return whole batches from the one that holds `offset` on; empty at the end of the log.

        They are at least one batch, else up to `max_bytes`.
        """
        ...

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = NO_GUARD) -> None:
        """Append one batch, as acks=all does.

        `committed` is called when the batch is as durable as acks=all promises, perhaps before this returns. It gets
        NOT_LEADER_OR_FOLLOWER if `leader_epoch` is before `led_since`, or if this broker stops leading before the batch
        is durable. The first batch of a transaction may need a `guard` from `verify` that no marker
        has broken since; if it has none, `committed` gets INVALID_TXN_STATE.

        After NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT or NOT_LEADER_OR_FOLLOWER the batch may be in the log
        all the same.
        """
        ...

    def when_committed(self, leader_epoch: int, committed: Committed) -> None:
        """Call `committed` when all that is in the log now is as durable as acks=all promises.

        It is called once, perhaps before this returns, with the errors of `append` and with the log end offset.
        """
        ...

    def confirm_lead(self, confirmed: Callable[[ErrorCode], None]) -> None:
        """Call `confirmed` once, perhaps before this returns.

        With NONE no other broker had taken the lead over from this one before this call. NOT_LEADER_OR_FOLLOWER:
        another broker leads, or one that may have been elected does not answer.
        """
        ...

    def verify(self, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        """Return a guard for a transaction that is about to begin in this partition.

        To be called before the transaction's coordinator is asked whether the partition is in the transaction, or with
        `adds` to add it (KIP-890). The next marker of the producer breaks the guard. NO_GUARD means that the
        coordinator need not be asked. Raises KbrokerError if a batch of the producer would be refused whatever the
        coordinator says.
        """
        ...
