"""Full disks, broken disks and short writes under a log."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, ProtocolError, StorageFailed
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints, file_names
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.crash.fs import CrashFileSystem, disk_full
from tests.kit.logs.home import TOPIC_ID, LogHome, batch_of, read_all
from tests.kit.parts.processors import wait_until

OPTIONS = LogOptions(segment_bytes=2000, index_interval_bytes=100)


def refused_with(log: Log, batch: bytes) -> ErrorCode:
    with pytest.raises(ProtocolError) as refused:
        log.append(batch)
    return refused.value.code


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond `size`, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_refuses_appends_and_the_log_goes_on_when_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogHome(tmp_path).create()
    for at in range(5):
        log.append(batch_of([b"%d" % at, b"x" * 100]))
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    size = path.stat().st_size
    with largest_file(size + 100):
        for _ in range(3):
            assert refused_with(log, batch_of([b"x" * 300])) is ErrorCode.KAFKA_STORAGE_ERROR
            assert path.stat().st_size == size
        assert len(read_all(log)) == 10
        assert not log.directory.is_offline
    assert [line for line in caplog.messages if "is full" in line] == [
        f"log directory {tmp_path} is full: orders-0 cannot be appended to until there is space"
    ]
    assert log.append(batch_of([b"on"])).base_offset == 10
    assert [record.value for record in read_all(log)][-1] == b"on"


@pytest.mark.parametrize("calls", range(60))
def test_space_may_run_out_at_any_call(tmp_path: Path, calls: int) -> None:
    left = [10_000]
    fs = CrashFileSystem(tmp_path, fault=disk_full(left))
    home = LogHome(tmp_path, fs=fs, options=OPTIONS)
    log = home.create()
    log.open()
    left[0] = calls
    accepted: list[bytes] = []
    refused = 0
    for at in range(60):
        value = b"%d" % at + b"x" * 100
        code, *_ = log.state.append(batch_of([value]), home.clock.now_ms)
        if code:
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            refused += 1
        else:
            accepted.append(value)
        if at == 40:
            left[0] = 10_000
    assert refused > 0 or calls > 50
    assert [record.value for record in read_all(log)] == accepted
    home.recovery_point = log.recovery_point
    assert [record.value for record in read_all(home.reopen(clean=False))] == accepted


CREATES_OF_A_ROLL = (file_names.LOG, file_names.INDEX, file_names.TIME_INDEX)


class NoRoomFor:
    """A file system on which a given file cannot be made for a while."""

    def __init__(self, name: str):
        self.name = name
        self.is_armed = False

    def __call__(self, call: str, what: object) -> int:
        return errno.ENOSPC if self.is_armed and call == "create" and str(what).endswith(self.name) else 0


def with_a_failed_roll(home: LogHome, fault: NoRoomFor) -> Log:
    """Return a log that could not roll at offset 5 and took three more records that still fitted."""
    log = home.create()
    for at in range(5):
        log.append(batch_of([b"%d" % at]))
    fault.is_armed = True
    with pytest.raises(StorageFailed):
        log.roll()
    for at in range(5, 8):
        assert log.append(batch_of([b"%d" % at])).base_offset == at
    return log


@pytest.mark.parametrize("suffix", CREATES_OF_A_ROLL)
@pytest.mark.parametrize("end", ["clean", "kill"])
def test_a_roll_without_space_leaves_nothing_that_ends_the_log(tmp_path: Path, suffix: str, end: str) -> None:
    fault = NoRoomFor(file_names.file_name(5, suffix))
    home = LogHome(tmp_path, fs=CrashFileSystem(tmp_path, fault=fault))
    log = with_a_failed_roll(home, fault)
    assert not log.directory.is_offline
    fault.is_armed = False
    if end == "clean":
        log.close()
    home.recovery_point = log.recovery_point
    log = home.reopen(clean=end == "clean")
    assert log.log_end_offset == 8
    assert [record.value for record in read_all(log)] == [b"%d" % at for at in range(8)]
    assert log.append(batch_of([b"8"])).base_offset == 8
    log.roll()
    assert [segment.base_offset for segment in log.state.segments()] == [0, 9]


@pytest.mark.parametrize("end", ["clean", "kill"])
def test_what_a_failed_roll_has_left_behind_does_not_end_the_log(tmp_path: Path, end: str) -> None:
    # As a power cut may bring it back: made, and its removal lost.
    home = LogHome(tmp_path)
    log = home.create()
    for at in range(8):
        log.append(batch_of([b"%d" % at]))
    log.flush()
    if end == "clean":
        log.close()
    home.recovery_point = 5 if end == "kill" else 8
    (tmp_path / "orders-0" / "00000000000000000005.log").touch()
    log = home.reopen(clean=end == "clean")
    assert log.log_end_offset == 8
    assert [record.value for record in read_all(log)] == [b"%d" % at for at in range(8)]
    assert not (tmp_path / "orders-0" / "00000000000000000005.log").exists()


@pytest.mark.parametrize("kept", range(4))
def test_a_kill_between_a_roll_and_its_indexes_leaves_the_log_whole(tmp_path: Path, kept: int) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    for at in range(5):
        log.append(batch_of([b"%d" % at]))
    home.abandon()
    for suffix in CREATES_OF_A_ROLL[:kept]:
        (tmp_path / "orders-0" / f"00000000000000000005{suffix}").touch()
    log = home.reopen(clean=False)
    assert log.append(batch_of([b"5"])).base_offset == 5
    assert [record.value for record in read_all(log)] == [b"%d" % at for at in range(6)]


class SlowWrites(RealFileSystem):
    """A file system on which a write takes longer than appends on a network thread should wait."""

    passthrough = False
    is_slow = False

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        started = time.monotonic()
        while self.is_slow and time.monotonic() - started < 0.11:
            threading.Event().wait(0.02)
        return super().pwrite(fd, data, position)


def test_a_slow_write_keeps_appends_off_the_processors_for_a_while(tmp_path: Path) -> None:
    fs = SlowWrites()
    log = LogHome(tmp_path, fs=fs).create()

    def is_stalled_by_an_append() -> bool:
        log.append(batch_of([b"x"]))
        return log.directory.is_stalled

    # Where this process stands still, a quick write is slow, or its while is over when it is asked for.
    wait_until(lambda: not is_stalled_by_an_append(), "a quick write")
    fs.is_slow = True
    wait_until(is_stalled_by_an_append, "a slow write")
    assert log.append(batch_of([b"x"])).base_offset == log.log_end_offset - 1  # on a thread that may wait


def test_short_writes_are_continued(tmp_path: Path) -> None:
    fs = CrashFileSystem(tmp_path, short_writes=random.Random(3))
    home = LogHome(tmp_path, fs=fs, options=OPTIONS)
    log = home.create()
    for at in range(100):
        log.append(batch_of([b"%d" % at * 20]))
    assert [record.value for record in read_all(log)] == [b"%d" % at * 20 for at in range(100)]


class Breaks:
    """Makes the n-th call of a given name fail, and no other call."""

    def __init__(self, call: str, code: int = errno.EIO):
        self.call = call
        self.code = code
        self.is_armed = False
        self.count = 0

    def __call__(self, call: str, what: object) -> int:
        if not self.is_armed or call != self.call:
            return 0
        self.count += 1
        return self.code if self.count == 1 else 0


@pytest.fixture
def brittle(tmp_path: Path) -> Iterator[tuple[LogManager, Log, Log, Breaks]]:
    """A broker with two directories, a log in each; the first directory's disk breaks on demand."""
    breaks = Breaks("fdatasync")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    fs = CrashFileSystem(tmp_path)
    options = StorageOptions((str(tmp_path / "a"), str(tmp_path / "b")), flusher_threads=1)
    logs = LogManager(options, fs=fs)
    logs.start(lambda at: None, background=False)
    first, second = (logs.create("orders", TOPIC_ID, at, LogOptions(flush_messages=1)) for at in range(2))
    first.append(batch_of([b"x"]))
    second.append(batch_of([b"x"]))
    fs.fault = breaks
    yield logs, first, second, breaks
    breaks.is_armed = False
    logs.stop()


