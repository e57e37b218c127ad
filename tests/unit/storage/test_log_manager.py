"""All logs of a broker: directories, start and stop, creation and deletion."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from kbroker.errors import ErrorCode, ProtocolError, StorageFailed
from kbroker.fs import RealFileSystem
from kbroker.model import NO_UUID, TopicPartition
from kbroker.storage import checkpoints
from kbroker.storage.directory import CLEAN_MARK, DirectoryInUse, WrongDirectory
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import NEVER, LogOptions, StorageOptions
from kbroker.storage.retention import LogView
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import TOPIC_ID, ManualClock, batch_of, read_all
from tests.kit.parts.processors import wait_until
from tests.kit.threads import run_all

ORDERS = TopicPartition("orders", 0)
OPTIONS = LogOptions(segment_bytes=2000, index_interval_bytes=200)
Known = dict[TopicPartition, tuple[UUID, LogOptions]]


class Broker:
    """A LogManager over directories that outlive it."""

    def __init__(self, *directories: Path):
        self.options = StorageOptions(tuple(map(str, directories)), flusher_threads=1)
        self.clock = ManualClock()
        self.known: Known = {}
        self.running: LogManager | None = None

    def start(self, *, background: bool = False) -> LogManager:
        self.running = LogManager(self.options, clock=self.clock)
        self.running.start(self.known.get, 1, "c", background=background)
        return self.running

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None

    def kill(self) -> None:
        """Kill the broker, as far as the files can tell: nothing is closed or written."""
        assert self.running is not None
        self.running.abandon()
        self.running = None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    yield broker
    broker.stop()


def test_new_logs_go_to_the_directory_with_the_fewest(broker: Broker, tmp_path: Path) -> None:
    logs = broker.start()
    for partition_id in range(5):
        logs.create("orders", TOPIC_ID, partition_id, OPTIONS)
    counts = [len(list((tmp_path / name).glob("orders-*"))) for name in ("a", "b")]
    assert sorted(counts) == [2, 3]


@pytest.mark.parametrize("clean", [True, False])
def test_records_are_there_after_a_restart(broker: Broker, clean: bool) -> None:
    broker.known[ORDERS] = TOPIC_ID, OPTIONS
    log = broker.start().create("orders", TOPIC_ID, 0, OPTIONS)
    for at in range(50):
        log.append(batch_of([b"%d" % at]))
    if clean:
        broker.stop()
    else:
        broker.kill()
    log = broker.start().get(ORDERS)
    assert log is not None
    assert not log.is_open
    assert [record.value for record in read_all(log)] == [b"%d" % at for at in range(50)]


def test_a_clean_stop_leaves_the_mark_and_the_next_start_takes_it(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    broker.stop()
    assert (tmp_path / "a" / CLEAN_MARK).exists()
    broker.start()
    assert not (tmp_path / "a" / CLEAN_MARK).exists()


@pytest.mark.parametrize("clean", [True, False])
def test_nothing_is_left_of_a_broker_that_ended(broker: Broker, tmp_path: Path, clean: bool) -> None:
    """That includes files that wait for the end of their delay."""
    logs = broker.start()
    for topic in ("orders", "bills"):
        logs.create(topic, TOPIC_ID, 0, OPTIONS).append(batch_of([b"1"]))
    logs.delete(TopicPartition("bills", 0))
    assert files_held(tmp_path)
    manager = weakref.ref(logs)
    del logs
    if clean:
        broker.stop()
    else:
        broker.kill()
    gc.collect()
    assert manager() is None
    assert not files_held(tmp_path)


def test_a_directory_is_for_one_broker_at_a_time(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    with pytest.raises(DirectoryInUse, match="in use by process"):
        Broker(tmp_path / "b").start()


def test_a_directory_of_another_broker_is_refused(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    broker.stop()
    other = LogManager(StorageOptions((str(tmp_path / "a"),)))
    with pytest.raises(WrongDirectory, match="belongs to broker 1"):
        other.start(lambda at: None, 2, "c")
    with pytest.raises(WrongDirectory, match="belongs to cluster c"):
        other.start(lambda at: None, 1, "d")


def test_a_deleted_log_is_gone_at_once_and_its_files_after_the_delay(broker: Broker, tmp_path: Path) -> None:
    logs = broker.start()
    log = logs.create("orders", TOPIC_ID, 0, OPTIONS)
    log.append(batch_of([b"x"]))
    logs.delete(ORDERS)
    assert logs.get(ORDERS) is None
    assert not logs.partition_table.contains("orders", 0)
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"x"]))
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (renamed,) = [path for name in ("a", "b") for path in (tmp_path / name).glob("orders-0.*-delete")]
    assert len(list(renamed.iterdir())) > 2
    broker.clock.now_ms += OPTIONS.file_delete_delay_ms
    logs.run_due_jobs()
    assert not renamed.exists()


def test_a_deleted_log_gives_its_descriptors_and_so_its_space_back_at_once(broker: Broker, tmp_path: Path) -> None:
    """Descriptors are not kept until the garbage collector runs, which it never does on a quiet broker."""
    logs = broker.start()
    gc.disable()
    try:
        log = logs.create("orders", TOPIC_ID, 0, OPTIONS._replace(file_delete_delay_ms=0))
        log.append(batch_of([b"x"]))
        assert any(files_held(tmp_path))
        logs.delete(ORDERS)
        logs.run_due_jobs()
        assert [name for name in files_held(tmp_path) if "orders" in name] == []
    finally:
        gc.enable()


def files_held(folder: Path) -> list[str]:
    """Return the files below `folder` that this process has open."""
    held = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            held.append(str(descriptor.readlink()))
    return [name for name in held if name.startswith(str(folder))]


def test_a_log_made_again_under_the_same_name_is_not_taken_for_the_old_one(broker: Broker) -> None:
    logs = broker.start()
    broker.known[ORDERS] = TOPIC_ID, OPTIONS
    log = logs.create("orders", TOPIC_ID, 0, OPTIONS)
    for _ in range(100):
        log.append(batch_of([b"old"]))
    log.flush()
    log.delete_records_before(90)
    logs.write_checkpoints()
    logs.delete(ORDERS)
    second = UUID(int=7)
    broker.known[ORDERS] = second, OPTIONS
    log = logs.create("orders", second, 0, OPTIONS)
    log.append(batch_of([b"new"]))
    broker.kill()
    log = broker.start().get(ORDERS)
    assert log is not None
    assert log.recovery_point == 0
    assert [record.value for record in read_all(log)] == [b"new"]


def test_of_a_log_that_is_being_changed_the_checkpoints_keep_what_they_had(tmp_path: Path) -> None:
    """The leader epochs of that log are not stored yet. Who changes it may wait for the checkpoint of another one."""
    broker = Broker(tmp_path)
    logs = broker.start()
    busy, other = (logs.create(name, TOPIC_ID, 0, OPTIONS) for name in ("busy", "other"))
    names = [log.topic_partition for log in (busy, other)]

    def fill_and_delete(end: int, start: int) -> None:
        for log in (busy, other):
            while log.log_end_offset < end:
                log.append(batch_of([b"x"]))
            log.flush()
            log.delete_records_before(start)

    def written(name: str) -> list[int]:
        stored = checkpoints.load_offsets(RealFileSystem(), f"{tmp_path}/{name}")
        return [stored[at] for at in names]

    fill_and_delete(10, 5)
    logs.write_checkpoints()
    assert (written(checkpoints.RECOVERY_POINTS), written(checkpoints.LOG_START_OFFSETS)) == ([10, 10], [5, 5])
    fill_and_delete(20, 15)
    busy._epochs.begin(7, 20)
    with busy._lock:
        run_all(logs.write_checkpoints)
    assert (written(checkpoints.RECOVERY_POINTS), written(checkpoints.LOG_START_OFFSETS)) == ([10, 20], [15, 15])
    logs.write_checkpoints()
    assert (written(checkpoints.RECOVERY_POINTS), written(checkpoints.LOG_START_OFFSETS)) == ([20, 20], [15, 15])
    broker.stop()


def test_a_partition_that_the_cluster_does_not_know_is_left_alone(broker: Broker, tmp_path: Path) -> None:
    log = broker.start().create("orders", TOPIC_ID, 0, OPTIONS)
    log.append(batch_of([b"x"]))
    broker.stop()
    logs = broker.start()
    assert logs.get(ORDERS) is None
    assert list(logs.strays) == [ORDERS]
    assert read_all(logs.create("orders", TOPIC_ID, 0, OPTIONS))[0].value == b"x"
    broker.stop()
    logs = broker.start()
    assert read_all(logs.create("orders", UUID(int=9), 0, OPTIONS)) == []
    assert [path for name in ("a", "b") for path in (tmp_path / name).glob("orders-0.*-stray")]


def test_checkpoints_are_in_the_text_form_of_kafka(broker: Broker, tmp_path: Path) -> None:
    logs = broker.start()
    for partition_id in (0, 2):
        log = logs.create("orders", TOPIC_ID, partition_id, OPTIONS)
        for _ in range(3):
            log.append(batch_of([b"x"]))
    logs.get(ORDERS).delete_records_before(2)
    logs.get(ORDERS).be_alone(4)
    broker.stop()
    directory = next(tmp_path / name for name in ("a", "b") if (tmp_path / name / "orders-0").exists())
    assert (directory / checkpoints.RECOVERY_POINTS).read_text() == "0\n1\norders 0 3\n"
    assert (directory / checkpoints.LOG_START_OFFSETS).read_text() == "0\n1\norders 0 2\n"
    assert (directory / "orders-0" / checkpoints.LEADER_EPOCHS).read_text() == "0\n2\n0 2\n4 3\n"
    assert (directory / "orders-0" / checkpoints.PARTITION_METADATA).read_text() == (
        f"version: 0\ntopic_id: {checkpoints.encode_uuid(TOPIC_ID)}"
    )
    meta = (directory / "meta.properties").read_text().splitlines()
    assert {"broker.id=1", "cluster.id=c", "version=0"} <= set(meta)


@pytest.mark.parametrize(("first", "then"), [(TOPIC_ID, NO_UUID), (NO_UUID, TOPIC_ID)])
def test_a_log_is_that_of_a_topic_whose_id_is_not_known(broker: Broker, first: UUID, then: UUID) -> None:
    logs = broker.start()
    log = logs.create("orders", first, 0, OPTIONS)
    assert logs.create("orders", then, 0, OPTIONS) is log
    assert log.topic_id == first
    if first != NO_UUID:
        with pytest.raises(ProtocolError):
            logs.create("orders", UUID(int=9), 0, OPTIONS)


def test_a_leader_epoch_is_known_before_the_log_is_open(broker: Broker) -> None:
    broker.start().create("orders", TOPIC_ID, 0, OPTIONS).append(batch_of([b"x"]))
    broker.known[ORDERS] = (TOPIC_ID, OPTIONS)
    broker.stop()
    log = broker.start().get(ORDERS)
    log.be_alone(2)
    checkpoint = Path(log.path) / checkpoints.LEADER_EPOCHS
    assert not log.is_open
    # Fetches are compared with the second before anybody opens the log.
    assert log.leader_epoch == log.state.leader_epoch == 2
    assert checkpoint.read_text() == "0\n1\n0 0\n"
    log.open()
    assert log.leader_epoch == 2
    assert checkpoint.read_text() == "0\n2\n0 0\n2 1\n"


def test_acks_wait_for_flushers_that_sync_each_partition_once_for_all_of_them(broker: Broker) -> None:
    logs = broker.start()
    log = logs.create("orders", TOPIC_ID, 0, LogOptions(flush_messages=1))

    def produce() -> None:
        for _ in range(50):
            log.append(batch_of([b"x"]))

    run_all(*[produce] * 4)
    assert log.recovery_point == log.log_end_offset == 200


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 0, 3_600_000])
@pytest.mark.parametrize(("flush_ms", "flushed"), [(3_000_000, 0), (0, 1)])
def test_records_older_than_flush_ms_are_flushed_whatever_the_clock_is_set_to(
    broker: Broker, flush_ms: int, flushed: int, set_by_ms: int
) -> None:
    broker.options = broker.options._replace(flusher_threads=0)  # the test is the flusher
    logs = broker.start()
    log = logs.create("orders", TOPIC_ID, 0, LogOptions(flush_ms=flush_ms))
    log.append(batch_of([b"x"]))
    broker.clock.set_by_ms = set_by_ms
    logs.flush_due()
    log.directory.stop_flushers()
    log.directory.run_flusher()  # until there is nothing that was asked for
    assert (log.recovery_point, log.directory.flush_count) == (flushed, flushed)


def test_a_log_that_gets_a_flush_ms_is_flushed_by_time_until_it_loses_it(broker: Broker) -> None:
    broker.options = broker.options._replace(flusher_threads=0)  # the test is the flusher
    logs = broker.start()
    log = logs.create("orders", TOPIC_ID, 0, LogOptions())
    flushed = []
    for flush_ms in (NEVER, 0, NEVER):
        log.update_options(LogOptions(flush_ms=flush_ms))
        log.append(batch_of([b"x"]))
        logs.flush_due()
        log.directory.stop_flushers()
        log.directory.run_flusher()
        flushed.append(log.directory.flush_count)
    assert flushed == [0, 1, 1]


def test_retention_goes_through_all_logs_and_files_go_after_the_delay(broker: Broker, tmp_path: Path) -> None:
    logs = broker.start()
    options = OPTIONS._replace(retention_ms=1000, file_delete_delay_ms=500)
    for partition_id in range(2):
        log = logs.create("orders", TOPIC_ID, partition_id, options)
        for _ in range(40):
            log.append(batch_of([b"x" * 100], broker.clock.now_ms))
    broker.clock.now_ms += 1001
    logs.check_retention()
    gone = list(tmp_path.rglob("*.deleted"))
    assert len(gone) > 10
    logs.run_due_jobs()
    assert list(tmp_path.rglob("*.deleted")) == gone
    broker.clock.now_ms += 500

    def all_are_gone() -> bool:
        # A flusher may hold the segments that were full: their files are looked at again a second later.
        logs.run_due_jobs()
        broker.clock.now_ms += 1000
        return not list(tmp_path.rglob("*.deleted"))

    wait_until(all_are_gone, "files of segments that nobody holds are gone")


def test_after_an_unclean_stop_all_logs_are_recovered_in_the_background(broker: Broker) -> None:
    logs = broker.start()
    for partition_id in range(20):
        broker.known[TopicPartition("orders", partition_id)] = TOPIC_ID, OPTIONS
        logs.create("orders", TOPIC_ID, partition_id, OPTIONS).append(batch_of([b"x"]))
    broker.kill()
    logs = broker.start(background=True)
    for thread in logs._recoverers:
        thread.join()
    assert all(log.is_open and log.log_end_offset == 1 for log in logs.logs())


def test_a_stop_that_had_no_time_leaves_no_clean_mark(broker: Broker, tmp_path: Path) -> None:
    logs = broker.start()
    log = logs.create("orders", TOPIC_ID, 0, OPTIONS)
    log.append(batch_of([b"x"]))
    broker.known[ORDERS] = TOPIC_ID, OPTIONS
    logs.stop(timeout_s=-1)
    directory = next(tmp_path / name for name in ("a", "b") if (tmp_path / name / "orders-0").exists())
    assert not (directory / CLEAN_MARK).exists()
    again = broker.start().get(ORDERS)
    assert again is not None
    assert again.log_end_offset == 1


@pytest.mark.parametrize("damage", ["gone", "half", "empty"])
def test_lost_recovery_points_lose_no_record(broker: Broker, tmp_path: Path, damage: str) -> None:
    """Records behind a gap stay too: nobody knows how far the log was flushed."""
    broker.options = StorageOptions((str(tmp_path / "a"),), flusher_threads=1)
    broker.known[ORDERS] = TOPIC_ID, OPTIONS
    log = broker.start().create("orders", TOPIC_ID, 0, OPTIONS)
    for at in range(200):
        log.append(batch_of([b"%d" % at * 20]))
    broker.stop()
    segments = sorted((tmp_path / "a" / "orders-0").glob("*.log"))
    for path in (tmp_path / "a" / "orders-0").glob(f"{segments[2].stem}*"):
        path.unlink()
    points = tmp_path / "a" / checkpoints.RECOVERY_POINTS
    if damage == "gone":
        points.unlink()
    else:
        points.write_text("0\n1\norde" if damage == "half" else "")
    (tmp_path / "a" / CLEAN_MARK).unlink(missing_ok=True)
    log = broker.start().get(ORDERS)
    assert log is not None
    read = [record.offset for record in read_all(log)]
    assert read[-1] == 199
    assert len(read) == 200 - (int(segments[3].stem) - int(segments[2].stem))


def test_a_checkpoint_cut_in_half_is_told_with_its_place(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.start()
    broker.stop()
    (tmp_path / "a" / checkpoints.RECOVERY_POINTS).write_text("0\n2\norders 0 17\norders")
    (tmp_path / "a" / checkpoints.LOG_START_OFFSETS).write_text("0\n2\norders 0 17\n")
    broker.start()
    lines = [line for line in caplog.messages if "checkpoint" in line]
    assert lines == [
        f"{tmp_path}/a/{checkpoints.RECOVERY_POINTS}: a checkpoint's entry of 1 fields instead of 3 at byte 16; "
        "every log is recovered from its start",
        f"{tmp_path}/a/{checkpoints.LOG_START_OFFSETS}: a checkpoint of 2 entries ends with 1 at byte 16; "
        "logs start with their first segments, records deleted from it return",
    ]


def test_a_program_may_have_deletion_policies_of_its_own(tmp_path: Path) -> None:
    def newest_only(view: LogView) -> int:
        return max(0, len(view.segments) - 1)

    logs = LogManager(StorageOptions((str(tmp_path),)), policies_for=lambda options: (newest_only,))
    logs.start(lambda at: None, background=False)
    log = logs.create("orders", TOPIC_ID, 0, OPTIONS)
    for at in range(200):
        log.append(batch_of([b"%d" % at * 20]))
    log.roll()
    log.append(batch_of([b"newest"]))
    logs.check_retention()
    assert [record.value for record in read_all(log)] == [b"newest"]
    logs.stop()


def test_a_segment_without_timestamps_is_as_old_as_its_file_after_a_restart(broker: Broker) -> None:
    """Messages of magic 0 have no timestamps; Kafka takes the time of the file's last change, too."""
    options = OPTIONS._replace(retention_ms=60_000)
    broker.known[ORDERS] = TOPIC_ID, options
    log = broker.start().create("orders", TOPIC_ID, 0, options)
    for at in range(200):
        log.append(batch_of([b"%d" % at * 20], -1))
    path = Path(log.path)
    broker.stop()
    now_s = broker.clock.now_ms / 1000
    segments = sorted(path.glob("*.log"))
    for number, segment in enumerate(segments):
        os.utime(segment, (now_s, now_s - (100 if number < 3 else 10)))
    logs = broker.start()
    logs.check_retention()
    kept = logs.get(ORDERS)
    assert kept is not None
    assert kept.log_start_offset == int(segments[3].stem)


def test_a_log_that_takes_the_place_of_a_deleted_one_is_refused_as_any_other_while_the_disk_is_full(
    tmp_path: Path,
) -> None:
    """The checkpoints are written first, lest they be taken for the new log's: that fails too."""
    is_full = False
    (tmp_path / "data").mkdir()
    fs = CrashFileSystem(tmp_path / "data", lambda call, _: errno.ENOSPC if is_full and call == "create" else 0)
    logs = LogManager(StorageOptions((str(fs.root),), flusher_threads=0), fs=fs)
    logs.start(lambda _: None, background=False)
    logs.create("orders", TOPIC_ID, 0, OPTIONS)
    logs.write_checkpoints()
    logs.delete(ORDERS)
    is_full = True
    with pytest.raises(StorageFailed, match="orders-0 cannot be created"):
        logs.create("orders", uuid4(), 0, OPTIONS)
    is_full = False
    logs.create("orders", uuid4(), 0, OPTIONS)
    logs.abandon()
