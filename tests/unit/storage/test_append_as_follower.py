"""A follower's log gets the leader's bytes, indexes and producers, however the leader's answers are cut."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.log.directory import LogDirectory
from kbroker.errors import ErrorCode, StorageFailed
from kbroker.protocol.records import encode_batch
from kbroker.storage import file_names
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.logs.quick_disk import memory_directory
from tests.kit.models.message_set import Message, encode_set
from tests.kit.wire import parser_cases

EPOCH = 100
"""The follower's leader epoch; no history goes so far."""
"""The leader epoch in which followers of these tests append."""


class Step(NamedTuple):
    """What the leader appends: records of a producer, a marker that ends its transaction, or a new leader epoch."""

    kind: str
    producer_id: int
    count: int
    size: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["plain", "idempotent", "transactional", "commit", "abort", "epoch"]),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=60,
)
options = st.tuples(
    st.sampled_from([600, 1500, 1 << 20]), st.sampled_from([0, 200, 4096]), st.sampled_from([48, 10 << 20])
).map(
    lambda drawn: LogOptions(
        segment_bytes=drawn[0], index_interval_bytes=drawn[1], index_max_bytes=drawn[2], verify_transactions=False
    )
)


def lead(log: Log, history: list[Step]) -> None:
    """Append a history as the leader does."""
    sequences: dict[int, int] = {}
    open_transactions: set[int] = set()
    for at, step in enumerate(history):
        now = 1_700_000_000_000 + at * 1000
        values = [(now + number, None, b"v" * step.size) for number in range(step.count)]
        if step.kind == "epoch":
            log.be_alone(log.leader_epoch + 1)
        elif step.kind == "plain":
            log.append(encode_batch(values))
        elif step.kind in ("commit", "abort"):
            log.append_marker(step.producer_id, 0, 0, commit=step.kind == "commit")
            open_transactions.discard(step.producer_id)
        elif step.kind == "transactional" or step.producer_id not in open_transactions:
            is_transactional = step.kind == "transactional"
            log.append(
                encode_batch(
                    values, producer_id=step.producer_id, producer_epoch=0,
                    base_sequence=sequences.get(step.producer_id, 0), is_transactional=is_transactional,
                )
            )  # fmt: skip
            sequences[step.producer_id] = sequences.get(step.producer_id, 0) + step.count
            if is_transactional:
                open_transactions.add(step.producer_id)


def everything(log: Log) -> bytes:
    found = b""
    for segment in log.state.segments():
        found += Path(log.path_of(segment.base_offset, file_names.LOG)).read_bytes()
    return found


def whole_size(answer: bytes) -> int:
    at = 0
    while at + 12 <= len(answer):
        size = 12 + int.from_bytes(answer[at + 8 : at + 12], "big")
        if at + size > len(answer):
            break
        at += size
    return at


def files_of(log: Log) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in Path(log.path).iterdir()
        if path.name not in ("partition.metadata", "leader-epoch-checkpoint")
    }


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path)


def follower_of(home: LogHome) -> Log:
    log = home.create()
    log.open()
    log.follow(EPOCH)
    return log


@settings(deadline=None, max_examples=100)
@given(history=steps, log_options=options, sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=5))
def test_a_follower_has_the_bytes_indexes_and_producers_of_its_leader(
    history: list[Step], log_options: LogOptions, sizes: list[int]
) -> None:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as path:
        homes = []
        for name in ("leader", "follower"):
            Path(path, name).mkdir()
            homes.append(LogHome(Path(path, name), options=log_options))
        leader = homes[0].create()
        leader.open()
        lead(leader, history)
        records = everything(leader)
        follower = follower_of(homes[1])
        at = 0
        number = 0
        while at < len(records):
            first = 12 + int.from_bytes(records[at + 8 : at + 12], "big")
            answer = records[at : at + max(sizes[number % len(sizes)], first)]
            number += 1
            assert follower.state.append_as_follower(answer, EPOCH, leader.high_watermark, 0) == 0
            # The batch at the end that begins an epoch may come again, as the first one of the next answer.
            assert at < follower.state.size <= at + whole_size(answer)
            at = follower.state.size
        for question in ("log_end_offset", "high_watermark", "last_stable_offset"):
            assert getattr(follower.state, question) == getattr(leader.state, question), question
        for offset in range(leader.log_end_offset):
            assert follower.epoch_at(offset) == leader.epoch_at(offset)
        assert follower.active_producers() == leader.active_producers()
        assert follower.aborted_transactions(0, 1 << 30) == leader.aborted_transactions(0, 1 << 30)
        for log in (leader, follower):
            log.close()
        assert files_of(follower) == files_of(leader)
        for each in homes:
            each.abandon()


