"""What the crash campaign has found in the storage, each finding in its smallest form."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.protocol.records import ControlType, encode_batch
from kbroker.storage import checkpoints
from kbroker.storage.compaction import clean_log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from kbroker.storage.producer_state import decode_snapshot
from tests.kit.crash.fs import CrashFileSystem, Rename, Sync, SyncDirectory, Truncate, Unlink
from tests.kit.logs.directory import NOW, aborted, marker, write_partition
from tests.kit.logs.home import TOPIC_ID, LogHome, ManualClock, batch_of, read_all

ORDERS = TopicPartition("orders", 0)
SMALL = LogOptions(segment_bytes=1300, index_interval_bytes=150)
FS = RealFileSystem()


def watched_home(tmp_path: Path, options: LogOptions = SMALL) -> tuple[LogHome, CrashFileSystem]:
    (tmp_path / "disk").mkdir()
    fs = CrashFileSystem(tmp_path / "disk")
    return LogHome(tmp_path / "disk", fs=fs, options=options), fs


def logs_of(path: Path, fs: CrashFileSystem | None = None) -> LogManager:
    """Start on a directory, with one topic known to the cluster; return the logs."""
    logs = LogManager(StorageOptions((str(path),), flusher_threads=0), fs=fs, clock=ManualClock())
    known: dict[TopicPartition, tuple[UUID, LogOptions]] = {ORDERS: (TOPIC_ID, SMALL)}
    logs.start(known.get, background=False)
    return logs


def recovery_point_on_disk(path: Path) -> int:
    return checkpoints.load_offsets(FS, f"{path}/{checkpoints.RECOVERY_POINTS}").get(ORDERS, 0)


def test_a_recovery_point_beyond_the_end_is_lowered_before_anything_is_appended(tmp_path: Path) -> None:
    logs = logs_of(tmp_path)
    log = logs.create(ORDERS.topic, TOPIC_ID, 0, SMALL)
    log.append(batch_of([b"x"] * 10))
    log.flush()
    logs.write_checkpoints()
    logs.abandon()
    assert recovery_point_on_disk(tmp_path) == 10
    next(tmp_path.glob("orders-0/*.log")).write_bytes(b"")
    logs = logs_of(tmp_path)
    log = logs.create(ORDERS.topic, TOPIC_ID, 0, SMALL)
    log.open()
    assert (log.log_end_offset, recovery_point_on_disk(tmp_path)) == (0, 0)
    logs.abandon()


def test_a_log_does_not_inherit_the_recovery_point_of_one_with_its_name(tmp_path: Path) -> None:
    checkpoints.store_offsets(FS, f"{tmp_path}/{checkpoints.RECOVERY_POINTS}", {ORDERS: 70})
    checkpoints.store_offsets(FS, f"{tmp_path}/{checkpoints.LOG_START_OFFSETS}", {ORDERS: 60})
    logs = logs_of(tmp_path)
    log = logs.create(ORDERS.topic, TOPIC_ID, 0, SMALL)
    log.append(batch_of([b"x"] * 10))
    logs.abandon()
    assert recovery_point_on_disk(tmp_path) == 0
    assert checkpoints.load_offsets(FS, f"{tmp_path}/{checkpoints.LOG_START_OFFSETS}") == {}


def test_what_is_truncated_does_not_come_back_with_the_power(tmp_path: Path) -> None:
    home, fs = watched_home(tmp_path)
    log = home.create()
    for at in range(4):
        log.append(batch_of([b"%d" % at]))
    began = fs.position
    log.truncate_to(2)
    happened = fs.journal[began:]
    (cut,) = [at for at, each in enumerate(happened) if isinstance(each, Truncate)]
    truncated = happened[cut]
    assert isinstance(truncated, Truncate)
    assert Sync(truncated.file) in happened[cut:]


def test_a_truncation_lowers_the_recovery_point_on_the_disk(tmp_path: Path) -> None:
    logs = logs_of(tmp_path)
    log = logs.create(ORDERS.topic, TOPIC_ID, 0, SMALL)
    for _ in range(10):
        log.append(batch_of([b"x"]))
    log.flush()
    logs.write_checkpoints()
    log.roll()
    # The log's own point went back to where the segment begins whose indexes are not synced yet.
    assert (log.recovery_point, log.written_recovery_point, recovery_point_on_disk(tmp_path)) == (0, 10, 10)
    log.truncate_to(4)
    assert log.written_recovery_point == recovery_point_on_disk(tmp_path) <= 4
    log.append(batch_of([b"y"] * 10))
    logs.abandon()


def test_recovery_points_are_written_before_a_round_of_retention(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    fs = CrashFileSystem(tmp_path / "disk")
    logs = logs_of(tmp_path / "disk", fs)
    options = LogOptions(segment_bytes=1300, retention_bytes=1)
    log = logs.create(ORDERS.topic, TOPIC_ID, 0, options)
    for _ in range(10):
        log.append(batch_of([b"x" * 400]))
    log.flush()
    began = fs.position
    logs.check_retention()
    renames = [at for at in fs.journal[began:] if isinstance(at, Rename)]
    names = [Path(at.target).name for at in renames]
    deleted = next(number for number, name in enumerate(names) if name.endswith(".deleted"))
    assert checkpoints.RECOVERY_POINTS in names[:deleted]
    logs.abandon()


def test_retention_goes_after_the_names_of_what_stays_and_takes_unflushed_ones_durably(tmp_path: Path) -> None:
    home, fs = watched_home(tmp_path, LogOptions(segment_bytes=1300, retention_bytes=1))
    log = home.create()
    for _ in range(10):
        log.append(batch_of([b"x" * 400]))
    began = fs.position
    assert log.delete_old_segments() > 1
    happened = fs.journal[began:]
    of_log = [at for at, each in enumerate(happened) if isinstance(each, Rename) and each.target.endswith(".deleted")]
    synced = [at for at, each in enumerate(happened) if each == SyncDirectory(str(home.log_path))]
    assert [at for at in synced if at < of_log[0]]
    assert [at for at in synced if at > of_log[-1]]


@pytest.mark.parametrize(
    ("is_rolled", "written", "count", "is_looked_at"),
    [
        # The indexes of the last segment are not synced: it counts as unflushed.
        pytest.param(True, 6, 3, True, id="rolled since the flush"),
        pytest.param(False, 0, 2, True, id="flushed since the checkpoint"),
        pytest.param(False, 6, 2, False, id="flushed"),
    ],
)
def test_of_segments_that_a_recovery_looks_at_retention_takes_one_durably_before_the_next(
    tmp_path: Path, is_rolled: bool, written: int, count: int, is_looked_at: bool
) -> None:
    """If a later segment were gone and an earlier one back, recovery would end the log at the gap.

    Offsets would be given out twice then.
    """
    home, fs = watched_home(tmp_path)
    log = home.create()
    for _ in range(6):
        log.append(batch_of([b"x" * 400]))
    log.flush()
    log.written_recovery_point = written
    if is_rolled:
        log.roll()
    began = fs.position
    assert log.delete_old_segments((lambda view: count,)) == count
    synced = SyncDirectory(str(home.log_path))
    steps = [
        each for each in fs.journal[began:]
        if each == synced or (isinstance(each, Rename) and each.source.endswith(".log"))
    ]  # fmt: skip
    expected = [SyncDirectory, *[Rename, SyncDirectory] * count] if is_looked_at else [Rename] * count
    # The leader epochs first, durably.
    assert [type(each) for each in steps] == [SyncDirectory, *expected]


def test_snapshots_beyond_the_end_are_gone_before_others_are_made(tmp_path: Path) -> None:
    home, _ = watched_home(tmp_path)
    home.create().append(batch_of([b"x", b"y"]))
    home.abandon()
    (home.log_path / "00000000000000000099.snapshot").write_bytes(b"")
    fs = CrashFileSystem(home.path)
    began = fs.position
    again = LogHome(home.path, fs=fs)
    again.reopen(clean=False)
    happened = fs.journal[began:]
    (gone,) = [at for at, each in enumerate(happened) if isinstance(each, Unlink) and each.path.endswith("99.snapshot")]
    assert SyncDirectory(str(home.log_path)) in happened[gone:]


def test_snapshots_of_no_segment_go_but_for_the_newest(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    for sequence in range(5):
        log.append(
            encode_batch([(home.clock.now_ms, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=sequence)
        )
    log.close()
    (newest,) = home.log_path.glob("*.snapshot")
    (home.log_path / "00000000000000000002.snapshot").write_bytes(newest.read_bytes())
    (home.log_path / "00000000000000000003.snapshot").write_bytes(newest.read_bytes())
    home.reopen(clean=False)
    assert [path.name for path in home.log_path.glob("*.snapshot")] == [newest.name]


def test_a_producer_that_expired_while_nobody_looked_is_not_taken_up(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    home.create().append(
        encode_batch([(home.clock.now_ms, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    )
    log = home.reopen(clean=False)
    assert len(log.state.producers()[0].export()) == 1
    home.clock.now_ms += home.context.producer_id_expiration_ms + 1
    log = home.reopen(clean=False)
    assert log.state.producers()[0].export() == []


def test_an_empty_file_of_leader_epochs_is_a_damaged_one(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    log.be_alone(4)
    log.append(batch_of([b"x"]))
    log.close()
    (home.log_path / checkpoints.LEADER_EPOCHS).write_bytes(b"")
    assert home.reopen(clean=True).epoch_at(0) == 4


def test_leader_epochs_of_segments_that_are_back_are_found_again(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=SMALL)
    log = home.create()
    for epoch in (3, 5):
        log.be_alone(epoch)
        for _ in range(5):
            log.append(batch_of([b"x" * 400]))
    log.flush()
    home.recovery_point = log.recovery_point
    # Retention had let the first segments go, and written that down; a power cut has brought them back.
    checkpoints.store_epochs(FS, f"{home.log_path}/{checkpoints.LEADER_EPOCHS}", [(5, 5)])
    log = home.reopen(clean=False)
    assert [log.epoch_at(offset) for offset in (0, 4, 5)] == [3, 3, 5]


def test_indexes_of_a_segment_that_ends_at_the_recovery_point_are_made_anew(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=SMALL)
    log = home.create()
    for _ in range(3):
        log.append(batch_of([b"x" * 300]))
    log.roll()
    home.abandon()
    index = home.log_path / "00000000000000000000.index"
    whole = index.read_bytes()
    assert whole
    # The point was written before the roll: the bytes were synced, the indexes were not there yet.
    home.recovery_point = 3
    index.write_bytes(b"\0" * len(whole))
    home.reopen(clean=False)
    assert index.read_bytes() == whole


def test_a_clean_stop_makes_the_names_of_indexes_durable(tmp_path: Path) -> None:
    home, fs = watched_home(tmp_path)
    log = home.create()
    log.append(batch_of([b"x", b"y"]))
    log.flush()
    log.truncate_to(0)
    began = fs.position
    log.close()
    assert SyncDirectory(str(home.log_path)) in fs.journal[began:]


def test_a_swap_is_finished_where_a_second_old_segment_is_half_gone(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=1300, index_interval_bytes=150, compacted=True))
    log = home.create()
    for at in range(5):
        log.append(encode_batch([(home.clock.now_ms, b"%d" % at, b"x" * 400)]))
    written = [record.value for record in read_all(log)]
    home.abandon()
    first, second, *_ = sorted(home.log_path.glob("*.log"))
    # The first two became one; the names of the old ones were on their way to .deleted, each .log before its indexes.
    Path(f"{first}.swap").write_bytes(first.read_bytes() + second.read_bytes())
    for log_file in (first, second):
        log_file.rename(f"{log_file}.deleted")
    first.with_suffix(".index").rename(f"{first.with_suffix('.index')}.deleted")
    first.with_suffix(".timeindex").rename(f"{first.with_suffix('.timeindex')}.deleted")
    assert [record.value for record in read_all(home.reopen(clean=False))] == written
    assert not list(home.log_path.glob(f"{second.stem}.*index"))


@pytest.mark.parametrize("torn", [b"", b"version: 0\ntopic_id: \0\0", b"\xa5" * 43])
def test_a_topic_id_that_a_power_cut_has_torn_is_written_again(tmp_path: Path, torn: bytes) -> None:
    home = LogHome(tmp_path)
    home.create().append(batch_of([b"x"]))
    metadata = home.log_path / checkpoints.PARTITION_METADATA
    metadata.write_bytes(torn)
    home.reopen(clean=False)
    assert checkpoints.load_topic_id(FS, str(metadata)) == TOPIC_ID


def home_from_kafka(tmp_path: Path, behind: bytes) -> LogHome:
    """A log with a committed record, one of the same key in an open transaction, and `behind` in another segment."""
    home = LogHome(tmp_path, options=LogOptions(compacted=True, deleted_by_retention=False))
    committed = encode_batch([(NOW, b"key", b"committed")], leader_epoch=0)
    newer = encode_batch(
        [(NOW, b"key", b"in a transaction")], base_offset=1, leader_epoch=0, is_transactional=True,
        producer_id=7, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    home.recovery_point = write_partition(tmp_path, home.topic_partition, [(0, [committed, newer]), (2, [behind])])
    return home


def home_with_an_abort(tmp_path: Path) -> LogHome:
    home = home_from_kafka(tmp_path, marker(2, 7, ControlType.ABORT))
    (home.log_path / "00000000000000000002.txnindex").write_bytes(aborted(7, 1, 2, 3))
    return home


def test_what_is_aborted_behind_the_cleaned_segments_takes_the_place_of_nothing(tmp_path: Path) -> None:
    log = home_with_an_abort(tmp_path).reopen(clean=True)
    assert clean_log(log, DedupeMap(1 << 10), 0, 1000).next_dirty_offset == 2
    assert [record.value for record in read_all(log)][:1] == [b"committed"]


@pytest.mark.parametrize("clean", [True, False])
def test_what_is_undecided_takes_the_place_of_nothing(tmp_path: Path, clean: bool) -> None:
    """Kafka may still abort the transaction once it has the log back."""
    home = home_from_kafka(tmp_path, encode_batch([(NOW, b"other", b"1")], base_offset=2, leader_epoch=0))
    log = home.reopen(clean=clean)
    assert clean_log(log, DedupeMap(1 << 10), 0, 1000).next_dirty_offset == 0
    assert [record.value for record in read_all(log)] == [b"committed", b"in a transaction", b"1"]


def test_an_abort_behind_the_end_of_the_log_is_forgotten(tmp_path: Path) -> None:
    home = home_with_an_abort(tmp_path)
    home.recovery_point = 0
    (home.log_path / "00000000000000000002.log").write_bytes(b"torn")
    log = home.reopen(clean=False)
    assert log.log_end_offset == 2
    assert not (home.log_path / "00000000000000000002.txnindex").exists()


def test_an_abort_in_the_log_stays_known(tmp_path: Path) -> None:
    home = home_with_an_abort(tmp_path)
    home.recovery_point = 0
    home.reopen(clean=False)
    assert (home.log_path / "00000000000000000002.txnindex").read_bytes() == aborted(7, 1, 2, 3)


def test_a_producers_time_in_a_snapshot_is_that_of_its_last_marker(tmp_path: Path) -> None:
    home = home_with_an_abort(tmp_path)
    (snapshot,) = home.log_path.glob("*3.snapshot")
    (producer,) = decode_snapshot(snapshot.read_bytes()).export()
    assert producer.last_timestamp == NOW + 2
