"""Many threads on one log: order, visibility, and no reader ever sees half a batch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker._core.wire.record_batch import batches
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch, read_records
from kbroker.storage.compaction import clean_log, cleanable_segments, groups_of
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.logs.home import TOPIC_ID, LogHome, batch_of, read_all
from tests.kit.threads import run_all

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def often() -> Iterator[None]:
    """Have Python's threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=[1 << 30, 1], ids=["page cache", "fsync before ack"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LogManager, Log]:
    options = LogOptions(
        segment_bytes=20_000, index_interval_bytes=500, flush_messages=request.param, file_delete_delay_ms=0
    )
    logs = LogManager(StorageOptions((str(tmp_path),), flusher_threads=2, max_open_segments=2))
    logs.start(lambda at: None, background=False)
    log = logs.create("orders", TOPIC_ID, 0, options)
    request.addfinalizer(logs.stop)
    return logs, log


def test_appends_of_many_threads_keep_each_ones_order_while_others_read(manager: tuple[LogManager, Log]) -> None:
    _, log = manager
    threads, each = 4, 150
    done = threading.Event()

    def produce(name: int) -> Callable[[], None]:
        def body() -> None:
            for at in range(each):
                log.append(batch_of([b"%d %d" % (name, at), b"x" * 200]))

        return body

    def consume() -> None:
        offset = 0
        seen: dict[bytes, int] = {}
        while not (done.is_set() and offset == log.log_end_offset):
            data = log.read(offset, 5000)
            for record in read_records(data, from_offset=offset):
                assert record.offset == offset
                offset += 1
                name, _, at = (record.value or b"").partition(b" ")
                if at:
                    assert int(at) == seen.get(name, -1) + 1
                    seen[name] = int(at)
        assert set(seen.values()) == {each - 1}

    def produce_all() -> None:
        try:
            run_all(*(produce(name) for name in range(threads)))
        finally:
            done.set()

    run_all(produce_all, consume, consume)
    assert log.log_end_offset == threads * each * 2


def test_a_reader_is_never_cut_off_by_retention(manager: tuple[LogManager, Log]) -> None:
    logs, log = manager
    log.update_options(
        LogOptions(
            segment_bytes=5000,
            index_interval_bytes=500,
            retention_ms=-1,
            retention_bytes=20_000,
            file_delete_delay_ms=0,
        )
    )
    done = threading.Event()

    def produce() -> None:
        for at in range(600):
            log.append(batch_of([b"%d" % at, b"x" * 200]))
        done.set()

    def retain() -> None:
        while not done.is_set():
            logs.check_retention()
            logs.run_due_jobs()

    def consume() -> None:
        offset = 0
        while not (done.is_set() and offset >= log.log_end_offset):
            try:
                data = log.read(offset, 3000)
            except ProtocolError as error:
                assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
                offset = log.log_start_offset
                continue
            for info in batches(data):
                assert info.base_offset <= offset <= info.last_offset or info.base_offset > offset
                offset = info.last_offset + 1

    run_all(produce, retain, consume, consume)
    assert log.log_start_offset > 0
    assert read_all(log)[-1].offset == 1199