@pytest.mark.parametrize("_", range(10))
def test_none_of_those_who_wait_for_a_failed_fsync_tries_it_again(
    brittle: tuple[LogManager, Log, Log, Breaks], _: int
) -> None:
    first, breaks = brittle[1], brittle[3]
    breaks.is_armed = True
    together = threading.Barrier(8)

    def append(number: int) -> ErrorCode | None:
        together.wait()
        try:
            first.append(batch_of([b"%d" % number]))
        except ProtocolError as refused:
            return refused.code
        except StorageFailed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return None

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(append, range(8)))
    assert answers == [ErrorCode.KAFKA_STORAGE_ERROR] * 8
    assert breaks.count == 1


def test_a_failed_fsync_takes_the_directory_offline_and_is_not_tried_again(
    brittle: tuple[LogManager, Log, Log, Breaks],
) -> None:
    logs, first, second, breaks = brittle
    breaks.is_armed = True
    with pytest.raises(StorageFailed):
        first.append(batch_of([b"y"]))
    assert first.directory.is_offline
    assert logs.offline_directories == [first.directory.path]
    assert first.state.state == "offline"
    assert refused_with(first, batch_of([b"z"])) is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ProtocolError) as refused:
        first.read(0, 100)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(StorageFailed):
        first.flush()
    assert breaks.count == 1
    # The other directory serves on, and new logs go there.
    assert second.append(batch_of([b"y"])).base_offset == 1
    assert logs.create("orders", TOPIC_ID, 2, LogOptions()).directory is second.directory


