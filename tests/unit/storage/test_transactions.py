"""Transactions in one log: markers, fencing, last stable offset, aborted transactions (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker._core.log.producer_table import ActiveProducer, ProducerTable
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.fs import FileSystem, RealFileSystem, write_file
from kbroker.protocol.records import ControlType, encode_batch
from kbroker.storage import file_names
from kbroker.storage.index_entries import ABORTED_TRANSACTION, aborted_transactions
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.crash.fs import CrashFileSystem, SyncDirectory
from tests.kit.logs.committed import read_committed
from tests.kit.logs.home import LogHome, batch_of, read_all
from tests.kit.wire.batches import encode_control_batch

NOW = 1_700_000_000_000
UNVERIFIED = LogOptions(verify_transactions=False)


def batch(producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1, transactional: bool = True) -> bytes:
    return encode_batch(
        [(NOW, b"key", b"%d" % (sequence + at)) for at in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as refused:
        call()
    return refused.value.code


def aborted_of(log: Log) -> list[tuple[int, int, int, int]]:
    """Return the aborted transactions in the log's .txnindex files."""
    found = []
    for path in sorted(Path(log.path).glob("*.txnindex")):
        assert path.stat().st_size % ABORTED_TRANSACTION.size == 0
        found += list(aborted_transactions(path.read_bytes()))
    return found


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = LogHome(tmp_path, options=UNVERIFIED).create()
    log.open()
    return log


# --- markers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_has_the_bytes_that_kafka_writes(log: Log, commit: bool) -> None:
    log.be_alone(5)
    log.append(batch(7, 0, epoch=3))
    result = log.append_marker(7, 3, 9, commit=commit)
    assert (result.base_offset, result.last_offset) == (1, 1)
    assert log.read(1, 1000) == encode_control_batch(
        ControlType.COMMIT if commit else ControlType.ABORT,
        NOW,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=9,
        base_offset=1,
        leader_epoch=5,
    )


def test_a_marker_carries_the_log_s_time_where_the_topic_wants_that(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(log_append_time=True, verify_transactions=False)).create()
    assert log.append_marker(7, 0, 0, commit=True).log_append_time == NOW
    assert log.read(0, 100)[22] & 0x38 == 0x38


def test_a_transaction_ends_whatever_the_topic_limits(tmp_path: Path) -> None:
    limits = LogOptions(max_message_bytes=10, segment_bytes=70, compacted=True, timestamp_before_max_ms=0)
    assert LogHome(tmp_path, options=limits).create().append_marker(7, 0, 0, commit=True).base_offset == 0