def test_deleting_a_log_ends_its_appends_and_reads_with_an_error(manager: tuple[LogManager, Log]) -> None:
    logs, log = manager

    def until_deleted(body: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            while True:
                try:
                    body()
                except ProtocolError as error:
                    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    return

        return run

    def delete() -> None:
        while log.log_end_offset < 100:
            pass
        logs.delete(ORDERS)

    batch = batch_of([b"x" * 100])
    run_all(
        until_deleted(lambda: log.append(batch, wait=False)),
        until_deleted(lambda: log.append(batch, wait=False)),
        until_deleted(lambda: log.read(0, 1000)),
        delete,
    )


@pytest.mark.usefixtures("often")
def test_a_log_that_closes_between_two_looks_of_a_reader_is_opened_again(
    tmp_path: Path,
) -> None:
    """Such a read once ended the process with a segmentation fault, or got nothing. Deletion is like closing here."""
    log = LogHome(tmp_path).create()
    batch = batch_of([b"x" * 100])
    log.append(batch)
    done = threading.Event()

    def close() -> None:
        try:
            for _ in range(60):
                log.state.close()
                while log.state.state != "open":
                    pass
        finally:
            done.set()

    def consume() -> None:
        while not done.is_set():
            assert len(log.read(0, 1000)) == len(batch)

    run_all(close, consume, consume, consume)


@pytest.mark.usefixtures("often")
def test_no_committed_read_sees_a_transaction_that_is_appended_meanwhile(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(verify_transactions=False)).create()
    log.open()
    log.append(batch_of([b"first"]))
    reads = 0
    undecided: int | None = None
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        nonlocal reads
        state = log.state
        while not done.is_set():
            _, data = state.read(state.last_stable_offset - 1, 1 << 20, committed=True)
            newest = max(at.base_offset for at in batches(data))
            if undecided is not None and newest >= undecided:
                seen.append(newest)
            reads += 1

    def write() -> None:
        nonlocal undecided
        try:
            for at in range(4000):
                undecided = log.log_end_offset
                log.append(batch_of([b"x"], producer_id=7, producer_epoch=0, base_sequence=at, is_transactional=True))
                before = reads
                while reads < before + 2 and not seen:
                    os.sched_yield()
                undecided = None
                log.append_marker(7, 0, 1, commit=True)
                if seen:
                    break
        finally:
            done.set()

    run_all(read, write)
    assert not seen


def test_truncation_and_reads_do_not_meet(manager: tuple[LogManager, Log]) -> None:
    _, log = manager
    for at in range(300):
        log.append(batch_of([b"%d" % at]))
    done = threading.Event()

    def truncate() -> None:
        for offset in range(290, 0, -10):
            log.truncate_to(offset)
        done.set()

    def consume() -> None:
        while not done.is_set():
            try:
                for record in read_records(log.read(0, 100_000)):
                    assert record.value == b"%d" % record.offset
            except ProtocolError as error:
                assert error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR)

    run_all(truncate, consume, consume)
    assert log.log_end_offset == 10


class SlowDisk(RealFileSystem):
    """A disk on which no fdatasync ends before `go_on` is set. It counts them."""

    passthrough = False

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.syncs = 0
        self._lock = threading.Lock()

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self.syncs += 1
        assert self.go_on.wait(60)


def first_flush(log: Log, disk: SlowDisk) -> None:
    """Make the log's first flush, which also makes names and leader epoch durable."""
    disk.go_on.set()
    log.append(batch_of([b"x"]))
    disk.go_on.clear()
    disk.syncs = 0


def test_all_who_wait_for_a_flush_at_the_same_time_share_it(tmp_path: Path) -> None:
    count = 16
    disk = SlowDisk()
    home = LogHome(tmp_path, fs=disk, options=LogOptions(flush_messages=1))
    log = home.create()
    first_flush(log, disk)
    have_appended = threading.Semaphore(0)
    are_flushed = threading.Semaphore(0)

    def produce() -> None:
        offset = log.append(batch_of([b"x"]), wait=False).base_offset
        have_appended.release()
        log.flush()
        assert log.state.flushed_offset > offset
        are_flushed.release()

    def let_go() -> None:
        for _ in range(count):
            assert have_appended.acquire(timeout=60)
        disk.go_on.set()
        for _ in range(count):
            assert are_flushed.acquire(timeout=60)
        home.directory.stop_flushers()

    run_all(home.directory.run_flusher, let_go, *[produce] * count)
    assert log.log_end_offset == 1 + count
    # One for who was there when it began, one for all who came meanwhile.
    assert disk.syncs <= 2


def test_an_append_that_waits_is_flushed_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    home = LogHome(tmp_path, fs=disk, options=LogOptions(flush_messages=1))
    log = home.create()
    first_flush(log, disk)
    disk.go_on.set()
    for _ in range(5):
        offset = log.append(batch_of([b"x"])).base_offset
        assert log.state.flushed_offset == offset + 1
    # The flushers were asked as well, and find nothing to do.
    home.flush_requested()
    assert disk.syncs == 5


