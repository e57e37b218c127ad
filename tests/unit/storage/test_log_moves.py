"""A log moves to another log directory: it serves on, and there is nothing else in it than before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.errors import ErrorCode, ProtocolError, StorageFailed
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.protocol.records import read_records
from kbroker.storage import checkpoints
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.log_moves import RETRY_S
from kbroker.storage.options import LogOptions, StorageOptions
from kbroker.storage.retention import policies_for
from tests.kit.logs.home import TOPIC_ID, batch_of
from tests.kit.parts.processors import wait_until

ORDERS = TopicPartition("orders", 0)
SMALL = LogOptions(segment_bytes=2000, index_interval_bytes=100, file_delete_delay_ms=0)


class Disks:
    """Log directories with one manager at a time, whose mover the test drives, unless it runs by itself."""

    def __init__(self, *folders: Path):
        self.folders = folders
        self.managers: list[LogManager] = []

    def start(self, *, background: bool = False, options: LogOptions = SMALL) -> LogManager:
        made = LogManager(StorageOptions(tuple(map(str, self.folders)), flusher_threads=1))
        self.managers.append(made)
        known = {ORDERS: (TOPIC_ID, options)}
        made.start(known.get, background=background)
        return made

    def close(self) -> None:
        for manager in self.managers:
            manager.stop()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path / "one", tmp_path / "two")
    yield made
    made.close()


def made_log(manager: LogManager, options: LogOptions = SMALL) -> Log:
    log = manager.create("orders", TOPIC_ID, 0, options)
    log.be_alone(3)
    log.open()
    return log


def other(disks: Disks, log: Log) -> Path:
    (found,) = (folder for folder in disks.folders if str(folder) != log.directory.path)
    return found


def values(log: Log, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while offset + len(found) < log.log_end_offset:
        for record in read_records(log.read(offset + len(found), 1 << 20)):
            if record.offset >= offset + len(found):
                found.append(record.value or b"")
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def files(folder: Path) -> dict[str, bytes]:
    suffixes = (".log", ".index", ".timeindex", ".txnindex", checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA)
    return {
        path.name: path.read_bytes().rstrip(b"\0") for path in sorted(folder.iterdir()) if path.name.endswith(suffixes)
    }


def move(manager: LogManager, log: Log, folder: Path) -> None:
    manager.moves.move(ORDERS, log, str(folder))


def finish(manager: LogManager, log: Log) -> None:
    while log.copy is not None:
        assert manager.moves.step(log) == 0


def test_a_log_goes_on_in_the_other_directory_with_the_same_files(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    for number in range(100):
        log.append(batch_of([b"%d" % number] * 3))
        if number == 50:
            log.be_alone(7)
    before_folder, target = Path(log.directory.path), other(disks, log)
    state, before = log.state, files(before_folder / "orders-0")
    move(manager, log, target)
    assert names(target)[0].startswith("orders-0.")
    assert names(target)[0].endswith("-future")
    finish(manager, log)
    assert names(target) == ["orders-0"]
    assert (log.directory.path, log.path) == (str(target), f"{target}/orders-0")
    assert log.state is state
    assert log.leader_epoch == 7
    log.append(batch_of([b"later"]))
    assert values(log) == [b"%d" % number for number in range(100) for _ in range(3)] + [b"later"]
    assert log.epochs == [(3, 0), (7, 153)]
    log.close()
    after = files(target / "orders-0")
    assert after.keys() == before.keys()
    assert all(after[name].startswith(data) for name, data in before.items() if name.endswith(".log"))
    manager.run_due_jobs()
    assert names(before_folder) == []


def test_a_leader_keeps_the_epoch_that_it_has_appended_nothing_in_yet(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    log.lead(4, {2: -1}, [1, 2])
    log.append(batch_of([b"one", b"two"]))
    log.lead(5, {2: -1}, [1, 2])
    before = log.epochs
    move(manager, log, other(disks, log))
    finish(manager, log)
    assert log.epochs == before == [(4, 0), (5, 2)]
    log.append(batch_of([b"three"]))
    assert log.epochs == before, "or a follower that has this record would not be known to have it"


def test_a_restart_finds_the_log_where_it_has_gone(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    for number in range(50):
        log.append(batch_of([b"%d" % number]))
    log.delete_records_before(20)
    target = other(disks, log)
    move(manager, log, target)
    finish(manager, log)
    assert (log.log_start_offset, log.log_end_offset) == (20, 50)
    manager.abandon()
    again = disks.start().get(ORDERS)
    assert again is not None
    assert (again.directory.path, again.log_start_offset, again.log_end_offset) == (str(target), 20, 50)
    assert values(again, 20) == [b"%d" % number for number in range(20, 50)]


def test_appends_go_on_while_the_log_moves(disks: Disks) -> None:
    manager = disks.start(background=True)
    log = made_log(manager, SMALL._replace(segment_bytes=200_000))
    ended = threading.Event()
    appended: list[bytes] = []

    def append() -> None:
        while not ended.is_set():
            value = b"%d" % len(appended)
            log.append(batch_of([value]))
            appended.append(value)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        for _ in range(5):
            target = other(disks, log)
            move(manager, log, target)
            wait_until(lambda: log.copy is None, "the move to end")
            assert log.directory.path == str(target)
    finally:
        ended.set()
        thread.join()
    assert values(log) == appended


def test_the_size_is_known_while_the_log_has_no_directory(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Between(RealFileSystem):
        """Has another thread ask for the size once the old directory has lost its name."""

        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            if new.endswith("-delete"):
                asking = threading.Thread(target=lambda: sizes.append(log.size))
                asking.start()
                asking.join(0.1)
                asks.append(asking)

    asks: list[threading.Thread] = []
    folders = (str(tmp_path / "one"), str(tmp_path / "two"))
    manager = LogManager(StorageOptions(folders, flusher_threads=1), fs=Between())
    manager.start({ORDERS: (TOPIC_ID, SMALL)}.get, background=False)
    log = made_log(manager)
    log.append(batch_of([b"record"]))
    size = log.size
    move(manager, log, Path(next(folder for folder in folders if folder != log.directory.path)))
    finish(manager, log)
    (asking,) = asks
    asking.join()
    manager.stop()
    assert sizes == [size] != [0]


def test_waiting_acks_are_released_by_flushes_of_the_new_directory(disks: Disks) -> None:
    manager = disks.start(background=True)
    log = made_log(manager, SMALL._replace(flush_messages=1, segment_bytes=200_000))
    ended = threading.Event()
    counts = [0, 0, 0]

    def append(which: int) -> None:
        while not ended.is_set():
            log.append(batch_of([b"x"]))  # returns once it is flushed
            counts[which] += 1

    threads = [threading.Thread(target=append, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            move(manager, log, other(disks, log))
            wait_until(lambda: log.copy is None, "the move to end")
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert log.log_end_offset == sum(counts)
    assert log.state.flushed_offset == log.log_end_offset


def test_what_is_cut_off_meanwhile_is_cut_off_the_copy_too(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    for number in range(10):
        log.append(batch_of([b"old %d" % number]))
    target = other(disks, log)
    move(manager, log, target)
    assert log.copy is not None
    assert log.copy_to(log.copy) > 0
    log.truncate_to(4)
    for number in range(4, 12):
        log.append(batch_of([b"new %d" % number]))
    finish(manager, log)
    assert log.directory.path == str(target)
    wanted = [b"old %d" % number for number in range(4)] + [b"new %d" % number for number in range(4, 12)]
    assert values(log) == wanted


def test_a_log_that_begins_anew_meanwhile_does_so_in_the_copy(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    log.append(batch_of([b"old"] * 5))
    move(manager, log, other(disks, log))
    assert log.copy is not None
    log.copy_to(log.copy)
    log.begin_at(100)
    log.append(batch_of([b"new"]))
    finish(manager, log)
    assert (log.log_start_offset, log.log_end_offset) == (100, 101)
    assert values(log, 100) == [b"new"]


def test_segments_that_retention_deletes_are_not_missed(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    for number in range(200):
        log.append(batch_of([b"%d" % number]))
    move(manager, log, other(disks, log))
    assert log.copy is not None
    log.copy_to(log.copy, 1000)
    log.delete_records_before(150)
    log.delete_old_segments(policies_for(SMALL._replace(retention_ms=-1)))
    finish(manager, log)
    assert log.log_start_offset == 150
    assert values(log, 150) == [b"%d" % number for number in range(150, 200)]


def test_open_transactions_and_producers_move_along(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager, SMALL._replace(verify_transactions=False))
    log.append(batch_of([b"open"], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.append(batch_of([b"other"]))
    move(manager, log, other(disks, log))
    finish(manager, log)
    assert (log.last_stable_offset, log.high_watermark) == (0, 2)
    assert [each.producer_id for each in log.active_producers()] == [7]
    log.append_marker(7, 0, 0, commit=False)
    assert log.last_stable_offset == 3
    assert log.aborted_transactions(0, 1 << 20) == [(7, 0)]


def test_a_move_may_be_turned_round_or_taken_back(tmp_path: Path) -> None:
    disks = Disks(*(tmp_path / name for name in ("one", "two", "three")))
    manager = disks.start()
    log = made_log(manager)
    log.append(batch_of([b"x"]))
    here = Path(log.directory.path)
    second, third = (folder for folder in disks.folders if folder != here)
    move(manager, log, second)
    first_copy = log.copy
    move(manager, log, second)
    assert log.copy is first_copy
    move(manager, log, third)
    assert log.copy is not None
    assert log.copy.directory.path == str(third)
    manager.run_due_jobs()
    assert names(second) == []
    move(manager, log, here)
    assert log.copy is None
    manager.run_due_jobs()
    assert (names(here), names(third)) == (["orders-0"], [])
    disks.close()


def test_a_directory_that_is_none_or_has_failed_is_refused(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    with pytest.raises(ProtocolError) as refused:
        move(manager, log, Path("/nowhere"))
    assert refused.value.code == ErrorCode.LOG_DIR_NOT_FOUND
    target = other(disks, log)
    next(each for each in manager.directories if each.path == str(target)).fail("as a test wants it")
    with pytest.raises(ProtocolError) as refused:
        move(manager, log, target)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_failed_directory_ends_the_move_and_the_log_stays(disks: Disks) -> None:
    manager = disks.start(background=True)
    log = made_log(manager)
    manager.moves.set_rate(0)
    log.append(batch_of([b"x"] * 100))
    manager.moves.throttle.record(1)
    target = other(disks, log)
    move(manager, log, target)
    next(each for each in manager.directories if each.path == str(target)).fail("as a test wants it")
    wait_until(lambda: log.copy is None, "the move to end")
    log.append(batch_of([b"on"]))
    assert log.directory.path != str(target)


def test_a_topic_that_is_deleted_takes_its_copy_along(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    move(manager, log, other(disks, log))
    manager.delete(ORDERS)
    manager.run_due_jobs()
    assert [names(folder) for folder in disks.folders] == [[], []]


def test_a_log_that_is_not_there_yet_is_made_where_it_is_wanted(disks: Disks) -> None:
    manager = disks.start()
    wanted = disks.folders[1]
    for number in range(5):
        manager.create("orders", TOPIC_ID, number + 1, SMALL)
    manager.moves.move(ORDERS, None, str(wanted))
    assert made_log(manager).directory.path == str(wanted)


def test_an_unfinished_copy_is_removed_and_the_move_begins_anew(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    for number in range(10):
        log.append(batch_of([b"%d" % number]))
    target = other(disks, log)
    move(manager, log, target)
    assert log.copy is not None
    log.copy_to(log.copy, 100)
    manager.stop()
    again = disks.start(background=True)
    moved = again.get(ORDERS)
    assert moved is not None
    wait_until(lambda: moved.directory.path == str(target), "the move")
    assert values(moved) == [b"%d" % number for number in range(10)]
    wait_until(lambda: names(target) == ["orders-0"], "the old copy to go")


def test_a_move_that_was_interrupted_between_its_two_renames_is_finished_by_the_start(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    log.append(batch_of([b"x"]))
    here, target = Path(log.directory.path), other(disks, log)
    move(manager, log, target)
    finish(manager, log)
    manager.abandon()
    # As a kill leaves it: the old directory has its new name, the copy not yet its own.
    (target / "orders-0").rename(target / f"orders-0.{0:032x}-future")
    assert all(name.endswith("-delete") for name in names(here))
    assert names(here)
    again = disks.start().get(ORDERS)
    assert again is not None
    assert (again.directory.path, values(again)) == (str(target), [b"x"])


def test_a_copy_whose_log_may_be_in_a_failed_directory_is_left_alone(disks: Disks, tmp_path: Path) -> None:
    one, two = disks.folders
    for folder in disks.folders:
        folder.mkdir()
    (one / f"orders-0.{0:032x}-future").mkdir()
    (one / f"orders-0.{0:032x}-delete").mkdir()
    two.chmod(0o000)
    try:
        manager = disks.start()
        assert manager.get(ORDERS) is None or len(manager.offline_directories) == 0
        if manager.offline_directories:
            assert f"orders-0.{0:032x}-future" in names(one)
    finally:
        two.chmod(0o755)


def test_another_topic_of_the_same_name_gets_no_old_copy(disks: Disks) -> None:
    one = disks.folders[0]
    for folder in disks.folders:
        folder.mkdir()
    (one / f"orders-0.{0:032x}-future").mkdir()
    manager = disks.start()
    assert manager.get(ORDERS) is None
    made = manager.create("orders", UUID(int=5), 0, SMALL)
    assert made.log_end_offset == 0
    assert f"orders-0.{0:032x}-future" in names(one)


def test_copying_keeps_to_its_rate(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    for _ in range(10):
        log.append(batch_of([b"x" * 500]))
    manager.moves.start()
    manager.moves.set_rate(1)
    manager.moves.throttle.record(100_000)
    move(manager, log, other(disks, log))
    wait_until(lambda: log.copy is None, "the move", 0.3, fails=False)
    assert log.copy is not None
    assert log.copy.log_end_offset == 0
    manager.moves.set_rate((1 << 63) - 1)
    wait_until(lambda: log.copy is None, "the move")


def test_a_rate_that_changes_just_before_the_wait_is_not_missed(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = disks.start()
    log = made_log(manager)

    class Changing:
        """A throttle that is lifted between a look at it and the wait for that long."""

        lifts = threading.Thread(target=lambda: manager.moves.set_rate((1 << 63) - 1))
        rate = 0

        def wait_ms(self) -> int:
            if self.rate:
                return 0
            self.lifts.start()
            self.lifts.join(0.2)
            return 3_600_000

        def record(self, size: int) -> None:
            pass

    monkeypatch.setattr(manager.moves, "throttle", Changing())
    manager.moves.start()
    move(manager, log, other(disks, log))
    wait_until(lambda: log.copy is None, "the move")


def test_options_that_change_meanwhile_are_those_of_the_copy_too(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager)
    move(manager, log, other(disks, log))
    log.update_options(SMALL._replace(segment_bytes=5000))
    assert log.copy is not None
    assert log.copy.options.segment_bytes == 5000


def test_a_compacted_log_is_not_cleaned_while_it_moves_and_remembers_what_was(disks: Disks) -> None:
    manager = disks.start()
    log = made_log(manager, SMALL._replace(compacted=True, deleted_by_retention=False))
    home = manager._home_of(log.directory)
    home.cleaned.store(ORDERS, 5)
    move(manager, log, other(disks, log))
    assert log not in manager.cleaner._logs()
    finish(manager, log)
    assert log in manager.cleaner._logs()
    assert manager._home_of(log.directory).cleaned.get(ORDERS) == 5


def test_a_full_disk_is_told_once_and_tried_again(disks: Disks, caplog: pytest.LogCaptureFixture) -> None:
    manager = disks.start()
    log = made_log(manager)
    log.append(batch_of([b"x"]))
    move(manager, log, other(disks, log))
    copy = log.copy
    assert copy is not None

    def refuse(_: object) -> int:
        raise StorageFailed("no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "copy_to", refuse)
        assert [manager.moves.step(log) for _ in range(3)] == [RETRY_S] * 3
    assert [each.getMessage() for each in caplog.records if "does not move" in each.getMessage()] == [
        "orders-0 does not move now: no space"
    ]
    finish(manager, log)
    assert log.directory is copy.directory
