"""The leader's replica of a partition: its log, and a wait if the flush policy or followers ask for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker._core.log.partition_state import AppendResult
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.replication.acks import Committed, ReplicationWaits
from kbroker.storage.log import Log

if TYPE_CHECKING:
    from kbroker.replication.lead_checks import LeadChecks

NO_GUARD = 0
LEADING = ("alone", "leader")
"""The roles in which this broker leads a partition."""


class LocalReplica:
    """A log for the records of a state machine; a `state_log.replica.Replica`. May be used by any thread.

    `timeout_ms`: how long an append waits for the partition's followers, if it has any. `lead_checks` is None for a
    broker that is alone.
    """

    def __init__(
        self, log: Log, waits: ReplicationWaits, timeout_ms: int = 5_000, lead_checks: LeadChecks | None = None
    ):
        self.log = log
        self._lead_checks = lead_checks
        self._waits = waits
        self._timeout_ms = timeout_ms

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def led_since(self) -> int:
        return self.log.state.led_since

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        return self.log.read(offset, max_bytes, to_log_end=True)

    def verify(self, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        return self.log.verify(producer_id, producer_epoch, adds=adds)

    def when_committed(self, leader_epoch: int, committed: Committed) -> None:
        """Call `committed` before this returns, or by the thread of `ReplicationWaits` when the followers have all."""
        state = self.log.state
        end_offset = self.log.log_end_offset
        if not state.led_since <= leader_epoch <= self.log.leader_epoch or state.role not in LEADING:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        elif state.high_watermark >= end_offset:
            committed(ErrorCode.NONE, end_offset)
        else:
            awaited = AppendResult(end_offset, end_offset - 1, -1, -1, False, True, state.led_since)
            self._waits.add(self.log, awaited, self._timeout_ms, committed)

    def confirm_lead(self, confirmed: Callable[[ErrorCode], None]) -> None:
        """Call `confirmed` before this returns if the broker is alone, else as `LeadChecks.check` does."""
        if self._lead_checks is None:
            confirmed(ErrorCode.NONE)
        else:
            self._lead_checks.check(self.log.topic_partition, confirmed)

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = NO_GUARD) -> None:
        """Append a batch. `committed` is called before this returns, or later by the thread of `ReplicationWaits`."""
        try:
            appended = self.log.append(batch, wait=False, as_coordinator=True, guard=guard, leader_epoch=leader_epoch)
        except KbrokerError as error:
            committed(error.code, -1)
            return
        self._waits.add(self.log, appended, self._timeout_ms, committed)
