"""Appending to a log and reading from it in Python; the server's hot path calls the compiled functions instead."""

from __future__ import annotations

from kbroker._core.log.partition_state import AS_CLIENT, AS_COORDINATOR, PartitionState
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.storage.log_context import AppendResult, LogContext


class LogRecords:
    """The part of a log that needs nothing but the compiled one. Any thread."""

    state: PartitionState
    context: LogContext

    def append(self, batch: bytes, *, wait: bool = True, as_coordinator: bool = False, guard: int = 0) -> AppendResult:
        """Append one batch (magic 2) of our own making.

        `wait`: it returns when the batch is as durable as the flush policy asks for; one flush serves all who wait.
        `as_coordinator`: a coordinator of groups writes for a producer, without sequences. `guard`: of `verify`, for
        the first batch of a transaction. Raises ProtocolError with the code that a producer would get, StorageFailed
        when the flush fails.
        """
        origin = AS_COORDINATOR if as_coordinator else AS_CLIENT
        return self._appended(self.state.append(batch, self.context.clock.wall_ms(), origin, guard), wait)

    def verify(self, producer_id: int, producer_epoch: int, base_sequence: int = -1, *, adds: bool = False) -> int:
        """To be called before a transaction's coordinator is asked whether it knows that it begins here, or with `adds`
        to let it begin here (KIP-890).

        Returns the guard for `append`, which refuses it (INVALID_TXN_STATE) once a marker of the producer has come; 0:
        the transaction is open already, nobody has to be asked. Raises ProtocolError.
        """
        code, guard = self.state.verify(producer_id, producer_epoch, base_sequence, adds)
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name}")
        return guard

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        bumped: bool = False,
        wait: bool = True,
    ) -> AppendResult:
        """End the producer's transaction. Written also where there is none of it: from here on it fences older epochs.

        `bumped`: its epoch is newer than that of what it ends, so that a transaction of this epoch is the next one.

        Raises ProtocolError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED (a newer coordinator has written
        before); StorageFailed.
        """
        return self._appended(
            self.state.append_marker(
                producer_id, producer_epoch, coordinator_epoch, commit, self.context.clock.wall_ms(), bumped
            ),
            wait,
        )

    def _appended(self, told: tuple[int, int, int, int, int, bool], wait: bool) -> AppendResult:
        code, base_offset, last_offset, log_append_time, log_start_offset, must_wait = told
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name}")
        if must_wait and wait:
            self.state.flush(last_offset + 1)
        return AppendResult(base_offset, last_offset, log_append_time, log_start_offset, must_wait)

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> bytes:
        """Batches from the one that holds `offset` on, `max_bytes` of them: the first is whole, the last may be cut.

        Raises ProtocolError (OFFSET_OUT_OF_RANGE, ...).
        """
        code, data = self.state.read(offset, max_bytes, True, committed)
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name} at offset {offset}")
        return data

    def aborted_transactions(self, offset: int, max_bytes: int) -> list[tuple[int, int]]:
        """Producer id and first offset of those that overlap what a consumer of committed records reads there."""
        code, _, aborted = self.state.aborted(offset, max_bytes)
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name} at offset {offset}")
        return aborted
