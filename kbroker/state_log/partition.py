"""One partition that holds a state machine, from the day this broker leads it until it does not."""

from __future__ import annotations

import logging
import threading
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
    """Whose transaction a record belongs to."""

    producer_id: int
    epoch: int


NO_PRODUCER = Producer(-1, -1)


class Phase(Enum):
    """Where a partition's state machine stands."""

    LOADING = "loading"
    ACTIVE = "active"
    ENDED = "ended"


class StatePartition:
    """Replays a partition's records, then appends to it, both under the leader epoch it was made with.

    Appends of one partition take the lock that the caller guards the state with, so that records are in the order of
    the changes they describe; this class needs no lock of its own.
    """

    def __init__(self, name: TopicPartition, replica: Replica, clock: Clock, codec: int = 0):
        self.name = name
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.phase = Phase.LOADING
        self.active = threading.Event()
        """Set once the phase is not LOADING any more."""
        self._clock = clock
        self._codec = codec

    def replay(self, take: Callable[[Batch], None], read_bytes: int) -> int:
        """Hands every batch to `take`, oldest first, `read_bytes` read at a time; returns how many records there were.

        Stops early when the partition ends. A batch that is damaged is skipped with a line in the log; where no batch
        can be made out any more the replay ends there with such a line. Raises what the replica's `read` raises.
        """
        offset, count = self.replica.log_start_offset, 0
        while self.phase is Phase.LOADING and offset < self.replica.log_end_offset:
            data = self.replica.read(offset, read_bytes)
            before = offset
            try:
                for batch in read_batches(data, verify=False):
                    if batch.info.last_offset >= offset:
                        count += self._replay_batch(data, batch, take)
                        offset = batch.info.last_offset + 1
            except BadInput as error:
                LOG.error("%s: nothing can be read from offset %d on: %s", self.name, offset, error)
                break
            if offset == before:
                break  # compaction has left nothing between here and the end
        return count

    def _replay_batch(self, data: Buffer, batch: Batch, take: Callable[[Batch], None]) -> int:
        try:
            record_batch.verify(data, batch.info.position)
            take(batch)
        except BadInput as error:
            LOG.error("%s: the batch at offset %d is skipped: %s", self.name, batch.info.base_offset, error)
            return 0
        return batch.info.record_count

    def activate(self) -> None:
        """Everything is replayed: appends are accepted from now on."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.ACTIVE
        self.active.set()

    def end(self) -> None:
        """This broker does not lead the partition any more, or stops."""
        self.phase = Phase.ENDED
        self.active.set()

    def append(
        self,
        records: Iterable[KeyValue],
        committed: Committed,
        producer: Producer = NO_PRODUCER,
        guard: int = NO_GUARD,
    ) -> None:
        """Appends `records` as one batch; `committed` is told, perhaps before this returns.

        With a producer they are of its transaction, and count when its marker says so; `guard` as in `Replica.append`.
        """
        if self.phase is not Phase.ACTIVE:
            committed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        now_ms = self._clock.wall_ms()
        is_transactional = producer is not NO_PRODUCER
        batch = encode_batch(
            ((now_ms, key, value) for key, value in records),
            codec=self._codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            # A batch with a producer has a sequence; of those that coordinators write nobody looks at it, as in Kafka.
            base_sequence=0 if is_transactional else NO_SEQUENCE,
            is_transactional=is_transactional,
        )
        try:
            self.replica.append(batch, self.leader_epoch, committed, guard)
        except KbrokerError as error:
            LOG.warning("%s: %s", self.name, error)
            committed(error.code, -1)
