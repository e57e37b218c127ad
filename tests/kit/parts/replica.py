"""A replica in memory, and an offsets topic made of such replicas: slow, obvious, and failing when told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kbroker._core.wire import record_batch
from kbroker.errors import ErrorCode, StorageFailed
from kbroker.protocol.records import read_batches
from kbroker.state_log.replica import Committed


class MemoryReplica:
    """A replica whose appends commit at once.

    While `hold` is set, `release` commits them or ends them with an error.
    """

    def __init__(self) -> None:
        self.leader_epoch = 0
        self.led_since = 0
        """The epoch in which this broker became the leader. It has led all the time since."""
        self.batches: list[bytes] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.refuse: ErrorCode | None = None
        self.fail_reads = False
        self.hold = False
        self.held: list[tuple[int, Committed]] = []
        self.max_batch_size = 1 << 20
        self.reads = 0
        self.in_transaction: set[int] = set()
        self.guards: dict[int, int] = {}

    def read(self, offset: int, max_bytes: int) -> bytes:
        self.reads += 1
        if self.fail_reads:
            raise StorageFailed("the disk is gone")
        chosen: list[bytes] = []
        for batch in self.batches:
            if record_batch.header(batch).last_offset >= offset and (
                not chosen or sum(map(len, chosen)) + len(batch) <= max_bytes
            ):
                chosen.append(batch)
        return b"".join(chosen)

    def verify(self, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        if producer_id < 0 or producer_id in self.in_transaction:
            return 0
        return self.guards.setdefault(producer_id, len(self.batches) + 1)

    def is_verified(self, batch: bytes, guard: int) -> bool:
        """Whether the batch is in no transaction, in an open one, or in one that was verified and may begin."""
        info = record_batch.header(batch)
        known = info.producer_id in self.in_transaction
        return not info.is_transactional or known or (guard != 0 and self.guards.get(info.producer_id) == guard)

    def append(self, batch: bytes, leader_epoch: int, committed: Committed, guard: int = 0) -> None:
        if not self.led_since <= leader_epoch <= self.leader_epoch:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        elif self.refuse is not None:
            committed(self.refuse, -1)
        elif not self.is_verified(batch, guard):
            committed(ErrorCode.INVALID_TXN_STATE, -1)
        elif len(batch) > self.max_batch_size:
            committed(ErrorCode.MESSAGE_TOO_LARGE, -1)
        else:
            base_offset = self.put(batch)
            if self.hold:
                self.held.append((base_offset, committed))
            else:
                committed(ErrorCode.NONE, base_offset)

    def when_committed(self, leader_epoch: int, committed: Committed) -> None:
        if not self.led_since <= leader_epoch <= self.leader_epoch:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            committed(ErrorCode.NONE, self.log_end_offset)

    def confirm_lead(self, confirmed: Callable[[ErrorCode], None]) -> None:
        confirmed(ErrorCode.NONE)

    def lead_again(self, leader_epoch: int) -> None:
        """Become the leader in that epoch, after another broker has led the partition."""
        self.leader_epoch = self.led_since = leader_epoch

    def put(self, batch: bytes) -> int:
        """Append a batch as another writer would, and return its base offset."""
        info = record_batch.header(batch)
        if info.is_transactional:
            self.guards.pop(info.producer_id, None)
            (self.in_transaction.discard if info.is_control else self.in_transaction.add)(info.producer_id)
        stamped = bytearray(batch)
        base_offset = self.log_end_offset
        record_batch.stamp(stamped, base_offset, self.leader_epoch)
        self.batches.append(bytes(stamped))
        self.log_end_offset = record_batch.header(stamped).last_offset + 1
        return base_offset

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        held, self.held = self.held, []
        for base_offset, committed in held:
            committed(error, -1 if error else base_offset)

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """The keys and values of all records."""
        return [(r.key, r.value) for batch in self.batches for b in read_batches(batch) for r in b.records()]


class MemoryOffsetsTopic:
    """`__consumer_offsets`, or `__transaction_state`, in memory (`state_log.topic.StateTopic`)."""

    def __init__(self, partitions: int = 4, exists: bool = True):
        self.exists = exists
        self.cannot_be_created = False
        self.replicas = {partition_id: MemoryReplica() for partition_id in range(partitions)}

    def ensure(self) -> None:
        if self.cannot_be_created:
            raise StorageFailed("no space")
        self.exists = True

    def partition_count(self) -> int | None:
        return len(self.replicas) if self.exists else None

    def default_partition_count(self) -> int:
        return len(self.replicas)

    def led_partitions(self) -> Iterable[int]:
        return list(self.replicas) if self.exists else []

    def replica(self, partition_id: int) -> MemoryReplica | None:
        return self.replicas.get(partition_id) if self.exists else None
