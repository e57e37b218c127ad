"""Comparing replicas batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from kbroker._core.wire import record_batch
from kbroker.errors import KbrokerError, MalformedBytes
from kbroker.inspection.log_file import BatchBytes, batch_bytes
from kbroker.inspection.replica_check import (
    Bounds,
    Difference,
    NotCompared,
    Replica,
    Tally,
    _split,
    compare,
    replicas_in,
)
from kbroker.model import TopicPartition
from kbroker.protocol.records import encode_batch

AT = TopicPartition("views", 0)
LENGTH_AT = 8
"""The byte of a batch at which its length stands, behind its base offset."""


def batch(base_offset: int, values: list[bytes]) -> bytes:
    made = bytearray(encode_batch((1000, None, value) for value in values))
    record_batch.stamp(made, base_offset, 0)
    return bytes(made)


def log(*values: list[bytes], start: int = 0) -> list[bytes]:
    found = []
    for each in values:
        found.append(batch(start, each))
        start += len(each)
    return found


def replica(
    batches: list[bytes], *, start: int = 0, high_watermark: int | None = None, now: Bounds | None = None
) -> Replica:
    """A replica that has become another while it was looked at, if the bounds of `now` are given."""
    parsed = [batch_bytes(each) for each in batches]
    end = parsed[-1].last_offset + 1 if parsed else 0
    bounds = Bounds(start, end if high_watermark is None else high_watermark)

    def read(offset: int) -> Iterator[BatchBytes]:
        return (each for each in parsed if each.last_offset >= offset)

    return Replica(bounds, read, lambda: now or bounds)


WHOLE = log([b"a", b"b"], [b"c"], [b"d"])


def outcome(
    first: Replica, second: Replica, *, compacted: bool = False
) -> tuple[list[Difference], list[str], tuple[int, int, int]]:
    """Return the differences, what was not compared, and how many partitions were as a whole, in part, not at all."""
    tally = Tally()
    found = list(compare(AT, {"broker 1": first, "broker 2": second}, tally, compacted=compacted))
    differing = [each for each in found if isinstance(each, Difference)]
    return differing, [str(each) for each in found if isinstance(each, NotCompared)], tally.counts


def differences(first: Replica, second: Replica, *, compacted: bool = False) -> list[tuple[int | None, str]]:
    return [(each.offset, each.what) for each in outcome(first, second, compacted=compacted)[0]]


def test_equal_replicas_have_no_differences() -> None:
    assert differences(replica(WHOLE), replica(WHOLE)) == []


def test_a_changed_byte_is_found_with_its_place() -> None:
    damaged = bytearray(WHOLE[1])
    damaged[65] ^= 1
    assert differences(replica(WHOLE), replica([WHOLE[0], bytes(damaged), WHOLE[2]])) == [
        (2, "the batch differs from broker 1's at its byte 65")
    ]


def test_a_missing_batch_is_found_on_either_side() -> None:
    shorter = replica([WHOLE[0], WHOLE[2]])
    assert differences(replica(WHOLE), shorter) == [(2, "a batch that broker 1 has is missing")]
    assert differences(shorter, replica(WHOLE)) == [(2, "a batch that broker 1 does not have")]


def test_what_not_all_have_committed_is_not_compared() -> None:
    other = log([b"a", b"b"], [b"c"], [b"X"])
    assert differences(replica(WHOLE), replica(other)) != []
    assert differences(replica(WHOLE), replica(other, high_watermark=3)) == []
    assert differences(replica(WHOLE[1:], start=2), replica([batch(0, [b"?", b"?"]), *WHOLE[1:]])) == []


def test_what_is_not_compared_is_told_and_not_counted() -> None:
    whole = replica(WHOLE)
    assert outcome(whole, replica(WHOLE)) == ([], [], (1, 0, 0))
    assert outcome(replica([]), replica([])) == ([], [], (1, 0, 0))
    told = "views-0 on broker 2: offsets {} were not compared: {}"
    empty = replica(WHOLE, high_watermark=0)
    assert outcome(whole, empty) == ([], [told.format("0 to 3", "its high watermark is 0")], (0, 0, 1))
    behind = replica(WHOLE, high_watermark=2)
    assert outcome(whole, behind) == ([], [told.format("2 to 3", "its high watermark is 2")], (0, 1, 0))
    anew = replica([], start=4, high_watermark=4)
    assert outcome(whole, anew) == ([], [told.format("0 to 3", "its log begins at offset 4")], (0, 0, 1))
    both = replica(WHOLE, start=1, high_watermark=3)
    why = [told.format("0 to 0", "its log begins at offset 1"), told.format("3 to 3", "its high watermark is 3")]
    assert outcome(whole, both) == ([], why, (0, 1, 0))
    emptied = replica([], start=2, high_watermark=2)
    why = [told.format("0 to 1", "its log begins at offset 2"), told.format("2 to 3", "its high watermark is 2")]
    assert outcome(whole, emptied) == ([], why, (0, 0, 1))
    (reason,) = outcome(empty, whole)[1]
    assert reason.startswith("views-0 on broker 1: offsets 0 to 3"), "whichever is named first"


def test_what_retention_removes_meanwhile_is_no_difference() -> None:
    going = replica(WHOLE[1:], high_watermark=4, now=Bounds(2, 4))
    assert differences(replica(WHOLE), going) == differences(going, replica(WHOLE)) == []
    all_gone = replica([], high_watermark=4, now=Bounds(4, 4))
    assert differences(replica(WHOLE), all_gone) == []
    other = log([b"a", b"b"], [b"c"], [b"X"])[1:]
    assert [at for at, _ in differences(replica(WHOLE), replica(other, high_watermark=4, now=Bounds(2, 4)))] == [3]
    lacking = replica([WHOLE[0], WHOLE[2]], now=Bounds(1, 4))
    assert [at for at, _ in differences(replica(WHOLE), lacking)] == [2]


def test_a_broker_that_starts_anew_meanwhile_knows_less_to_be_committed() -> None:
    anew = replica(WHOLE[:1], high_watermark=4, now=Bounds(0, 2))
    found, told, counts = outcome(replica(WHOLE), anew)
    assert (found, counts) == ([], (0, 1, 0)) and told == [
        "views-0 on broker 2: offsets 2 to 3 were not compared: its high watermark is 2"
    ]


def test_compaction_may_leave_out_batches_and_records_but_change_none() -> None:
    compacted = replica([WHOLE[0], WHOLE[2]])
    assert differences(replica(WHOLE), compacted, compacted=True) == []
    other = replica([WHOLE[0], batch(2, [b"X"]), WHOLE[2]])
    assert [offset for offset, _ in differences(replica(WHOLE), other, compacted=True)] == [2]


@pytest.mark.parametrize("batches", [WHOLE, log([b"x" * 22])], ids=["several batches", "one batch"])
def test_any_flipped_bit_of_a_batch_is_found(batches: list[bytes]) -> None:
    """The difference is at the batch's offset, or at the one that a changed base offset names.

    A size that cannot be is refused.
    """
    bounds = replica(batches).bounds
    for number, of_batch in enumerate(batches):
        base_offset = batch_bytes(of_batch).base_offset
        for position, bit in product(range(len(of_batch)), range(8)):
            changed = bytearray(of_batch)
            changed[position] ^= 1 << bit
            other = reading(b"".join([*batches[:number], changed, *batches[number + 1 :]]), bounds)
            try:
                found = [offset for offset, _ in differences(replica(batches), other)]
            except MalformedBytes:
                assert LENGTH_AT <= position < LENGTH_AT + 4
                continue
            (offset,) = found
            assert offset is not None and 0 <= offset <= base_offset, (number, position, bit)
            assert offset == base_offset or position < LENGTH_AT, (number, position, bit)


def reading(data: bytes, bounds: Bounds) -> Replica:
    """A replica whose batches come as one answer of a broker."""
    return Replica(bounds, lambda offset: (each for each in _split(data) if each.last_offset >= offset), lambda: bounds)


def test_replicas_are_found_in_directories(tmp_path: Path) -> None:
    for name, end in (("one", 4), ("two", 3)):
        partition = tmp_path / name / "views-0"
        partition.mkdir(parents=True)
        (partition / f"{0:020d}.log").write_bytes(b"".join(WHOLE[:2]))
        (partition / f"{3:020d}.log").write_bytes(WHOLE[2])
        (tmp_path / name / "replication-offset-checkpoint").write_text(f"0\n1\nviews 0 {end}\n")
    found = replicas_in([tmp_path / "one", tmp_path / "two"])
    assert [each.bounds for each in found[AT].values()] == [Bounds(0, 4), Bounds(0, 3)]
    (behind,) = compare(AT, found[AT], Tally())
    assert str(behind).endswith("two: offsets 3 to 3 were not compared: its high watermark is 3")
    (tmp_path / "two" / "views-0" / f"{0:020d}.log").write_bytes(b"".join(log([b"a", b"b"], [b"X"])))
    differing, _ = compare(AT, replicas_in([tmp_path / "one", tmp_path / "two"])[AT], Tally())
    assert str(differing).startswith(f"views-0 on {tmp_path / 'two'}: offset 2: the batch differs from ")


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KbrokerError, match="is no directory"):
        replicas_in([tmp_path / "none"])
