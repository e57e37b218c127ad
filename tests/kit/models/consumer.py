"""A slow and obvious model of what a consumer sees of a log: a list of batches, and whether each was aborted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker._core.wire.records import RecordsBuilder
from kbroker.protocol.compression import Codec, deflate
from kbroker.protocol.records import ControlType, Record
from tests.kit.wire.batches import TRANSACTIONAL, changed, encode_control_batch


@dataclass(frozen=True)
class LogBatch:
    """A batch of records at `base_offset + delta`.

    It covers the offsets up to `last_offset`, also those compacted away.
    """

    base_offset: int
    last_offset: int
    records: tuple[Record, ...] = ()
    codec: int = Codec.NONE
    producer_id: int = -1
    marker: ControlType | None = None
    aborted: bool = False  # what becomes of its transaction
    magic: int = 2  # 0 and 1: messages, in one that is compressed if there is a codec

    def encode(self) -> bytes:
        if self.magic < 2:
            return self.encode_messages()
        if self.marker is not None:
            return encode_control_batch(
                self.marker,
                5,
                producer_id=self.producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                base_offset=self.base_offset,
            )
        builder = RecordsBuilder()
        for record in self.records:
            builder.append(record.timestamp, record.key, record.value, record.headers, record.offset - self.base_offset)
        payload = deflate(self.codec, builder.records()) if self.codec else None
        batch = builder.build(
            payload,
            self.codec | (TRANSACTIONAL if self.producer_id >= 0 else 0),
            self.base_offset,
            0,
            self.producer_id,
            0,
            -1 if self.producer_id < 0 else 0,
        )
        return with_last_offset(batch, self.last_offset - self.base_offset)

    def encode_messages(self) -> bytes:
        builder = MessageSetBuilder(self.magic, compressed=self.codec != Codec.NONE)
        for record in self.records:
            builder.append(record.offset, record.timestamp, record.key, record.value)
        messages = builder.messages()
        return builder.wrap(self.codec, deflate(self.codec, messages, magic=self.magic)) if self.codec else messages


def with_last_offset(batch: bytes, delta: int) -> bytes:
    return changed(batch, 23, delta.to_bytes(4, signed=True))


@dataclass
class Log:
    """A partition's log and the transactions that were aborted in it."""

    batches: list[LogBatch] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)  # producer id, first offset; by first offset

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def end_of_transaction(self, producer_id: int, first_offset: int) -> int:
        """The offset of the marker that ends this transaction."""
        return next(
            batch.base_offset
            for batch in self.batches
            if batch.marker is not None and batch.producer_id == producer_id and batch.base_offset > first_offset
        )

    def encode(self) -> bytes:
        return b"".join(batch.encode() for batch in self.batches)

    def visible(self, position: int, *, committed: bool, end: int = 2**63 - 1) -> list[Record]:
        """The records with offsets `position` to `end` - 1 that a consumer gets."""
        return [
            record
            for batch in self.batches
            if not (committed and batch.aborted)
            for record in batch.records
            if position <= record.offset < end
        ]


optional_bytes = st.none() | st.binary(max_size=30)
contents = st.tuples(
    st.integers(0, 2**44),
    optional_bytes,
    optional_bytes,
    st.lists(st.tuples(st.text(max_size=4), optional_bytes), max_size=2),
)


@st.composite
def logs(
    draw: st.DrawFn,
    max_batches: int = 8,
    codecs: tuple[int, ...] = tuple(Codec),
    magics: tuple[int, ...] = (2, 2, 1, 0),
) -> Log:
    """Draw a log of plain batches, overlapping transactions of three producers and older messages, some compacted."""
    log = Log()
    open_batches: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(0, max_batches))):
        base = log.end_offset
        producer_id = draw(st.sampled_from([-1, -1, 7, 8, 1 << 40]))
        if producer_id in open_batches and draw(st.booleans()):
            end_transaction(log, open_batches, producer_id, draw(st.booleans()))
            continue
        count = draw(st.integers(1, 6))
        kept = sorted(draw(st.sets(st.integers(0, count - 1)))) if draw(st.booleans()) else list(range(count))
        records = tuple(Record(base + delta, *draw(contents)) for delta in kept)
        codec = draw(st.sampled_from(codecs)) if records else Codec.NONE
        magic = draw(st.sampled_from(magics))
        if records and magic < 2:
            plain = tuple(Record(one.offset, one.timestamp if magic else -1, one.key, one.value) for one in records)
            codec = codec if codec < Codec.ZSTD else Codec.NONE
            log.batches.append(LogBatch(base, records[-1].offset, plain, codec, magic=magic))
            continue
        if producer_id >= 0:
            open_batches.setdefault(producer_id, []).append(len(log.batches))
        log.batches.append(LogBatch(base, base + count - 1, records, codec, producer_id))
    for producer_id in list(open_batches):
        end_transaction(log, open_batches, producer_id, draw(st.booleans()))
    log.aborted.sort(key=lambda transaction: transaction[1])
    return log


def end_transaction(log: Log, open_batches: dict[int, list[int]], producer_id: int, commit: bool) -> None:
    places = open_batches.pop(producer_id)
    if not commit:
        log.aborted.append((producer_id, log.batches[places[0]].base_offset))
        for place in places:
            log.batches[place] = replace(log.batches[place], aborted=True)
    offset = log.end_offset
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    log.batches.append(LogBatch(offset, offset, producer_id=producer_id, marker=kind))
