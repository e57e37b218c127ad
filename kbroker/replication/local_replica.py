"""The leader's replica of a partition: its log, and a wait if the flush policy or followers ask for one."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from kbroker._core.log.partition_state import AppendResult
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.storage.log import Log

LOG = logging.getLogger(__name__)

Committed = Callable[[ErrorCode, int], None]
NO_GUARD = 0
LEADING = ("alone", "leader")
"""The roles in which this broker leads a partition."""


class LocalReplica:
    """A log for the records of a state machine; a `state_log.replica.Replica`. May be used by any thread.

    `timeout_ms`: how long an append waits for the partition's followers, if it has any.
    """

    def __init__(self, log: Log, flush_waits: FlushWaits, timeout_ms: int = 5_000):
        self.log = log
        self._flush_waits = flush_waits
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
        """Call `committed` before this returns, or by the thread of `FlushWaits` when the followers have all."""
        state = self.log.state
        end_offset = self.log.log_end_offset
        if not state.led_since <= leader_epoch <= self.log.leader_epoch or state.role not in LEADING:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        elif state.high_watermark >= end_offset:
            committed(ErrorCode.NONE, end_offset)
        else:
            awaited = AppendResult(end_offset, end_offset - 1, -1, -1, False, True, state.led_since)
            self._flush_waits.add(self.log, awaited, self._timeout_ms, committed)

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = NO_GUARD) -> None:
        """Append a batch. `committed` is called before this returns, or later by the thread of `FlushWaits`."""
        try:
            appended = self.log.append(batch, wait=False, as_coordinator=True, guard=guard, leader_epoch=leader_epoch)
        except KbrokerError as error:
            committed(error.code, -1)
            return
        if appended.must_flush or appended.must_replicate:
            self._flush_waits.add(self.log, appended, self._timeout_ms, committed)
        else:
            committed(ErrorCode.NONE, appended.base_offset)


class FlushWaits:
    """One thread that flushes logs for appends that wait: one flush for all that wait for the same log."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Log, int, Committed] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="state-flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Flush for all appends that wait, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def add(self, log: Log, appended: AppendResult, timeout_ms: int, committed: Committed) -> None:
        """Call `committed` when what was appended is flushed. Nothing waits longer than a flush takes."""
        self._waiting.put((log, appended.base_offset, committed))

    def _run(self) -> None:
        stopping = False
        while not stopping:
            taken = [self._waiting.get()]
            while not self._waiting.empty():
                taken.append(self._waiting.get())
            errors: dict[Log, ErrorCode] = {}
            for entry in taken:
                if entry is None:
                    stopping = True
                    continue
                log, base_offset, committed = entry
                if log not in errors:
                    errors[log] = self._flush(log)
                error = errors[log]
                committed(error, -1 if error else base_offset)

    def _flush(self, log: Log) -> ErrorCode:
        try:
            log.flush()
        except KbrokerError as error:
            LOG.error("%s: a state record cannot be flushed: %s", log, error)
            return error.code
        return ErrorCode.NONE