# --- one batch after the other ---------------------------------------------------------------------------------------


def stamped(values: list[bytes], base_offset: int, epoch: int = 0, timestamp: int = 1_700_000_000_000) -> bytes:
    """Return a batch as a leader has stamped it."""
    batch = bytearray(batch_of(values, timestamp))
    batch[:8] = base_offset.to_bytes(8, "big")
    batch[12:16] = epoch.to_bytes(4, "big")
    return bytes(batch)


def follow(log: Log, records: bytes, high_watermark: int = 1 << 40, log_start_offset: int = 0) -> int:
    return log.state.append_as_follower(records, EPOCH, high_watermark, log_start_offset)


@pytest.fixture
def follower(home: LogHome) -> Iterator[Log]:
    yield follower_of(home)
    home.abandon()


def test_another_epoch_or_another_role_appends_nothing(follower: Log) -> None:
    batch = stamped([b"x"], 0)
    assert follower.state.append_as_follower(batch, EPOCH - 1, 1, 0) == ErrorCode.FENCED_LEADER_EPOCH
    assert follower.state.append_as_follower(batch, EPOCH + 1, 1, 0) == ErrorCode.FENCED_LEADER_EPOCH
    follower.be_alone(EPOCH)
    assert follow(follower, batch) == ErrorCode.FENCED_LEADER_EPOCH
    assert follower.log_end_offset == 0


def test_what_stands_before_a_damaged_batch_is_appended(follower: Log) -> None:
    good, bad = stamped([b"a"], 0) + stamped([b"b", b"c"], 1), bytearray(stamped([b"d"], 3))
    bad[-1] ^= 1
    assert follow(follower, good + bytes(bad) + stamped([b"e"], 4)) == ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 3
    assert everything(follower) == good


def test_offsets_and_epochs_never_go_back(follower: Log) -> None:
    assert follow(follower, stamped([b"a"], 0, 3)) == 0
    assert follow(follower, stamped([b"again"], 0, 3)) == ErrorCode.INVALID_RECORD
    assert follow(follower, stamped([b"older"], 1, 2)) == ErrorCode.INVALID_RECORD
    assert follow(follower, stamped([b"from the future"], 1, EPOCH + 1)) == ErrorCode.INVALID_RECORD
    assert follow(follower, stamped([b"b"], 1, 3) + stamped([b"twice"], 1, 3)) == ErrorCode.INVALID_RECORD
    assert follower.log_end_offset == 2


def test_a_batch_that_leaps_is_appended_only_if_the_next_one_follows_on(follower: Log) -> None:
    assert follow(follower, stamped([b"a"], 0) + stamped([b"b"], 9) + stamped([b"c"], 1)) == ErrorCode.INVALID_RECORD
    assert follower.log_end_offset == 1, "one of the two is wrong, and nobody knows which"
    assert follow(follower, stamped([b"b"], 1) + stamped([b"c"], 2, 5)) == 0
    assert follower.log_end_offset == 2, "the first batch of an epoch comes again, as the first of an answer"
    assert follow(follower, stamped([b"c"], 2, 5)) == 0
    assert follower.log_end_offset == 3
    assert follower.epochs == [(0, 0), (5, 2)]


