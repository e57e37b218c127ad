"""Appending to a log and reading from it in Python; the server's hot path calls the compiled functions instead."""

from __future__ import annotations

from kbroker._core.log.partition_state import AS_CLIENT, AS_COORDINATOR, AppendResult, PartitionState
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.storage.log_context import LogContext


class LogRecords:
    """The methods of a log that need only its compiled state. May be called by any thread."""

    state: PartitionState
    context: LogContext

    def append(
        self,
        batch: bytes,
        *,
        wait: bool = True,
        as_coordinator: bool = False,
        guard: int = 0,
        acks: int = -1,
        leader_epoch: int = -1,
    ) -> AppendResult:
        """Append one batch (magic 2) that the broker itself made.

        `wait`: return only once the batch is as durable as the flush policy asks for; one flush serves all who wait.
        Nobody waits here for replicas: that is `replication.acks`.
        `as_coordinator`: a group coordinator writes for a producer, without sequences. `guard`: the return value of
        `verify`, for the first batch of a transaction. `acks` as in Produce: with -1 the in-sync replicas must be
        enough. `leader_epoch`: this broker must have led since that epoch, or an earlier one; -1: any. Raises
        ProtocolError with the code that a producer would get; StorageFailed if the flush fails.
        """
        origin = AS_COORDINATOR if as_coordinator else AS_CLIENT
        code, appended = self.state.append(batch, self.context.clock.wall_ms(), origin, guard, acks, leader_epoch)
        return self._flushed(code, appended, wait)

    def verify(self, producer_id: int, producer_epoch: int, base_sequence: int = -1, *, adds: bool = False) -> int:
        """Begin the verification of a transaction's first batch (KIP-890).

        Call it before asking the transaction coordinator whether the transaction includes this partition or, with
        `adds`, before asking it to add the partition. Returns the guard for `append`; 0 if the transaction is open here
        already, so that nobody has to be asked. `append` refuses the guard (INVALID_TXN_STATE) once a marker of the
        producer was written. Raises ProtocolError.
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
        leader_epoch: int = -1,
    ) -> AppendResult:
        """Append the marker that ends the producer's transaction.

        It is also written if the producer has no open transaction here: it fences older epochs from then on. `bumped`:
        the marker's epoch is newer than that of the transaction it ends, so a transaction of the marker's epoch is the
        next one. `wait` and `leader_epoch` are those of `append`.

        Raises ProtocolError: INVALID_PRODUCER_EPOCH; TRANSACTION_COORDINATOR_FENCED if a newer coordinator has written
        a marker before. Raises StorageFailed if the flush fails.
        """
        code, appended = self.state.append_marker(
            producer_id, producer_epoch, coordinator_epoch, commit, self.context.clock.wall_ms(), bumped, leader_epoch
        )
        return self._flushed(code, appended, wait)

    def _flushed(self, code: int, appended: AppendResult, wait: bool) -> AppendResult:
        """Return what was appended, once it is flushed if it must be and the caller waits for that."""
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name}")
        if appended.must_flush and wait:
            self.state.flush(appended.last_offset + 1)
        return appended

    def read(self, offset: int, max_bytes: int, *, committed: bool = False, to_log_end: bool = False) -> bytes:
        """Read about `max_bytes` bytes of batches, from the batch that holds `offset` on.

        The first batch is whole, even if it is larger; the last may be cut. `committed` reads up to the last stable
        offset only, `to_log_end` what is not replicated yet, too. Raises ProtocolError (OFFSET_OUT_OF_RANGE, ...).
        """
        code, data = self.state.read(offset, max_bytes, True, committed, to_log_end)
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name} at offset {offset}")
        return data

    def aborted_transactions(self, offset: int, max_bytes: int) -> list[tuple[int, int]]:
        """Return `(producer id, first offset)` of the aborted transactions in the range that a consumer reads.

        The range is what a consumer of committed records gets at `offset` with `max_bytes`. Raises ProtocolError.
        """
        code, _, aborted = self.state.aborted(offset, max_bytes)
        if code:
            raise ProtocolError(ErrorCode(code), f"{self}: {ErrorCode(code).name} at offset {offset}")
        return aborted