def test_a_marker_of_an_old_producer_or_coordinator_is_refused(log: Log) -> None:
    log.append_marker(7, 3, 5, commit=True)
    assert code_of(lambda: log.append_marker(7, 2, 6, commit=True)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(lambda: log.append_marker(7, 3, 4, commit=True)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert code_of(lambda: log.append_marker(7, 4, 4, commit=True)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    log.append_marker(7, 3, 5, commit=False)
    log.append_marker(8, 0, 1, commit=False)
    assert log.log_end_offset == 3
    assert aborted_of(log) == []


def test_a_marker_with_a_later_epoch_fences_and_lets_sequences_begin_anew(log: Log) -> None:
    log.append(batch(7, 0, count=3))
    log.append_marker(7, 1, 0, commit=False)
    assert code_of(lambda: log.append(batch(7, 3))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(lambda: log.append(batch(7, 3, epoch=1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(batch(7, 0, epoch=1))
    assert log.active_producers() == [ActiveProducer(7, 1, 0, NOW, 0, 4)]


def test_a_marker_of_the_same_epoch_lets_sequences_go_on(log: Log) -> None:
    log.append(batch(7, 0, count=3))
    log.append_marker(7, 0, 2, commit=True)
    assert log.active_producers() == [ActiveProducer(7, 0, 2, NOW, 2, -1)]
    assert code_of(lambda: log.append(batch(7, 0))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(7, 3)).base_offset == 4


@pytest.mark.parametrize("starts_at", [0, 1])
def test_a_producer_of_which_a_marker_alone_is_left_is_unknown_where_the_log_has_lost_its_beginning(
    log: Log, starts_at: int
) -> None:
    """A replica that began behind the producer's records has such a log."""
    log.append(batch(9, 0))
    log.delete_records_before(starts_at)
    log.append_marker(7, 0, 0, commit=True)
    missing = ErrorCode.UNKNOWN_PRODUCER_ID if starts_at else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(lambda: log.append(batch(7, 3))) is missing
    assert code_of(lambda: log.append(batch(7, 3, epoch=1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(batch(7, 0))
    assert code_of(lambda: log.append(batch(7, 3))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(batch(7, 1))
    assert code_of(lambda: log.append(batch(9, 3))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("commit", [True, False])
def test_sequences_of_a_transaction_that_has_ended_are_no_duplicates(log: Log, commit: bool) -> None:
    first = batch(7, 0, count=3)
    log.append(first)
    assert log.append(first).base_offset == 0
    log.append_marker(7, 0, 0, commit=commit)
    assert code_of(lambda: log.append(first)) is ErrorCode.UNKNOWN_PRODUCER_ID
    second = batch(7, 3)
    assert log.append(second).base_offset == 4
    assert log.append(second).base_offset == 4
    assert code_of(lambda: log.append(first)) is ErrorCode.UNKNOWN_PRODUCER_ID


def test_a_producer_in_a_transaction_writes_nothing_outside_of_it(log: Log) -> None:
    log.append(batch(7, 0))
    assert code_of(lambda: log.append(batch(7, 1, transactional=False))) is ErrorCode.INVALID_TXN_STATE
    log.append_marker(7, 0, 0, commit=True)
    assert log.append(batch(7, 1, transactional=False)).base_offset == 2
    assert log.last_stable_offset == 3


def test_a_coordinator_of_groups_writes_without_sequences(log: Log) -> None:
    log.append(batch(7, 0), as_coordinator=True)
    log.append(batch(7, 0), as_coordinator=True)
    assert log.log_end_offset == 2
    log.append_marker(7, 1, 0, commit=True)
    assert code_of(lambda: log.append(batch(7, 0), as_coordinator=True)) is ErrorCode.INVALID_PRODUCER_EPOCH


# --- verification -----------------------------------------------------------------------------------------


def test_a_transaction_begins_with_the_guard_of_the_question(tmp_path: Path) -> None:
    log = LogHome(tmp_path).create()
    assert code_of(lambda: log.append(batch(7, 0))) is ErrorCode.INVALID_TXN_STATE
    guard = log.verify(7, 0, 0)
    assert guard and log.verify(7, 0, 0) == guard
    assert code_of(lambda: log.append(batch(7, 0), guard=guard + 1)) is ErrorCode.INVALID_TXN_STATE
    assert log.append(batch(7, 0), guard=guard).base_offset == 0
    # It is open: nobody has to be asked.
    assert log.verify(7, 0, 1) == 0
    assert log.append(batch(7, 1)).base_offset == 1
    log.append_marker(7, 0, 0, commit=True)
    assert code_of(lambda: log.append(batch(7, 2), guard=guard)) is ErrorCode.INVALID_TXN_STATE
    assert log.append(batch(7, 2), guard=log.verify(7, 0, 2), as_coordinator=True).base_offset == 3


def test_a_marker_breaks_the_guards_of_its_producer_only(tmp_path: Path) -> None:
    log = LogHome(tmp_path).create()
    mine, other = log.verify(7, 0, 0), log.verify(8, 0, 0)
    log.append_marker(7, 0, 0, commit=False)
    assert code_of(lambda: log.append(batch(7, 0), guard=mine)) is ErrorCode.INVALID_TXN_STATE
    assert log.append(batch(8, 0), guard=other).base_offset == 1


def test_what_was_asked_about_and_not_appended_keeps_later_sequences_back(tmp_path: Path) -> None:
    """KAFKA-14884: without this, a batch of an unknown producer could have any sequence."""
    log = LogHome(tmp_path).create()
    guard = log.verify(7, 0, 5)
    assert log.verify(7, 0, 3) == guard
    assert code_of(lambda: log.append(batch(7, 5), guard=guard)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # A new epoch forgets it.
    assert log.append(batch(7, 5, epoch=1), guard=log.verify(7, 1, 5)).base_offset == 0


def test_questions_of_any_number_of_producers_take_bounded_memory(tmp_path: Path) -> None:
    log = LogHome(tmp_path).create()
    guards = [log.verify(producer_id, 0, 0) for producer_id in range(5000)]
    assert code_of(lambda: log.append(batch(0, 0), guard=guards[0])) is ErrorCode.INVALID_TXN_STATE
    assert log.append(batch(4999, 0), guard=guards[4999]).base_offset == 0


# --- what is stable, what was aborted ---------------------------------------------------------------------


def test_committed_records_end_where_the_oldest_open_transaction_begins(log: Log) -> None:
    log.append(batch_of([b"x"]))
    for producer_id in (1, 2, 3):
        log.append(batch(producer_id, 0))
    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    log.append_marker(2, 0, 0, commit=True)
    assert log.last_stable_offset == 1
    log.append_marker(1, 0, 0, commit=True)
    assert log.last_stable_offset == 3
    log.append_marker(3, 0, 0, commit=True)
    assert (log.last_stable_offset, log.high_watermark) == (7, 7)


def test_deleted_records_are_stable(log: Log) -> None:
    log.append(batch(1, 0, count=5))
    assert log.last_stable_offset == 0
    log.delete_records_before(3)
    assert log.last_stable_offset == 3
    log.append_marker(1, 0, 0, commit=False)
    assert log.last_stable_offset == 6
    assert log.aborted_transactions(3, 1000) == [(1, 0)]


def segmented(tmp_path: Path, fs: FileSystem | None = None) -> tuple[LogHome, Log]:
    """A log with a transaction over three segments, aborted in the last one; other transactions end in between."""
    home = LogHome(
        tmp_path, fs or RealFileSystem(), options=LogOptions(verify_transactions=False, index_interval_bytes=0)
    )
    log = home.create()
    log.append(batch(1, 0))  # 0
    log.append(batch(2, 0))  # 1
    log.append_marker(2, 0, 0, commit=False)  # 2
    log.roll()
    log.append(batch(1, 1))  # 3
    log.append(batch(3, 0))  # 4
    log.append_marker(3, 0, 0, commit=True)  # 5
    log.roll()
    log.append(batch(4, 0))  # 6
    log.append_marker(1, 0, 0, commit=False)  # 7
    log.append_marker(4, 0, 0, commit=False)  # 8
    log.append(batch(5, 0))  # 9
    return home, log


ABORTED = [(2, 1, 2, 0), (1, 0, 7, 6), (4, 6, 8, 9)]


def test_a_reader_is_told_of_what_was_aborted_in_later_segments(tmp_path: Path) -> None:
    _, log = segmented(tmp_path)
    assert aborted_of(log) == ABORTED
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(0, 1 << 20) == [(2, 1), (1, 0)]
    assert log.aborted_transactions(3, 1 << 20) == [(1, 0)]
    assert log.aborted_transactions(6, 1 << 20) == [(1, 0), (4, 6)]
    assert log.aborted_transactions(8, 1 << 20) == [(4, 6)]
    assert log.aborted_transactions(9, 1 << 20) == []
    assert [record.offset for record in read_committed(log)] == [4]
    assert log.last_stable_offset == 9


@pytest.mark.parametrize("restart", ["clean", "unclean", "unclean without snapshots", "unclean without indexes"])
def test_a_restart_knows_what_is_open_and_what_was_aborted(tmp_path: Path, restart: str) -> None:
    home, log = segmented(tmp_path)
    before = log.active_producers()
    if restart == "clean":
        log.close()
    for pattern in {"without snapshots": "*.snapshot", "without indexes": "*index"}.keys() & {restart[8:]}:
        for path in home.log_path.glob({"without snapshots": "*.snapshot", "without indexes": "*index"}[pattern]):
            path.unlink()
    log = home.reopen(clean=restart == "clean")
    assert log.active_producers() == before
    assert (log.last_stable_offset, log.state.first_undecided_offset) == (9, 9)
    assert aborted_of(log) == ABORTED
    assert [record.offset for record in read_committed(log)] == [4]
    log.append_marker(5, 0, 0, commit=False)
    assert aborted_of(log) == [*ABORTED, (5, 9, 10, 11)]
    assert log.last_stable_offset == 11


def test_what_is_read_again_may_end_what_began_where_nothing_is(tmp_path: Path) -> None:
    """Segments below the recovery point are trusted, and no snapshot tells what was open at their end."""
    home, log = segmented(tmp_path)
    before = log.active_producers()
    log.flush()
    home.recovery_point = log.recovery_point
    for path in home.log_path.glob("*.snapshot"):
        path.unlink()
    log = home.reopen(clean=False)
    assert aborted_of(log) == ABORTED
    assert log.last_stable_offset == 9
    assert log.active_producers() == before


def test_an_index_of_aborted_transactions_with_half_an_entry_is_made_anew(tmp_path: Path) -> None:
    home, log = segmented(tmp_path)
    log.close()
    first, last = sorted(home.log_path.glob("*.txnindex"))
    first.write_bytes(first.read_bytes()[:-1])
    last.write_bytes(last.read_bytes() + b"half")
    log = home.reopen(clean=True)
    assert aborted_of(log) == ABORTED
    assert [record.offset for record in read_committed(log)] == [4]


def test_a_snapshot_from_before_the_log_is_not_taken(tmp_path: Path) -> None:
    """The marker may have been in records that were deleted since: the transaction would never end."""
    home = LogHome(tmp_path, options=UNVERIFIED)
    log = home.create()
    log.append(batch(1, 0))
    log.roll()
    stale = home.log_path / "00000000000000000001.snapshot"
    kept = stale.read_bytes()
    log.append_marker(1, 0, 0, commit=True)
    log.roll()
    log.append(batch_of([b"x"]))
    log.delete_records_before(2)
    home.recovery_point = log.recovery_point
    log.delete_old_segments()
    home.unlink_removed()
    for path in home.log_path.glob("*.snapshot"):
        path.unlink()
    stale.write_bytes(kept)
    log = home.reopen(clean=False)
    assert (log.log_start_offset, log.last_stable_offset) == (2, 3)
    assert log.active_producers() == []
    assert not stale.exists()


def test_a_truncation_opens_what_was_ended_behind_it(tmp_path: Path) -> None:
    _home, log = segmented(tmp_path)
    log.truncate_to(8)
    assert aborted_of(log) == ABORTED[:2]
    assert log.last_stable_offset == 6
    log.truncate_to(6)
    assert aborted_of(log) == ABORTED[:1]
    assert log.last_stable_offset == 0
    log.append_marker(1, 0, 0, commit=True)
    assert [record.offset for record in read_committed(log)] == [0, 3, 4]


def test_segments_that_are_cut_off_take_what_was_aborted_in_them_along(tmp_path: Path) -> None:
    home, log = segmented(tmp_path)
    log.truncate_to(5)
    for value in (b"x", b"y"):
        log.append(batch_of([value]))
        log.roll()
    log.close()
    log = home.reopen(clean=True)
    assert aborted_of(log) == ABORTED[:1]
    assert (log.last_stable_offset, log.log_end_offset) == (0, 7)


def test_segments_that_retention_took_are_not_looked_into(tmp_path: Path) -> None:
    home, log = segmented(tmp_path)
    log.delete_records_before(3)
    assert log.delete_old_segments() == 1
    home.unlink_removed()
    assert log.state.aborted_count == 2
    assert log.aborted_transactions(3, 1 << 20) == [(1, 0)]


def test_a_full_index_of_aborted_transactions_closes_the_segment(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(index_max_bytes=100, verify_transactions=False)).create()
    for turn in range(10):
        log.append(batch(1, turn))
        log.append_marker(1, 0, 0, commit=False)
    counts = [path.stat().st_size // 34 for path in sorted(Path(log.path).glob("*.txnindex"))]
    assert sum(counts) == 10 and max(counts) <= 2
    assert [at[1] for at in log.aborted_transactions(0, 1 << 20)] == list(range(0, 20, 2))[: counts[0]]
    assert read_committed(log) == []


def test_closed_segments_tell_what_was_aborted(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500, verify_transactions=False))
    log = home.create()
    for turn in range(30):
        log.append(batch(1, turn))
        log.append_marker(1, 0, 0, commit=turn % 3 == 0)
    log.close()
    log = home.reopen(clean=True)
    for _ in range(2):  # the LRU of two has closed the others meanwhile
        assert [record.value for record in read_committed(log, max_bytes=300)] == [b"%d" % at for at in range(0, 30, 3)]


@pytest.mark.timeout(20)
def test_a_read_may_need_more_segments_than_are_kept_open(tmp_path: Path) -> None:
    """Such reads once closed each other's files for ever."""
    home = LogHome(tmp_path, options=UNVERIFIED)
    log = home.create()
    log.append(batch(1, 0))
    for turn in range(8):
        log.append(batch(2, turn))
        log.append_marker(2, 0, 0, commit=False)
        log.roll()
    log.append_marker(1, 0, 0, commit=False)
    log.close()
    log = home.reopen(clean=True)
    assert log.aborted_transactions(0, 1 << 20) == [(2, 1), (1, 0)]
    assert read_committed(log) == []


# --- disks ------------------------------------------------------------------------------------------------


def aborted_after_power_cuts(fs: CrashFileSystem, tmp_path: Path) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yield what the first segment's .txnindex may hold after a power cut now."""
    for seed in range(20):
        fs.after_power_cut(fs.position, seed, tmp_path / f"{seed}")
        index = tmp_path / f"{seed}" / "orders-0" / file_names.file_name(0, file_names.TRANSACTION_INDEX)
        yield list(aborted_transactions(index.read_bytes()))


def test_the_name_of_a_new_index_survives_before_its_segment_is_trusted(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    fs = CrashFileSystem(disk)
    home = LogHome(disk, fs=fs, options=UNVERIFIED)
    log = home.create()
    log.append(batch(1, 0))
    log.flush()  # the names of the segment's files are durable now
    log.append_marker(1, 0, 0, commit=False)
    began = fs.position
    log.roll()
    log.flush()
    assert log.recovery_point == 2
    synced = [at for at in fs.journal[began:] if isinstance(at, SyncDirectory)]
    assert synced
    assert all(aborted == [(1, 0, 1, 2)] for aborted in aborted_after_power_cuts(fs, tmp_path))


def test_entries_from_before_a_kill_are_on_the_device_before_their_segment_is_trusted(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    fs = CrashFileSystem(disk)
    home = LogHome(disk, fs=fs, options=UNVERIFIED)
    log = home.create()
    log.append(batch(1, 0))
    log.append_marker(1, 0, 0, commit=False)
    log = home.reopen(clean=False)
    log.roll()
    log.flush()
    assert log.recovery_point == 2
    assert all(aborted == [(1, 0, 1, 2)] for aborted in aborted_after_power_cuts(fs, tmp_path))


def test_entries_are_on_the_device_when_their_log_is_closed(tmp_path: Path) -> None:
    """Nothing is read again after a clean stop."""
    disk = tmp_path / "disk"
    disk.mkdir()
    fs = CrashFileSystem(disk)
    log = LogHome(disk, fs=fs, options=UNVERIFIED).create()
    log.append(batch(1, 0))
    log.append_marker(1, 0, 0, commit=False)
    log.close()
    assert all(aborted == [(1, 0, 1, 2)] for aborted in aborted_after_power_cuts(fs, tmp_path))


def test_what_a_recovery_makes_of_closed_segments_is_on_the_device_before_they_are_trusted(tmp_path: Path) -> None:
    """If nothing was aborted, the absence of the index is durable too: an old one tells of what has been cut off."""
    disk = tmp_path / "disk"
    disk.mkdir()
    fs = CrashFileSystem(disk)
    home, log = segmented(disk, fs)
    written, stale = (home.log_path / file_names.file_name(at, file_names.TRANSACTION_INDEX) for at in (0, 3))
    write_file(fs, str(stale), written.read_bytes())
    fs.sync_directory(str(home.log_path))
    log = home.reopen(clean=False)
    assert log.recovery_point == 6
    for seed in range(20):
        fs.after_power_cut(fs.position, seed, tmp_path / f"{seed}")
        after = tmp_path / f"{seed}" / "orders-0"
        assert list(aborted_transactions((after / written.name).read_bytes())) == ABORTED[:1]
        assert not (after / stale.name).exists()


class NoRoomForEntries(RealFileSystem):
    """A file system with space for half an entry of .txnindex."""

    passthrough = False

    def __init__(self) -> None:
        self.is_full = False
        self.indexes: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        (self.indexes.add if path.endswith(".txnindex") else self.indexes.discard)(fd)
        return fd

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        if fd in self.indexes and self.is_full:
            if len(data) < ABORTED_TRANSACTION.size:
                raise OSError(28, "No space left on device")
            return super().pwrite(fd, data[:10], position)
        return super().pwrite(fd, data, position)


def test_an_abort_that_finds_no_room_changes_nothing(tmp_path: Path) -> None:
    fs = NoRoomForEntries()
    log = LogHome(tmp_path, fs=fs, options=UNVERIFIED).create()
    log.append(batch(1, 0))
    log.append_marker(1, 0, 0, commit=False)
    log.append(batch(1, 1))
    fs.is_full = True
    assert code_of(lambda: log.append_marker(1, 0, 0, commit=False)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.last_stable_offset, aborted_of(log)) == (3, 2, [(1, 0, 1, 2)])
    assert len(read_all(log)) == 3
    fs.is_full = False
    log.append_marker(1, 0, 0, commit=False)
    assert (log.last_stable_offset, aborted_of(log)) == (4, [(1, 0, 1, 2), (1, 2, 3, 4)])


def test_an_index_whose_first_entry_came_late_is_read_though_older_segments_are_gone(tmp_path: Path) -> None:
    fs = NoRoomForEntries()
    log = LogHome(tmp_path, fs=fs, options=UNVERIFIED).create()
    log.append(batch_of([b"x"]))
    log.roll()
    log.append(batch(1, 0))
    fs.is_full = True
    assert code_of(lambda: log.append_marker(1, 0, 0, commit=False)) is ErrorCode.KAFKA_STORAGE_ERROR
    fs.is_full = False
    log.delete_records_before(1)
    assert log.delete_old_segments() == 1
    log.append_marker(1, 0, 0, commit=False)
    assert log.aborted_transactions(1, 1000) == [(1, 1)]
    assert read_committed(log) == []


# --- the table of producers -------------------------------------------------------------------------------


def test_what_is_open_costs_an_append_nothing_whatever_else_is() -> None:
    """A transaction that hangs takes neither memory nor time from transactions that begin and end after it."""
    table = ProducerTable()
    table.remember(1_000_000, 0, 0, 1, 0, 0, transactional=True)
    offset = 1
    started_s = time.process_time()
    for turn in range(200_000):
        producer_id = turn % 100
        table.remember(producer_id, 0, turn // 100, 1, offset, 0, transactional=True)
        assert table.first_undecided_offset == 0
        assert table.end(producer_id, 0, 0, offset + 1, 0, commit=True) == (offset, 0)
        offset += 2
    assert time.process_time() - started_s < 10
    assert table.end(1_000_000, 0, 0, offset, 0, commit=False) == (0, offset + 1)
    assert table.first_undecided_offset == (1 << 63) - 1


def test_open_transactions_of_a_snapshot_may_come_in_any_order() -> None:
    table = ProducerTable()
    for producer_id, first_offset in ((1, 50), (2, 10), (3, 70), (4, 30)):
        table.restore(producer_id, 0, -1, 0, first_offset, [])
    table.restore(2, 0, -1, 0, 20, [])
    assert table.copy().first_undecided_offset == 20
    assert table.end(4, 0, 0, 100, 0, commit=True) == (30, 20)
    assert table.end(2, 0, 0, 101, 0, commit=True) == (20, 50)
    assert table.copy().end(3, 0, 0, 102, 0, commit=True) == (70, 50)
    assert table.end(1, 0, 0, 102, 0, commit=True) == (50, 70)
    assert table.first_undecided_offset == 70


def test_a_producer_in_a_transaction_is_not_forgotten() -> None:
    table = ProducerTable(maximum=10)
    for producer_id in range(100):
        table.remember(producer_id, 0, 0, 1, producer_id, 0, transactional=producer_id < 50)
    table.expire(1000)
    assert [at.producer_id for at in table.export()] == list(range(50))
    assert table.first_undecided_offset == 0


def test_a_snapshot_from_before_the_first_segment_is_not_taken(tmp_path: Path) -> None:
    """The end of a transaction that the snapshot has as open may have come between the snapshot and the log."""
    home = LogHome(tmp_path, options=UNVERIFIED)
    log = home.create()
    log.append(batch(1, 0))
    log.roll()
    older = home.log_path / file_names.file_name(1, file_names.SNAPSHOT)
    known = older.read_bytes()
    log.append_marker(1, 0, 0, commit=True)
    log.roll()
    log.append(batch(2, 0, transactional=False))
    log.flush()
    assert log.delete_old_segments((lambda view: 2,)) == 2
    home.recovery_point = log.recovery_point
    home.abandon()
    older.write_bytes(known)
    (home.log_path / file_names.file_name(2, file_names.SNAPSHOT)).write_bytes(b"torn")
    log = home.reopen(clean=False)
    assert log.last_stable_offset == log.log_end_offset == 3
