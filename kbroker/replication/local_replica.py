"""The leader's replica of a partition without followers: its log, and a flush if the flush policy asks for one."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.storage.log import Log

LOG = logging.getLogger(__name__)

Committed = Callable[[ErrorCode, int], None]
NO_GUARD = 0


class LocalReplica:
    """A log for the records of a state machine; a `state_log.replica.Replica`. May be used by any thread."""

    def __init__(self, log: Log, flush_waits: FlushWaits):
        self.log = log
        self._flush_waits = flush_waits

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def led_since(self) -> int:
        return self.log.leader_epoch

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        return self.log.read(offset, max_bytes)

    def verify(self, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        return self.log.verify(producer_id, producer_epoch, adds=adds)

    def when_committed(self, leader_epoch: int, committed: Committed) -> None:
        """Call `committed` at once: there are no followers."""
        end_offset = self.log.log_end_offset
        is_current = leader_epoch == self.log.leader_epoch
        committed(ErrorCode.NONE if is_current else ErrorCode.NOT_LEADER_OR_FOLLOWER, end_offset if is_current else -1)

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = NO_GUARD) -> None:
        """Append a batch. `committed` is called before this returns, or after a flush by the thread of `FlushWaits`."""
        if leader_epoch != self.log.leader_epoch:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        try:
            appended = self.log.append(batch, wait=False, as_coordinator=True, guard=guard)
        except KbrokerError as error:
            committed(error.code, -1)
            return
        if appended.must_flush:
            self._flush_waits.add(self.log, appended.base_offset, committed)
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

    def add(self, log: Log, base_offset: int, committed: Committed) -> None:
        self._waiting.put((log, base_offset, committed))

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