@pytest.mark.parametrize("is_open", [False, True], ids=["while it is opened", "while it is open"])
def test_a_leader_epoch_begins_with_the_first_batch_of_it(tmp_path: Path, is_open: bool) -> None:
    """The epoch once began some batches later.

    Therefore a consumer that had read records which a power cut took was not told that they were lost.
    """
    log = LogHome(tmp_path).create()
    log.append(batch_of([b"first"]))
    batch = batch_of([b"x"])
    done = threading.Event()
    appended = threading.Event()

    def produce() -> None:
        while not done.is_set():
            log.append(batch)
            appended.set()

    def let_it_append(frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        """Let the other thread append, if it can, before each line of log.py."""
        if not frame.f_code.co_filename.endswith("storage/log.py"):
            return None
        appended.wait(0.0005)
        appended.clear()
        return let_it_append

    def lead() -> None:
        sys.settrace(let_it_append)
        try:
            for epoch in range(1, 6):
                if not is_open:
                    log.close()
                log.be_alone(epoch)
                log.open()
        finally:
            sys.settrace(None)
            done.set()

    run_all(produce, lead)
    offset = 0
    while offset < log.log_end_offset:
        for at in batches(log.read(offset, 1 << 20)):
            assert log.epoch_at(at.base_offset) == at.leader_epoch, f"at offset {at.base_offset}"
            offset = at.last_offset + 1


# --- a reader of committed records is told of what was aborted, whatever becomes of the segments meanwhile


def append_aborted(log: Log) -> None:
    producer_id = log.log_end_offset
    record = (log.context.clock.wall_ms(), b"key", b"x")
    log.append(
        encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    log.append_marker(producer_id, 0, 1, commit=False)


@pytest.fixture
def aborting(tmp_path: Path) -> Log:
    """A log of many segments with an aborted transaction in each."""
    log = LogHome(tmp_path, options=LogOptions(verify_transactions=False, segment_bytes=400)).create()
    for _ in range(60):
        append_aborted(log)
        log.roll()
    append_aborted(log)
    return log


def read_until_done(log: Log, offset_of: Callable[[], int], done: threading.Event) -> list[int]:
    """Read until `done`; return the offsets where records were read without being told as aborted."""
    untold: list[int] = []
    while not done.is_set() and not untold:
        offset = offset_of()
        code, size, aborted = log.state.aborted(offset, 1 << 20)
        if code == 0 and size and not aborted:
            untold.append(offset)
    return untold


def test_who_reads_while_a_log_is_closed_is_told_of_what_was_aborted(aborting: Log) -> None:
    done = threading.Event()
    untold: list[int] = []

    def close() -> None:
        try:
            for _ in range(100):
                aborting.state.close()
                aborting.open()
        finally:
            done.set()

    def read() -> None:
        untold.extend(read_until_done(aborting, lambda: 0, done))

    run_all(close, read)
    assert untold == []


def test_who_reads_while_segments_are_deleted_is_told_of_what_was_aborted(aborting: Log) -> None:
    done = threading.Event()
    untold: list[int] = []

    def delete() -> None:
        try:
            while aborting.delete_old_segments((lambda view: min(1, len(view.segments) - 1),)):
                pass
        finally:
            done.set()

    def read() -> None:
        untold.extend(read_until_done(aborting, lambda: aborting.state.log_start_offset, done))

    run_all(delete, read)
    assert untold == []


def test_who_reads_while_segments_are_compacted_is_told_of_what_was_aborted(aborting: Log) -> None:
    """Two segments are merged. The records are in the second; their entry is in an index that begins before it then."""
    aborting.update_options(aborting.options._replace(compacted=True, deleted_by_retention=False))
    aborting.flush()
    groups = groups_of(cleanable_segments(aborting), aborting.options.segment_bytes, 1 << 20)
    seconds = [group[1] for group in groups]
    done = threading.Event()
    untold: list[int] = []

    def compact() -> None:
        try:
            clean_log(aborting, DedupeMap(1 << 16), 0, 1 << 16)
        finally:
            done.set()

    def read() -> None:
        for second in seconds:
            size = second.size
            while size == second.size and not done.is_set():
                _, size, aborted = aborting.state.aborted(second.base_offset, 1 << 20)
                if size == second.size and not aborted:
                    untold.append(second.base_offset)
                    return

    run_all(compact, read)
    assert untold == []


def test_a_lookup_by_time_finds_its_record_while_segments_are_compacted(tmp_path: Path) -> None:
    """The lookup once searched a compressed batch at a position of the replaced segment, or failed."""
    log = LogHome(tmp_path, options=LogOptions(segment_bytes=400, compacted=True, deleted_by_retention=False)).create()
    now_ms = log.context.clock.wall_ms()
    wanted = []
    for at in range(40):
        log.append(encode_batch([(now_ms + 10 * at, b"key", b"x" * (at + 1))], codec=Codec.GZIP))
        wanted.append((now_ms + 10 * at + 5, log.log_end_offset))
        log.append(encode_batch([(now_ms + 10 * at + 5, b"%d" % at, b"x")], codec=Codec.GZIP))
        log.roll()
    log.flush()
    done = threading.Event()

    def compact() -> None:
        try:
            clean_log(log, DedupeMap(1 << 16), 0, 1 << 16)
        finally:
            done.set()

    def look_up() -> None:
        while not done.is_set():
            for timestamp, offset in wanted:
                assert log.offset_for_timestamp(timestamp) == (timestamp, offset, 0)

    run_all(compact, look_up)