def test_a_cut_that_is_not_finished_is_not_followed_on_beyond_it(follower: Log) -> None:
    """The log's end is where its follower fetches from. What is below the high watermark would be taken for a gap."""
    stored: list[int] = []

    def refuse(directory: LogDirectory) -> None:
        raise OSError(errno.EAGAIN, "not now")

    assert follow(follower, b"".join(stamped([b"x"], offset) for offset in range(6))) == 0
    follower.flush()
    follower.context.store_recovery_points = refuse
    with pytest.raises(StorageFailed):
        follower.truncate_to(4)
    assert follower.state.log_end_offset == 4
    assert follow(follower, stamped([b"y"], 6) + stamped([b"y"], 7), high_watermark=6) == ErrorCode.KAFKA_STORAGE_ERROR
    assert follower.state.log_end_offset == 4
    follower.context.store_recovery_points = lambda directory: stored.append(follower.recovery_point)
    assert follow(follower, stamped([b"y"], 4) + stamped([b"y"], 5)) == 0
    assert stored == [4], "before anything is appended in the place of what was cut"
    assert follower.log_end_offset == 6


def test_a_gap_beyond_the_high_watermark_is_none_of_compaction(home: LogHome) -> None:
    follower = follower_of(home)
    assert follow(follower, stamped([b"a"], 5), high_watermark=5) == ErrorCode.INVALID_RECORD
    assert follow(follower, stamped([b"a"], 5), high_watermark=6) == 0
    home.options = LogOptions(compacted=True)
    follower.update_options(home.options)
    assert follow(follower, stamped([b"a"], 9), high_watermark=6) == 0
    home.abandon()


