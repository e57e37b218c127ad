"""One partition that holds the records of a state machine, for as long as this broker leads it without a break."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kbroker._core.wire import record_batch
from kbroker.clock import Clock
from kbroker.errors import BadInput, ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.protocol.records import Batch, encode_batch, read_batches
from kbroker.state_log.replica import NO_GUARD, Committed, Replica

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOG = logging.getLogger(__name__)

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""One record. A value of None is a tombstone: compaction drops the key."""


NO_SEQUENCE = -1


class Producer(NamedTuple):
    """The producer of the transaction that a record belongs to."""

    producer_id: int
    epoch: int


NO_PRODUCER = Producer(-1, -1)


class Phase(Enum):
    """The phases in the life of a partition's state machine, in this order."""

    LOADING = "loading"
    ACTIVE = "active"
    ENDED = "ended"


class StatePartition:
    """Replays a partition's records, then appends to it. Fenced when this broker has not led it all the time since.

    The caller appends while it holds the lock that guards the state, so that records are in the order of the changes
    they describe. This class has no lock of its own.
    """

    def __init__(self, name: TopicPartition, replica: Replica, clock: Clock, codec: int = 0):
        self.name = name
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.phase = Phase.LOADING
        self._clock = clock
        self._codec = codec

    def replay(self, apply: Callable[[Batch], None], read_bytes: int) -> int:
        """Hand every batch to `apply`, oldest first, reading `read_bytes` at a time. Returns the number of records.

        Stops early when the partition ends. A damaged batch is skipped with an error in the log. If no further batch
        can be found, the replay ends there, with an error in the log. Raises what the replica's `read` raises.
        """
        offset, count = self.replica.log_start_offset, 0
        while self.phase is Phase.LOADING and offset < self.replica.log_end_offset:
            data = self.replica.read(offset, read_bytes)
            before = offset
            try:
                for batch in read_batches(data, verify=False):
                    if batch.info.last_offset >= offset:
                        count += self._replay_batch(data, batch, apply)
                        offset = batch.info.last_offset + 1
            except BadInput as error:
                LOG.error("%s: nothing can be read from offset %d on: %s", self.name, offset, error)
                break
            if offset == before:
                break  # compaction has removed all batches between here and the end
        return count

    def _replay_batch(self, data: Buffer, batch: Batch, apply: Callable[[Batch], None]) -> int:
        try:
            record_batch.verify(data, batch.info.position)
            apply(batch)
        except BadInput as error:
            LOG.error("%s: the batch at offset %d is skipped: %s", self.name, batch.info.base_offset, error)
            return 0
        return batch.info.record_count

    def lead_on(self, leader_epoch: int) -> None:
        """Note that this broker, which has led the partition all the time, leads it in a newer epoch now.

        The caller holds the lock that guards the state.
        """
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def when_committed(self, committed: Committed) -> None:
        """Call `committed` once, when no leader after this one can lack what is in the log now, or with an error."""
        try:
            self.replica.when_committed(self.leader_epoch, committed)
        except KbrokerError as error:
            LOG.warning("%s: %s", self.name, error)
            committed(error.code, -1)

    def activate(self) -> None:
        """Accept appends from now on: everything is replayed."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.ACTIVE

    def end(self) -> None:
        """Refuse appends from now on: this broker stops, or does not lead the partition any more."""
        self.phase = Phase.ENDED

    def append(
        self,
        records: Iterable[KeyValue],
        committed: Committed,
        producer: Producer = NO_PRODUCER,
        guard: int = NO_GUARD,
    ) -> None:
        """Append `records` as one batch. `committed` is called once with the outcome, perhaps before this returns.

        With a producer the records belong to its transaction, and count once its commit marker is written. `guard` as
        in `Replica.append`.
        """
        if self.phase is not Phase.ACTIVE:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        now_ms = self._clock.wall_ms()
        is_transactional = producer is not NO_PRODUCER
        batch = encode_batch(
            [(now_ms, key, value) for key, value in records],
            codec=self._codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            # A batch with a producer needs a sequence. For batches that coordinators write it is not checked, as in
            # Kafka.
            base_sequence=0 if is_transactional else NO_SEQUENCE,
            is_transactional=is_transactional,
        )
        try:
            self.replica.append(batch, self.leader_epoch, committed, guard)
        except KbrokerError as error:
            LOG.warning("%s: %s", self.name, error)
            committed(error.code, -1)