def test_an_io_error_in_a_write_takes_the_directory_offline(brittle: tuple[LogManager, Log, Log, Breaks]) -> None:
    _, first, second, breaks = brittle
    breaks.call = "pwrite"
    breaks.is_armed = True
    assert refused_with(first, batch_of([b"y"])) is ErrorCode.KAFKA_STORAGE_ERROR
    assert first.directory.is_offline
    assert second.append(batch_of([b"y"])).base_offset == 1


def test_a_directory_that_failed_is_not_marked_as_stopped_cleanly(
    brittle: tuple[LogManager, Log, Log, Breaks], tmp_path: Path
) -> None:
    logs, first, _, breaks = brittle
    breaks.is_armed = True
    with pytest.raises(StorageFailed):
        first.append(batch_of([b"y"]))
    breaks.is_armed = False
    logs.stop()
    marks = [(tmp_path / name / ".kafka_cleanshutdown").exists() for name in ("a", "b")]
    assert sorted(marks) == [False, True]


def test_a_checkpoint_that_cannot_be_synced_takes_the_directory_offline(
    brittle: tuple[LogManager, Log, Log, Breaks],
) -> None:
    logs, _, _, breaks = brittle
    breaks.is_armed = True
    logs.write_checkpoints()
    assert len(logs.offline_directories) == 1


def test_a_checkpoint_without_space_is_written_when_there_is_some(
    brittle: tuple[LogManager, Log, Log, Breaks], tmp_path: Path
) -> None:
    logs, first, _, breaks = brittle
    breaks.call, breaks.code = "pwrite", errno.ENOSPC
    breaks.is_armed = True
    logs.write_checkpoints()
    assert logs.offline_directories == []
    logs.write_checkpoints()
    path = f"{first.directory.path}/{checkpoints.RECOVERY_POINTS}"
    assert checkpoints.load_offsets(RealFileSystem(), path) == {first.topic_partition: 1}