def test_a_gap_that_no_index_can_hold_begins_a_segment(home: LogHome) -> None:
    home.options = LogOptions(compacted=True)
    follower = follower_of(home)
    far, farther = 1 << 33, 1 << 35
    assert follow(follower, stamped([b"a"], far), 1) == 0
    assert follower.log_start_offset == far, "an empty log begins where its first record is"
    follower.roll()
    assert follow(follower, stamped([b"b"], far + 7), 1) == 0
    assert follow(follower, stamped([b"c"], farther), 1) == 0
    assert [at.base_offset for at in follower.state.segments()] == [far, far + 1, farther]
    follower.roll()
    assert follow(follower, stamped([b"d"], farther * 2), 1) == 0
    assert [at.base_offset for at in follower.state.segments()] == [far, far + 1, farther, farther * 2]
    again = home.reopen(clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (far, farther * 2 + 1)
    again.follow(EPOCH)
    assert [again.read(offset, 1 << 20, to_log_end=True)[:8] for offset in (far, far + 7, farther, farther * 2)] == [
        offset.to_bytes(8, "big") for offset in (far, far + 7, farther, farther * 2)
    ]


@pytest.mark.parametrize("step", [10, 1 << 33])
def test_a_killed_follower_keeps_what_is_behind_gaps_of_a_topic_that_was_compacted_once(
    home: LogHome, step: int
) -> None:
    """The recovery point of a follower is that of the last checkpoint, which is older than what was copied since."""
    home.options = LogOptions(segment_bytes=600)
    follower = follower_of(home)
    for number in range(20):
        assert follow(follower, stamped([b"v" * 60], number * step)) == 0
    assert len(follower.state.segments()) > 3
    records = everything(follower)
    again = home.reopen(clean=False)
    assert again.log_end_offset == 19 * step + 1
    assert everything(again) == records


def test_an_empty_log_may_begin_inside_a_batch_but_no_other(home: LogHome) -> None:
    follower = follower_of(home)
    follower.begin_at(4)
    follower.follow(EPOCH)
    batch = stamped([b"%d" % number for number in range(8)], 0)
    assert follow(follower, batch, 8, 4) == 0
    assert (follower.log_start_offset, follower.log_end_offset, follower.high_watermark) == (4, 8, 8)
    assert follow(follower, batch, 8, 4) == ErrorCode.INVALID_RECORD
    follower.begin_at(9)
    follower.follow(EPOCH)
    assert follow(follower, batch, 8, 4) == ErrorCode.INVALID_RECORD, "it ends before the log begins"
    home.abandon()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", range(5, 11))
def test_a_log_whose_records_were_all_deleted_may_begin_inside_a_batch_although_they_are_still_on_the_disk(
    home: LogHome, end: int
) -> None:
    """The append never ended: the compiled core asked again and again for an empty segment, and did not get it."""
    home.options = LogOptions(segment_bytes=600)
    follower = follower_of(home)
    for offset in range(10):
        assert follow(follower, stamped([b"v" * 100], offset), end) == 0
    follower.truncate_to(end)
    assert follow(follower, b"", end, end) == 0
    assert (follower.log_start_offset, follower.log_end_offset) == (end, end)
    first, second = stamped([b"a", b"b"], end - 1), stamped([b"c"], end + 1)
    assert follow(follower, first, end - 1, end - 1) == 0
    assert (follower.log_start_offset, follower.log_end_offset) == (end - 1, end + 1)
    assert follow(follower, second, end + 2, end - 1) == 0
    assert everything(follower) == first + second
    again = home.reopen(clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (end - 1, end + 2)
    assert everything(again) == first + second


def test_the_high_watermark_and_the_start_follow_the_leader_but_never_pass_the_log(follower: Log) -> None:
    assert follow(follower, stamped([b"a", b"b"], 0), 9, 1) == 0
    assert (follower.high_watermark, follower.log_start_offset) == (2, 1)
    assert follow(follower, stamped([b"c"], 2), 1, 0) == 0
    assert (follower.high_watermark, follower.log_start_offset) == (2, 1), "they never go back"
    assert follow(follower, b"", 3, 3) == 0
    assert (follower.high_watermark, follower.log_start_offset) == (3, 3)


def test_a_batch_that_does_not_fit_into_the_answer_is_refused(follower: Log) -> None:
    batch = stamped([b"a" * 100], 0)
    for size in range(1, len(batch)):
        assert follow(follower, batch[:size]) == ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 0


def test_messages_of_old_formats_are_kept_as_the_leader_has_them(follower: Log) -> None:
    offsets = ((0, 0), (1, 0), (2, 1), (4, 1))
    old = encode_set([Message(offset, 5 if magic else -1, None, b"old", magic) for offset, magic in offsets])
    assert follow(follower, old + stamped([b"new"], 5)) == 0
    assert everything(follower) == old + stamped([b"new"], 5)
    assert follower.log_end_offset == 6


def test_the_last_stable_offset_waits_for_the_marker_to_be_committed(follower: Log) -> None:
    transactional = bytearray(
        encode_batch(
            [(1, None, b"in a transaction")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
        )
    )
    assert follow(follower, bytes(transactional), 1) == 0
    assert (follower.high_watermark, follower.last_stable_offset) == (1, 0)
    leader = LogHome(Path(follower.path).parent / "leader", options=LogOptions(verify_transactions=False))
    leader.path.mkdir()
    log = leader.create()
    log.append(bytes(transactional))
    log.append_marker(1, 0, 0, commit=False)
    marker = everything(log)[len(transactional) :]
    leader.abandon()
    assert follow(follower, marker, 1) == 0
    assert (follower.log_end_offset, follower.last_stable_offset) == (2, 0)
    assert follow(follower, b"", 2) == 0
    assert follower.last_stable_offset == 2
    assert follower.aborted_transactions(0, 1 << 20) == [(1, 0)]


def test_after_a_start_the_last_stable_offset_waits_for_markers_above_the_high_watermark(
    home: LogHome, follower: Log
) -> None:
    """Nobody knows then what they have ended. A cut that leaves one of them leaves the wait."""
    leader = LogHome(home.path / "leader", options=LogOptions(verify_transactions=False))
    leader.path.mkdir()
    log = leader.create()
    log.append(batch_of([b"a"]))
    log.append(batch_of([b"open"], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.append_marker(1, 0, 0, commit=True)
    log.append(batch_of([b"b"]))
    log.append(batch_of([b"c"]))
    assert follow(follower, everything(log), 2) == 0
    leader.abandon()
    follower.close()
    again = home.find(clean=True)
    again.stop_replica()
    again.state.set_closed_offsets(0, 5, 2)
    again.follow(EPOCH)
    again.open()
    assert (again.high_watermark, again.last_stable_offset) == (2, 0)
    for end_offset in (4, 3):
        again.truncate_to(end_offset)
        assert (again.log_end_offset, again.high_watermark, again.last_stable_offset) == (end_offset, 2, 0)
    assert follow(again, b"", 3) == 0
    assert again.last_stable_offset == 3
    again.truncate_to(2)
    assert again.last_stable_offset == 1, "the transaction is open"


def test_a_disk_that_is_full_appends_nothing_and_later_everything(tmp_path: Path) -> None:
    fs = CrashFileSystem(tmp_path)
    home = LogHome(tmp_path, fs=fs)
    follower = follower_of(home)
    batches = stamped([b"a"], 0) + stamped([b"b"], 1)
    fs.fault = lambda call, what: errno.ENOSPC if call == "pwrite" else 0
    assert follow(follower, batches) == ErrorCode.KAFKA_STORAGE_ERROR
    assert follower.log_end_offset == 0
    fs.fault = lambda call, what: 0
    assert follow(follower, batches) == 0
    assert everything(follower) == batches
    home.abandon()


def test_a_disk_that_takes_records_and_no_index_leaves_no_producer_ahead_of_the_log(tmp_path: Path) -> None:
    """Such a replica would, as the leader, take a batch that it does not have for one that was appended."""
    fs = CrashFileSystem(tmp_path)
    home = LogHome(tmp_path, fs=fs, options=LogOptions(index_interval_bytes=0))
    follower = follower_of(home)
    sent = [batch_of([b"x"], producer_id=7, producer_epoch=0, base_sequence=at) for at in range(200)]
    kept = [at.to_bytes(8, "big") + batch[8:] for at, batch in enumerate(sent)]

    def refuse_indexes(call: str, what: object) -> int:
        is_index = call == "pwrite" and str(Path(f"/proc/self/fd/{what}").readlink()).endswith(file_names.INDEX)
        return errno.ENOSPC if is_index else 0

    fs.fault = refuse_indexes
    assert follow(follower, b"".join(kept)) == ErrorCode.KAFKA_STORAGE_ERROR
    end = follower.log_end_offset
    assert 0 < end < 200
    assert [producer.last_sequence for producer in follower.active_producers()] == [end - 1]
    fs.fault = lambda call, what: 0
    assert follow(follower, b"".join(kept[end:])) == 0
    assert everything(follower) == b"".join(kept)
    home.abandon()


def test_whatever_bytes_come_only_what_the_leader_sent_is_appended(home: LogHome) -> None:
    """Every answer that differs from the leader's in one byte, or is cut: what is appended are batches of the leader.

    No CRC covers a batch's base offset and leader epoch. A wrong one is noticed by its neighbours, unless the change
    makes sense to them too.
    """
    first = stamped([b"0"], 0, 1)
    batches = [stamped([b"%d" % at, b"-"], at, epoch) for at, epoch in ((1, 1), (3, 1), (5, 3), (7, 3))]
    whole = b"".join(batches)
    refused = unnoticed = 0
    for number, (what, records) in enumerate([("whole", whole), *parser_cases.mangled(whole)]):
        path = home.path / str(number)
        path.mkdir()
        each = LogHome(path)
        log = follower_of(each)
        assert follow(log, first, 9) == 0
        code = follow(log, records, 9)
        assert code in (0, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), what
        refused += code != 0
        found = everything(log)[len(first) :]
        prefixes = [b"".join(batches[:count]) for count in range(len(batches) + 1)]
        if found not in prefixes:
            [changed] = [at for at in range(len(found)) if found[at : at + 1] != whole[at : at + 1]]
            assert changed % len(batches[0]) in (*range(8), *range(12, 16)), what
            unnoticed += 1
        each.abandon()
    assert refused > 500
    assert unnoticed <= 3, "an offset or epoch that stays between those of its neighbours"
