"""Compaction of batches, slow and obvious, by the rules of Kafka 3.9: what `_core.segment_copy` is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kbroker.protocol.compression import deflate, inflate
from tests.kit.models import record_batch as record_batch_model
from tests.kit.models.record_batch import Batch, Reader, Record

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40
LIMIT = 1 << 20
ABORT, COMMIT = 0, 1


def encode(batch: Batch) -> bytes:
    """Encode a batch with its codec. If it has no max timestamp, that of its records is taken."""
    records = record_batch_model.encode_records(batch.records)
    payload = deflate(batch.attributes & CODEC, records) if batch.attributes & CODEC and batch.records else records
    return record_batch_model.encode_batch(replace(batch, payload=payload))


def decode(log: bytes) -> list[Batch]:
    found = []
    while log:
        batch = record_batch_model.verify(log)
        assert batch.payload is not None
        log = log[61 + len(batch.payload) :]
        count = batch.record_count or 0
        plain = inflate(batch.attributes & CODEC, batch.payload, LIMIT) if count else batch.payload
        reader = Reader(plain)
        records = tuple(record_batch_model.decode_record(reader) for _ in range(count))
        assert reader.at == len(plain)
        found.append(replace(batch, records=records, payload=None))
    return found


def last_offset(batch: Batch) -> int:
    return batch.base_offset + (len(batch.records) - 1 if batch.last_offset_delta is None else batch.last_offset_delta)


def timestamp(batch: Batch, record: Record) -> int:
    if batch.attributes & LOG_APPEND_TIME:
        assert batch.max_timestamp is not None
        return batch.max_timestamp
    return batch.base_timestamp + record.timestamp_delta


@dataclass
class Transactions:
    """Finds out which batches belong to an aborted transaction, and which markers end no transaction."""

    aborted: list[tuple[int, int]]  # producer id, first offset
    open_aborted: dict[int, bool] = field(default_factory=dict)  # whether data was met
    open_committed: set[int] = field(default_factory=set)

    def discardable(self, batch: Batch) -> bool:
        for producer_id, first_offset in sorted(self.aborted, key=lambda entry: entry[1]):
            if first_offset <= last_offset(batch):
                self.open_aborted.setdefault(producer_id, False)
                self.aborted.remove((producer_id, first_offset))
        producer = batch.producer_id
        if batch.attributes & CONTROL:
            if not batch.records:
                return True
            key = batch.records[0].key
            assert key is not None
            kind = int.from_bytes(key[2:4], "big")
            if kind == ABORT:
                return not self.open_aborted.pop(producer, False)
            if kind == COMMIT:
                was_open = producer in self.open_committed
                self.open_committed.discard(producer)
                return not was_open
            return False
        if batch.attributes & TRANSACTIONAL:
            if producer in self.open_aborted:
                self.open_aborted[producer] = True
                return True
            self.open_committed.add(producer)
        return False


def newest_offsets(
    batches: Iterable[Batch], start_offset: int, capacity: int, aborted: Iterable[tuple[int, int]] = ()
) -> tuple[dict[bytes, int], int]:
    """Return the newest offset of each key from `start_offset` on, for `capacity` keys at most; and the last offset."""
    newest: dict[bytes, int] = {}
    latest = -1
    transactions = Transactions(list(aborted))
    for batch in batches:
        if not transactions.discardable(batch) and not batch.attributes & CONTROL:
            for record in batch.records:
                offset = batch.base_offset + record.offset_delta
                if record.key is None or offset < start_offset:
                    continue
                if record.key not in newest and len(newest) == capacity:
                    return newest, max(latest, offset - 1)
                newest[record.key] = offset
        if last_offset(batch) >= start_offset:
            latest = last_offset(batch)
    return newest, latest


def clean(
    batches: Iterable[Batch],
    newest: dict[bytes, int],
    latest: int,
    now: int,
    retention: int,
    producers: dict[int, tuple[int, int]] | None = None,
    aborted: Iterable[tuple[int, int]] = (),
) -> list[Batch]:
    """Return the batches that compaction leaves.

    `producers` are the active ones: id -> (last data offset or -1, epoch).
    """
    left = []
    transactions = Transactions(list(aborted))
    for batch in batches:
        is_control = bool(batch.attributes & CONTROL)
        horizon = batch.base_timestamp if batch.attributes & HORIZON else None
        discardable = transactions.discardable(batch)
        if is_control:
            discarded = discardable and horizon is not None and horizon <= now
        else:
            discarded = discardable

        def stays(batch: Batch, record: Record, horizon: int | None = horizon) -> bool:
            offset = batch.base_offset + record.offset_delta
            if offset > latest:
                return True
            if record.key is None or offset < newest.get(record.key, -1):
                return False
            return record.value is not None or horizon is None or now < horizon

        kept = () if discarded else tuple(r for r in batch.records if is_control or stays(batch, r))
        if kept:
            wants_horizon = any(record.value is None for record in kept) or (is_control and discardable)
            new_horizon = now + retention if wants_horizon and horizon is None else horizon
            if kept == batch.records and new_horizon == horizon:
                left.append(batch)
                continue
            times = [timestamp(batch, record) for record in kept]
            base = times[0] if new_horizon is None else new_horizon
            left.append(
                replace(
                    batch,
                    records=tuple(
                        replace(record, timestamp_delta=time - base) for record, time in zip(kept, times, strict=True)
                    ),
                    attributes=batch.attributes & ~HORIZON | (0 if new_horizon is None else HORIZON),
                    base_timestamp=base,
                    max_timestamp=batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else max(times),
                    last_offset_delta=last_offset(batch) - batch.base_offset,
                    record_count=len(kept),
                )
            )
            continue
        data_offset, epoch = (producers or {}).get(batch.producer_id, (None, None))
        if batch.producer_id < 0 or data_offset is None:
            continue
        is_last = (
            last_offset(batch) == data_offset if data_offset >= 0 else is_control and epoch == batch.producer_epoch
        )
        if is_last:
            left.append(
                replace(
                    batch,
                    records=(),
                    attributes=batch.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
                    base_timestamp=-1,
                    last_offset_delta=last_offset(batch) - batch.base_offset,
                    record_count=0,
                )
            )
    return left
