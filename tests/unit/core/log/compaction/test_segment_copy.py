"""The passes of compaction over a segment's bytes, against a model and by rule."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kbroker._core.log.compaction.cleaned_transactions import LastBatches, Transactions
from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker._core.log.compaction.segment_copy import SegmentCopy, copy_segment, feed_map
from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.errors import KbrokerError
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from tests.kit.models import compaction as model
from tests.kit.models.compaction import CONTROL, HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from tests.kit.models.record_batch import Batch, Record, encode_batch
from tests.kit.wire.collisions import takes_as_long

if TYPE_CHECKING:
    from typing_extensions import Buffer

NOW, RETENTION = 1000, 100
ROOM = 24 * 1000


def inflated(codec: int, data: memoryview) -> memoryview:
    return inflate_shared(codec, data, model.LIMIT)


def fed(log: bytes, start_offset: int = 0, room: int = ROOM, transactions: Transactions | None = None) -> DedupeMap:
    found = DedupeMap(room, 1)
    feed_map(log, found, inflate=inflated, start_offset=start_offset, transactions=transactions)
    return found


def copied(log: bytes, found: DedupeMap | None = None, **options: Any) -> SegmentCopy:
    options = {"now_ms": NOW, "delete_retention_ms": RETENTION, **options}
    return copy_segment(log, fed(log) if found is None else found, inflate=inflated, deflate=deflate, **options)


USED = SegmentCopy()
"""Has the memory, and what is left, of all copies that were made into it before."""


def rows(log: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(b.base_offset + r.offset_delta, r.key, r.value) for b in model.decode(log) for r in b.records]


def batch(base_offset: int, *pairs: tuple[bytes | None, bytes | None], **header: Any) -> Batch:
    records = tuple(Record(at, at, key, value) for at, (key, value) in enumerate(pairs))
    return Batch(records, base_offset=base_offset, **{"base_timestamp": 500, **header})


def log_of(*batches: Batch) -> bytes:
    return b"".join(model.encode(one) for one in batches)


def marker(base_offset: int, producer_id: int, kind: int, **header: Any) -> Batch:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)
    attributes = header.pop("attributes", 0) | TRANSACTIONAL | CONTROL
    return batch(base_offset, (key, value), producer_id=producer_id, producer_epoch=0, attributes=attributes, **header)


# --- against the model --------------------------------------------------------------------------------


KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"a longer key than a word of the hash"])
VALUES = st.sampled_from([None, None, b"", b"v", b"value" * 20])


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    batches = []
    offset = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 7))):
        producer_id = draw(st.integers(-1, 2))
        offset += draw(st.integers(0, 3))
        kind = draw(st.sampled_from(["data", "data", "data", "transactional", "marker", "empty"]))
        if kind == "marker":
            attributes = draw(st.sampled_from([0, HORIZON]))
            base = draw(st.sampled_from([NOW - 1, NOW, NOW + 1]))
            batches.append(
                marker(offset, max(producer_id, 0), draw(st.integers(0, 3)), attributes=attributes, base_timestamp=base)
            )
            offset += 1
            continue
        deltas = sorted(draw(st.sets(st.integers(0, 8), min_size=1, max_size=6))) if kind != "empty" else []
        records = tuple(
            Record(
                delta,
                draw(st.integers(-700, 700)),
                draw(KEYS),
                draw(VALUES),
                draw(st.sampled_from([(), ((b"h", None),)])),
            )
            for delta in deltas
        )
        attributes = draw(st.sampled_from([0, LOG_APPEND_TIME])) | (TRANSACTIONAL if kind == "transactional" else 0)
        if records:
            attributes |= draw(st.sampled_from([0, HORIZON])) | draw(st.sampled_from([*Codec, Codec.NONE, Codec.NONE]))
        last = (deltas[-1] if deltas else 0) + draw(st.integers(0, 2))
        batches.append(
            Batch(
                records,
                base_offset=offset,
                leader_epoch=draw(st.integers(0, 2)),
                attributes=attributes,
                last_offset_delta=last,
                base_timestamp=draw(st.sampled_from([700, NOW - 1, NOW, NOW + 1])),
                max_timestamp=900 if attributes & LOG_APPEND_TIME or not records else None,
                producer_id=max(producer_id, 0) if kind == "transactional" else producer_id,
                producer_epoch=0,
                base_sequence=3,
            )
        )
        offset += last + 1
    # As they are read back: what was left to the encoder is there.
    return model.decode(log_of(*batches))


@settings(max_examples=250)
@given(
    logs(),
    st.integers(0, 30),
    st.integers(1, 4),
    st.dictionaries(st.integers(0, 2), st.tuples(st.integers(-1, 30), st.integers(0, 1))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=3, unique_by=lambda entry: entry[1]),
)
def test_the_copy_is_the_models_byte_for_byte(
    batches: list[Batch],
    start_offset: int,
    capacity: int,
    producers: dict[int, tuple[int, int]],
    aborted: list[tuple[int, int]],
) -> None:
    log = log_of(*batches)
    newest, latest = model.newest_offsets(batches, start_offset, capacity, aborted)
    found = fed(log, start_offset, (capacity + 1) * 24, Transactions(aborted))
    assert found.latest_offset == latest
    assert {key: found.get(key) for key in newest} == newest
    assert len(found) == len(newest)
    last = LastBatches([(producer_id, *known) for producer_id, known in producers.items()])
    made = copied(log, found, producers=last, transactions=Transactions(aborted))
    left = model.clean(batches, newest, latest, NOW, RETENTION, producers, aborted)
    assert model.decode(made.output) == left
    assert made.output == log_of(*left)
    assert made.taken == len(log)
    assert (made.batches_read, made.records_read) == (len(batches), sum(len(one.records) for one in batches))
    assert (made.batches_kept, made.records_kept) == (len(left), sum(len(one.records) for one in left))
    again = copied(log, found, producers=last, transactions=Transactions(aborted), into=USED)
    assert again is USED
    assert again.output == made.output


@settings(max_examples=80)
@given(logs())
def test_what_was_cleaned_is_clean(batches: list[Batch]) -> None:
    # All of one moment, and without markers: a marker is removed one cleaning after its transaction's data.
    assume(not any(one.attributes & CONTROL for one in batches))
    log = log_of(*batches)
    found = fed(log)
    once = copied(log, found).output
    # A horizon that was written now has not passed now.
    assert copied(once, found).output == once
    assert copied(once, fed(once)).output == once


@settings(max_examples=80)
@given(logs(), st.data())
def test_whole_batches_are_taken_of_whatever_is_there(batches: list[Batch], data: st.DataObject) -> None:
    log = log_of(*batches)
    found = fed(log)
    whole = copied(log, found)
    cut = data.draw(st.integers(0, len(log)))
    first = copied(log[:cut], found)
    ends = [len(log_of(*batches[:count])) for count in range(len(batches) + 1)]
    assert first.taken == max(end for end in ends if end <= cut)
    if not any(one.attributes & CONTROL for one in batches):
        assert bytes(first.output) + bytes(copied(log[first.taken :], found).output) == whole.output


@settings(max_examples=100)
@given(logs(), st.data())
def test_damaged_batches_are_refused_and_never_written_anew(batches: list[Batch], data: st.DataObject) -> None:
    assume(batches)
    log = bytearray(log_of(*batches))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] ^= data.draw(st.integers(1, 255))
    found = DedupeMap(ROOM)
    try:
        taken, _, _ = feed_map(log, found, inflate=inflated)
        made = copied(bytes(log), found)
    except InvalidBatch:
        return
    assert taken == made.taken
    assert made.taken <= len(log)


@settings(max_examples=100)
@given(
    st.binary(max_size=80),
    st.integers(-2, 5),
    st.integers(-2, 40),
    st.integers(0, 127),
    st.integers(-(2**63), 2**63 - 1),
)
def test_a_batch_of_any_bytes_with_a_right_crc_does_no_harm(
    payload: bytes, count: int, last: int, attributes: int, number: int
) -> None:
    log = encode_batch(
        Batch(
            base_offset=number,
            attributes=attributes,
            last_offset_delta=last,
            base_timestamp=number,
            max_timestamp=number,
            producer_id=number,
            record_count=count,
            payload=payload,
        )
    )
    found = DedupeMap(ROOM)
    try:
        feed_map(log, found, inflate=inflated)
        copied(log, found)
    except KbrokerError:
        pass


# --- by rule ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_the_newest_value_of_each_key_is_left_at_its_offset(codec: Codec) -> None:
    log = log_of(
        batch(3, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), attributes=codec),
        batch(6, (b"a", b"3"), attributes=codec),
        batch(7, (b"c", b"1"), attributes=codec),
    )
    made = copied(log)
    assert rows(made.output) == [(4, b"b", b"1"), (6, b"a", b"3"), (7, b"c", b"1")]
    first = model.decode(made.output)[0]
    assert (first.base_offset, first.last_offset_delta, first.base_timestamp, first.max_timestamp) == (3, 2, 501, 501)
    # A batch that lost no record keeps its bytes.
    assert bytes(made.output).endswith(
        log_of(batch(6, (b"a", b"3"), attributes=codec), batch(7, (b"c", b"1"), attributes=codec))
    )


def test_what_stays_in_one_piece_is_not_copied() -> None:
    gone, first, second = batch(0, (b"a", b"0")), batch(1, (b"a", b"1")), batch(2, (b"b", b"1"), (b"c", b"1"))
    last = batch(4, (b"d", b"1"), (b"d", b"2"))
    log = bytearray(log_of(gone, first, second, last))
    piece = log_of(first, second)
    start, end = len(log_of(gone)), len(log_of(gone, first, second))
    found = fed(bytes(log))
    made = copied(bytes(log[:end]), found)
    assert made.output == piece
    made = copied(memoryview(log)[:end], found)  # type: ignore[arg-type]
    log[start:end] = bytes(len(piece))
    assert made.output == bytes(len(piece)), "it lies in the segment"
    log[start:end] = piece
    # Not so when something else follows.
    made = copied(memoryview(log), found)  # type: ignore[arg-type]
    log[start:end] = bytes(len(piece))
    assert rows(bytes(made.output)) == [(1, b"a", b"1"), (2, b"b", b"1"), (3, b"c", b"1"), (5, b"d", b"2")]


def test_a_copy_that_is_still_read_takes_no_other() -> None:
    log = log_of(batch(0, (b"a", b"1"), (b"a", b"2")))
    found = fed(log)
    made = copied(log, found)
    held = made.output
    with pytest.raises(BufferError, match="still read"):
        copied(log, found, into=made)
    assert rows(bytes(held)) == [(1, b"a", b"2")]
    held.release()
    assert rows(bytes(copied(log + log_of(batch(2, (b"b", b"1"))), found, into=made).output)) == [
        (1, b"a", b"2"),
        (2, b"b", b"1"),
    ]


def test_a_copy_that_failed_leaves_nothing_to_the_next() -> None:
    good = log_of(batch(0, (b"a", b"1"), (b"a", b"2")))
    found = fed(good)
    into = SegmentCopy()
    with pytest.raises(InvalidBatch):
        copied(good + bytes(70), found, into=into)
    assert rows(bytes(copied(good, found, into=into).output)) == [(1, b"a", b"2")]
    assert copied(b"", found, into=into).output == b""


def test_a_tombstone_gets_a_horizon_and_goes_when_that_has_passed() -> None:
    log = log_of(batch(0, (b"a", b"1")), batch(1, (b"a", None), (b"b", b"1")))
    found = fed(log)
    once = copied(log, found).output
    (left,) = model.decode(once)
    assert rows(once) == [(1, b"a", None), (2, b"b", b"1")]
    assert (left.attributes, left.base_timestamp, left.max_timestamp) == (HORIZON, NOW + RETENTION, 501)
    assert [model.timestamp(left, record) for record in left.records] == [500, 501]
    assert copied(once, found, now_ms=NOW + RETENTION - 1).output == once
    gone = copied(once, found, now_ms=NOW + RETENTION).output
    assert rows(gone) == [(2, b"b", b"1")]
    assert model.decode(gone)[0].base_timestamp == NOW + RETENTION


def test_a_horizon_beyond_the_end_of_time_is_the_end_of_time() -> None:
    log = log_of(batch(0, (b"a", None)))
    (left,) = model.decode(copied(log, delete_retention_ms=2**63 - 1).output)
    assert (left.attributes, left.base_timestamp) == (HORIZON, 2**63 - 1)
    assert model.timestamp(left, left.records[0]) == 500


def test_what_is_beyond_the_map_stays_even_without_a_key() -> None:
    log = log_of(batch(0, (b"a", b"1"), (None, b"x")), batch(2, (None, b"y"), (b"a", b"2")))
    found = DedupeMap(ROOM)
    feed_map(log[: len(log_of(batch(0, (b"a", b"1"), (None, b"x"))))], found, inflate=inflated)
    assert rows(copied(log, found).output) == [(0, b"a", b"1"), (2, None, b"y"), (3, b"a", b"2")]


def test_a_full_map_cleans_as_far_as_it_came_and_the_next_one_goes_on_there() -> None:
    log = log_of(batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")), batch(4, (b"a", b"3"), (b"c", b"2")))
    found = DedupeMap(3 * 24, 1)
    assert feed_map(log, found, inflate=inflated)[2]
    assert found.latest_offset == 2
    once = copied(log, found).output
    assert [row[0] for row in rows(once)] == [1, 2, 3, 4, 5]
    found.clear()
    assert not feed_map(once, found, inflate=inflated, start_offset=3)[2]
    assert [row[0] for row in rows(copied(once, found).output)] == [1, 4, 5]


def test_the_last_batch_of_a_living_producer_stays_as_a_header() -> None:
    log = log_of(
        batch(0, (b"a", b"1"), producer_id=7, producer_epoch=2, base_sequence=40, attributes=Codec.LZ4),
        batch(1, (b"a", b"2")),
    )
    assert [row[0] for row in rows(copied(log).output)] == [1]
    left = model.decode(copied(log, producers=LastBatches([(7, 0, 2)])).output)[0]
    assert (left.records, left.base_offset, left.last_offset_delta) == ((), 0, 0)
    assert (left.producer_id, left.producer_epoch, left.base_sequence) == (7, 2, 40)
    assert (left.attributes, left.base_timestamp, left.max_timestamp) == (0, -1, 500)
    # It is removed when the producer is gone.
    once = copied(log, producers=LastBatches([(7, 0, 2)])).output
    assert copied(once).batches_kept == 1


def test_an_aborted_transaction_goes_and_its_marker_a_retention_later() -> None:
    data = batch(0, (b"a", b"1"), producer_id=7, producer_epoch=0, attributes=TRANSACTIONAL)
    log = log_of(data, marker(1, 7, model.ABORT), batch(2, (b"b", b"1")))
    aborted = [(7, 0, 1, 2)]
    found = fed(log, transactions=Transactions(aborted))
    assert found.get(b"a") == -1
    transactions = Transactions(aborted)
    once = copied(log, found, transactions=transactions).output
    assert [row[0] for row in rows(once)] == [1, 2]
    assert transactions.kept == aborted
    transactions = Transactions(aborted)
    twice = copied(once, found, transactions=transactions).output
    assert transactions.kept == []
    assert model.decode(twice)[0].attributes & HORIZON
    assert copied(twice, found, transactions=Transactions(aborted)).output == twice
    assert [
        r[0] for r in rows(copied(twice, found, now_ms=NOW + RETENTION, transactions=Transactions(aborted)).output)
    ] == [2]


def test_producers_that_abort_cannot_be_chosen_so_that_a_copy_is_slow() -> None:
    def copy(producer_ids: Sequence[int]) -> None:
        aborted = [(producer_id, at) for at, producer_id in enumerate(producer_ids)]
        copied(log_of(marker(len(aborted), 1, model.ABORT)), transactions=Transactions(aborted))

    assert takes_as_long(copy)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_compressed_bytes_that_are_not_or_are_too_many_are_refused(codec: Codec) -> None:
    bomb = batch(0, (b"k", bytes(2 * model.LIMIT)))
    broken = replace(bomb, attributes=codec, payload=b"\xff" * 30)
    with pytest.raises(KbrokerError):
        fed(encode_batch(broken))
    with pytest.raises(KbrokerError):
        copied(encode_batch(broken), DedupeMap(ROOM))


def test_an_error_of_the_codec_comes_out_and_leaves_all_as_it_was() -> None:
    log = log_of(batch(0, (b"a", b"1"), (b"a", b"2"), attributes=Codec.ZSTD))

    def fail(codec: int, data: Buffer) -> bytes:
        raise RuntimeError("codec")

    found = fed(log)
    with pytest.raises(RuntimeError, match="codec"):
        copy_segment(log, found, inflate=inflated, deflate=fail, now_ms=NOW, delete_retention_ms=0)
    with pytest.raises(RuntimeError, match="codec"):
        copy_segment(log, found, inflate=fail, deflate=deflate, now_ms=NOW, delete_retention_ms=0)
    assert rows(copied(log, found).output) == [(1, b"a", b"2")]
