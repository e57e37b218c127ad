"""Waits for what this broker itself has appended: until it is replicated and flushed.

Coordinators append state records with acks=all, and go on when the wait is over. The compiled core ends a wait where
its reason happens (a follower's fetch, a flush, a change of the role) and posts it; `step` calls who waited.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from kbroker._core.log.commit_waits import CommitWait, CommitWaits
from kbroker._core.log.partition_state import AppendResult
from kbroker.clock import Clock, SystemClock
from kbroker.errors import ErrorCode
from kbroker.storage.log import Log

LOG = logging.getLogger(__name__)

Committed = Callable[[ErrorCode, int], None]
Reached = Callable[[ErrorCode], None]


class _Append(NamedTuple):
    """Who waits for an append, and where it is."""

    committed: Committed
    base_offset: int
    must_replicate: bool


class ReplicationWaits:
    """The waits of one broker. Any thread begins one; the thread that runs `step`, or `run`, ends them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._waits = CommitWaits()
        self._lock = threading.Lock()
        self._deadlines: list[tuple[float, int, CommitWait]] = []
        """A heap; the number keeps two waits of one deadline from being compared."""
        self._numbers = itertools.count()
        self._under_way: set[CommitWait] = set()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    # --- waiting

    def add(self, log: Log, appended: AppendResult, timeout_ms: int | None, committed: Committed) -> None:
        """Call `committed(error, base offset)` once the batch is replicated and flushed, as far as it must be.

        It is called before this returns if the batch must be neither; else by `step`. Errors: NOT_LEADER_OR_FOLLOWER if
        this broker stops leading; NOT_ENOUGH_REPLICAS_AFTER_APPEND if the ISR has shrunk below min.insync.replicas;
        REQUEST_TIMED_OUT after `timeout_ms` (None: no limit); KAFKA_STORAGE_ERROR. With an error the offset is -1, and
        the record may be committed all the same.
        """
        if not (appended.must_flush or appended.must_replicate):
            committed(ErrorCode.NONE, appended.base_offset)
            return
        with self._lock:
            wait = self._waits.await_commit(
                log.state, appended, _Append(committed, appended.base_offset, appended.must_replicate)
            )
            self._note(wait, timeout_ms)

    def await_low_watermark(self, log: Log, offset: int, timeout_ms: int, reached: Reached) -> None:
        """Call `reached(error)` once the logs of all live replicas begin at `offset` or later. Called by `step`."""
        with self._lock:
            wait = self._waits.await_low_watermark(log.state, offset, reached)
            self._note(wait, timeout_ms)

    def _note(self, wait: CommitWait, timeout_ms: int | None) -> None:
        self._under_way.add(wait)
        if timeout_ms is not None:
            deadline = self._clock.monotonic() + max(timeout_ms, 0) / 1000
            is_earliest = not self._deadlines or deadline < self._deadlines[0][0]
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), wait))
            if is_earliest:
                self._waits.wake()
        if self._is_stopping:
            self._stop_waiting(wait)

    # --- ending waits

    def step(self, timeout_ms: int = 0) -> int:
        """Wait up to `timeout_ms` (-1: no limit) for something to end, and call who has waited for it.

        Returns how many waits have ended. A simulated broker calls this itself.
        """
        self._waits.wait(self._until_next(timeout_ms))
        self._give_up_late()
        ended = self._waits.take()
        with self._lock:
            self._under_way.difference_update(ended)
        for wait in ended:
            self._tell(wait)
        return len(ended)

    def _until_next(self, timeout_ms: int) -> int:
        with self._lock:
            if not self._deadlines:
                return timeout_ms
            left_ms = max(0, int((self._deadlines[0][0] - self._clock.monotonic()) * 1000) + 1)
        return left_ms if timeout_ms < 0 else min(left_ms, timeout_ms)

    def _give_up_late(self) -> None:
        now = self._clock.monotonic()
        late = []
        with self._lock:
            # Most waits have ended long before their deadline: those are dropped here when they come to the front.
            while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2] not in self._under_way):
                late.append(heapq.heappop(self._deadlines)[2])
        for wait in late:
            wait.give_up(ErrorCode.REQUEST_TIMED_OUT)

    @staticmethod
    def _tell(wait: CommitWait) -> None:
        error = ErrorCode(wait.error)
        try:
            if isinstance(wait.token, _Append):
                wait.token.committed(error, -1 if error else wait.token.base_offset)
            else:
                wait.token(error)
        except Exception:
            LOG.exception("after a wait for replicas")

    # --- a thread of its own

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="replication-waits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the waits for replicas with NOT_LEADER_OR_FOLLOWER, and those for a flush by it. Then end the thread."""
        with self._lock:
            self._is_stopping = True
            for wait in self._under_way:
                self._stop_waiting(wait)
        self._waits.wake()
        if self._thread is not None:
            self._thread.join()

    @staticmethod
    def _stop_waiting(wait: CommitWait) -> None:
        if not isinstance(wait.token, _Append) or wait.token.must_replicate:
            wait.give_up(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _run(self) -> None:
        while not (self._is_stopping and not self._under_way):
            self.step(-1)
