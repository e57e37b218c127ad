"""An obvious model of what a partition remembers of idempotent producers (KIP-98, KIP-360; ProducerAppendInfo)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.errors import ErrorCode

WRAP = 1 << 31


@dataclass
class ModelProducer:
    epoch: int
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(first sequence, last sequence, base offset, last offset, timestamp), the newest five"""
    last_timestamp: int = -1


class ProducerModel:
    def __init__(self) -> None:
        self.producers: dict[int, ModelProducer] = {}

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, count: int
    ) -> tuple[int, tuple[int, int, int] | None]:
        producer = self.producers.get(producer_id)
        if producer is None:
            return ErrorCode.NONE, None
        last_sequence = (base_sequence + count - 1) % WRAP
        if epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if epoch > producer.epoch:
            return (ErrorCode.NONE if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), None
        for first, last, base_offset, last_offset, timestamp in producer.batches:
            if (first, last) == (base_sequence, last_sequence):
                return ErrorCode.NONE, (base_offset, last_offset, timestamp)
        expected = (producer.batches[-1][1] + 1) % WRAP if producer.batches else 0
        return (ErrorCode.NONE if base_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), None

    def remember(
        self, producer_id: int, epoch: int, base_sequence: int, count: int, base_offset: int, timestamp: int
    ) -> None:
        producer = self.producers.setdefault(producer_id, ModelProducer(epoch))
        if producer.epoch != epoch:
            producer.epoch, producer.batches = epoch, []
        last_sequence = (base_sequence + count - 1) % WRAP
        entry = (base_sequence, last_sequence, base_offset, base_offset + count - 1, timestamp)
        producer.batches = [*producer.batches, entry][-5:]
        producer.last_timestamp = timestamp

    def expire(self, oldest_timestamp: int) -> None:
        self.producers = {
            at: producer for at, producer in self.producers.items() if producer.last_timestamp >= oldest_timestamp
        }