@pytest.mark.parametrize("call", ["create", "pwrite"])
def test_a_log_that_a_full_disk_refused_is_made_when_there_is_space(
    brittle: tuple[LogManager, Log, Log, Breaks], call: str
) -> None:
    logs, _, _, breaks = brittle
    breaks.call, breaks.code = call, errno.ENOSPC
    breaks.is_armed = True
    with pytest.raises(StorageFailed, match="No space left"):
        logs.create("late", TOPIC_ID, 0, LogOptions())
    assert logs.create("late", TOPIC_ID, 0, LogOptions()).log_end_offset == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_index_that_cannot_be_synced_takes_the_directory_offline(
    brittle: tuple[LogManager, Log, Log, Breaks], code: int
) -> None:
    _, first, _, breaks = brittle
    first.flush()
    breaks.code = code
    breaks.is_armed = True
    with pytest.raises(StorageFailed):
        first.close()
    assert first.directory.is_offline
    assert breaks.count == 1


def test_a_read_that_fails_takes_the_directory_offline(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    for at in range(100):
        log.append(batch_of([b"%d" % at, b"x" * 100]))
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    (fd,) = (int(at.name) for at in Path("/proc/self/fd").iterdir() if at.is_symlink() and at.readlink() == path)
    # A file whose first bytes cannot be read: EIO.
    unreadable = os.open("/proc/self/mem", os.O_RDONLY)
    os.dup2(unreadable, fd, inheritable=False)
    os.close(unreadable)
    with pytest.raises(ProtocolError) as refused:
        log.read(0, 10_000)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.directory.is_offline


class UnreadableLogs(RealFileSystem):
    """A file system on which a hundred bytes of every .log cannot be read: EIO, from the kernel itself."""

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return super().open("/proc/self/mem" if path.endswith(file_names.LOG) else path, flags, mode)

    def file_size(self, fd: int) -> int:
        return super().file_size(fd) or 100


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_recovery_cannot_read_takes_the_directory_offline(tmp_path: Path, clean: bool) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    log.append(batch_of([b"x"]))
    log.close()
    home.context.fs = UnreadableLogs()
    with pytest.raises(StorageFailed, match="reading a segment"):
        home.reopen(clean=clean)
    assert home.directory.is_offline


def test_a_disk_that_breaks_while_a_log_is_made_is_offline(brittle: tuple[LogManager, Log, Log, Breaks]) -> None:
    logs, _, _, breaks = brittle
    breaks.call = "create"
    breaks.is_armed = True
    with pytest.raises(StorageFailed):
        logs.create("orders", TOPIC_ID, 7, LogOptions())
    assert len(logs.offline_directories) == 1
    assert logs.create("orders", TOPIC_ID, 7, LogOptions()).append(batch_of([b"x"])).base_offset == 0


@pytest.mark.parametrize("call", ["create", "open"])
def test_too_many_open_files_is_not_a_broken_disk(brittle: tuple[LogManager, Log, Log, Breaks], call: str) -> None:
    _, first, _, breaks = brittle
    breaks.call, breaks.code = call, errno.EMFILE
    breaks.is_armed = True
    with pytest.raises(StorageFailed):
        first.roll()
    assert not first.directory.is_offline
    assert not (Path(first.path) / "00000000000000000001.log").exists()
    assert first.append(batch_of([b"y"])).base_offset == 1
    first.roll()
    assert first.append(batch_of([b"y"])).base_offset == 2


def test_a_log_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs = LogManager(StorageOptions((str(tmp_path / "file" / "logs"),)))
    with pytest.raises(StorageFailed, match="cannot be made"):
        logs.start(lambda at: None)


def test_every_descriptor_is_given_back(tmp_path: Path) -> None:
    at = TopicPartition("orders", 0)
    gc.collect()  # what other tests have left
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        logs = LogManager(StorageOptions((str(tmp_path),), max_open_segments=2))
        logs.start({at: (TOPIC_ID, OPTIONS)}.get, background=False)
        log = logs.create("orders", TOPIC_ID, 0, OPTIONS)
        for _ in range(100):
            log.append(batch_of([b"x" * 100]))
        log.flush()
        log.roll()
        log.flush()
        read_all(log)
        assert sum(segment.is_open for segment in log.state.segments()) <= 4
        logs.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
