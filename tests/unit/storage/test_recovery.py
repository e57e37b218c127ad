"""What an unclean stop may leave in the files, and how recovery repairs it."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path
from uuid import UUID

import pytest

from kbroker._core.log.offset_index import offset_entries, timestamp_entries
from kbroker._core.log.scan.segment_scan import find_batch, scan_segment
from kbroker.errors import DiskDamaged, StorageFailed
from kbroker.storage import checkpoints
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, batch_of, read_all

OPTIONS = LogOptions(segment_bytes=1500, index_interval_bytes=200)


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=OPTIONS)


def fill(log: Log, count: int) -> None:
    for at in range(count):
        log.append(batch_of([b"%d" % at, b"x" * 50], 1000 + at * 10))


def values_of(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def expected(count: int) -> list[bytes]:
    return [value for at in range(count) for value in (b"%d" % at, b"x" * 50)]


def last_segment(home: LogHome) -> Path:
    return max(home.log_path.glob("*.log"))


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 60, 61, 100, 133])
def test_a_torn_tail_is_cut_at_the_last_whole_batch(home: LogHome, kept: int) -> None:
    fill(home.create(), 25)
    path = last_segment(home)
    batch = batch_of([b"99", b"x" * 50])
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(batch[:kept])
    log = home.reopen(clean=False)
    assert values_of(log) == expected(25)
    assert path.stat().st_size == size
    fill(log, 1)


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\xa5" * 5000, b"\xff" * 13], ids=["zeros", "rubbish", "ones"])
def test_garbage_behind_the_end_is_cut(home: LogHome, garbage: bytes) -> None:
    fill(home.create(), 25)
    with last_segment(home).open("ab") as file:
        file.write(garbage)
    assert values_of(home.reopen(clean=False)) == expected(25)


def test_an_old_batch_behind_the_end_is_not_taken_for_a_new_one(home: LogHome) -> None:
    fill(home.create(), 25)
    first = min(home.log_path.glob("*.log")).read_bytes()
    with last_segment(home).open("ab") as file:
        file.write(first)
    assert values_of(home.reopen(clean=False)) == expected(25)


def test_a_flipped_bit_cuts_the_log_there_and_the_segments_behind_go(home: LogHome) -> None:
    fill(home.create(), 40)
    paths = sorted(home.log_path.glob("*.log"))
    assert len(paths) > 3
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2] ^= 1
    paths[1].write_bytes(data)
    log = home.reopen(clean=False)
    end = log.log_end_offset // 2
    assert values_of(log) == expected(end)
    assert sorted(home.log_path.glob("*.log")) == paths[:2]
    assert log.recovery_point <= log.log_end_offset


def test_what_lies_below_the_recovery_point_is_not_read_again(home: LogHome) -> None:
    log = home.create()
    fill(log, 40)
    log.flush()
    home.recovery_point = log.recovery_point
    path = min(home.log_path.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert home.reopen(clean=False).log_end_offset == 80


def test_indexes_are_made_again_as_they_were(home: LogHome) -> None:
    log = home.create()
    fill(log, 40)
    log.close()
    names = [path.name for suffix in (".index", ".timeindex") for path in home.log_path.glob(f"*{suffix}")]
    before = {name: (home.log_path / name).read_bytes() for name in names}
    for name in names:
        (home.log_path / name).write_bytes(b"rubbish")
    home.reopen(clean=False)
    for name in names:
        entries = offset_entries if name.endswith(".index") else timestamp_entries
        after = (home.log_path / name).read_bytes()
        # Of a batch of several records the log notes the newest record, recovery the batch's last.
        assert [at[0] for at in entries(after)] == [at[0] for at in entries(before[name])][: len(entries(after))]
        assert len(entries(before[name])) - len(entries(after)) in (0, 1)
    assert sum(len(data) for data in before.values()) > 100


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_made_again_after_a_clean_stop(home: LogHome, suffix: str) -> None:
    log = home.create()
    fill(log, 40)
    log.close()
    for path in home.log_path.glob(f"*{suffix}"):
        path.unlink()
    log = home.reopen(clean=True)
    assert values_of(log) == expected(40)
    assert log.offset_for_timestamp(1200)[:2] == (1200, 40)


@pytest.mark.parametrize("position", [-5, 1, 700, 1 << 30], ids=["below zero", "in a batch", "in another", "beyond"])
def test_an_index_entry_that_is_wrong_is_passed_over_after_a_clean_stop(home: LogHome, position: int) -> None:
    log = home.create()
    fill(log, 40)
    log.close()
    index = min(home.log_path.glob("*.index"))
    relative_offset, right = struct.unpack_from(">ii", index.read_bytes(), 8)
    with index.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack(">i", position if abs(position) > 600 else right + position))
    log = home.reopen(clean=True)
    assert values_of(log) == expected(40)
    for offset in range(80):
        assert read_all(log, offset)[0].offset == offset, relative_offset
    assert not home.directory.is_offline


def test_leader_epochs_come_back_from_the_batches(home: LogHome) -> None:
    log = home.create()
    for epoch in (0, 3, 4):
        log.be_alone(epoch)
        fill(log, 10)
    (home.log_path / checkpoints.LEADER_EPOCHS).write_text("rubbish")
    log = home.reopen(clean=False)
    assert log.end_offset_for_epoch(0) == (0, 20)
    assert log.end_offset_for_epoch(2) == (0, 20)
    assert log.end_offset_for_epoch(3) == (3, 40)
    assert log.end_offset_for_epoch(4) == (4, 60)
    assert log.end_offset_for_epoch(5) == (-1, -1)
    assert [log.epoch_at(offset) for offset in (0, 19, 20, 59)] == [0, 0, 3, 4]


def test_leftovers_of_an_interrupted_deletion_or_compaction_are_finished(home: LogHome) -> None:
    fill(home.create(), 40)
    first, second, *_ = sorted(home.log_path.glob("*.log"))
    old = home.log_path / "00000000000000000000.index"
    shutil.copy(first, home.log_path / "00000000000000000900.log.deleted")
    shutil.copy(first, home.log_path / "00000000000000000901.log.cleaned")
    shutil.copy(old, home.log_path / "00000000000000000700.index")
    shutil.copy(first, home.log_path / "00000000000000000000.log.tmp")
    # The first two segments were compacted into one.
    (home.log_path / "00000000000000000000.log.swap").write_bytes(first.read_bytes() + second.read_bytes())
    assert values_of(home.reopen(clean=False)) == expected(40)
    names = sorted(path.name for path in home.log_path.iterdir())
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap", ".tmp"))]
    assert "00000000000000000700.index" not in names
    assert second.name not in names


def test_a_swap_that_was_not_complete_is_undone(home: LogHome) -> None:
    fill(home.create(), 40)
    first, second, *_ = sorted(home.log_path.glob("*.log"))
    shutil.copy(first, home.log_path / "00000000000000000000.log.cleaned")
    shutil.copy(second, home.log_path / (second.name + ".swap"))
    assert values_of(home.reopen(clean=False)) == expected(40)


def test_a_log_that_lost_more_than_was_deleted_goes_on_from_its_start_offset(home: LogHome) -> None:
    log = home.create()
    fill(log, 40)
    log.delete_records_before(77)
    for path in home.log_path.iterdir():
        path.unlink()
    log = home.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (77, 77)
    assert log.append(batch_of([b"on"])).base_offset == 77


def test_progress_is_told_while_a_segment_is_read(home: LogHome) -> None:
    fill(home.create(), 40)
    read: list[int] = []
    path = min(home.log_path.glob("*.log"))
    with path.open("rb") as file:
        scan = scan_segment(file.fileno(), path.stat().st_size, 0, progress=read.append)
    assert sum(read) == scan.valid_size == path.stat().st_size


def test_an_unreadable_file_is_an_error_and_not_an_empty_log(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="reading a segment"):
            scan_segment(fd, 100, 0)
        with pytest.raises(OSError, match="reading a segment"):
            find_batch(fd, 100)
    finally:
        os.close(fd)


def old_message(offset: int, magic: int, value: bytes) -> bytes:
    """Return a message of magic 0 or 1 as in Kafka: offset, size, crc, magic, attributes, (timestamp,) key, value."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 5000 + offset) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def test_messages_of_the_old_formats_are_walked_too(tmp_path: Path) -> None:
    data = b"".join(old_message(at, at % 2, b"v" * at) for at in range(10))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data + data[:30])
    with path.open("rb") as file:
        scan = scan_segment(file.fileno(), path.stat().st_size, 0)
    assert (scan.valid_size, scan.next_offset, scan.max_timestamp) == (len(data), 10, 5009)
    broken = bytearray(data)
    broken[-1] ^= 1
    path.write_bytes(broken)
    with path.open("rb") as file:
        assert scan_segment(file.fileno(), len(data), 0).next_offset == 9


def test_a_log_of_old_messages_is_served_and_looked_up(home: LogHome) -> None:
    home.create()
    body = b"".join(old_message(at, 1, b"v") for at in range(20))
    (home.log_path / "00000000000000000000.log").write_bytes(body)
    log = home.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (0, 20)
    assert log.read(0, 10_000) == body
    assert log.read(7, 1) == old_message(7, 1, b"v")
    assert log.offset_for_timestamp(5007)[:2] == (5007, 7)
    assert log.append(batch_of([b"new"])).base_offset == 20


def without_one_in_the_middle(home: LogHome) -> list[bytes]:
    """Empty one segment in the middle of a log, as compaction does; return what the log still holds."""
    log = home.create()
    fill(log, 60)
    segments = sorted(home.log_path.glob("*.log"))
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        segments[2].with_suffix(suffix).unlink()
    first, last = int(segments[2].stem), int(segments[3].stem)
    return [value for at, value in enumerate(expected(60)) if not first <= at < last]


def test_a_log_that_may_have_been_compacted_keeps_what_is_behind_a_gap(home: LogHome) -> None:
    kept = without_one_in_the_middle(home)
    home.options = OPTIONS._replace(may_have_gaps=True)
    assert values_of(home.reopen(clean=False)) == kept
    home.options = OPTIONS
    assert len(values_of(home.reopen(clean=False))) < len(kept), "of others it was never promised"


@pytest.mark.parametrize("clean", [True, False])
def test_a_foreign_file_is_left_alone_with_a_line(home: LogHome, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    log = home.create()
    fill(log, 20)
    log.close()
    home.recovery_point = 40
    foreign = ("notes.txt", "00000000000000000000.log~", "backup.tmp", "00000000000000000003.lag")
    for name in foreign:
        (home.log_path / name).write_text("not ours")
    (home.log_path / "folder").mkdir()
    (home.log_path / "leader-epoch-checkpoint.tmp").write_text("half")
    (home.log_path / "00000000000000000900.snapshot").write_text("beyond the log")
    assert values_of(home.reopen(clean=clean)) == expected(20)
    assert {name for name in foreign if (home.log_path / name).read_text() == "not ours"} == set(foreign)
    told = sorted(line for line in caplog.messages if "is left alone" in line)
    assert told == [
        f"{home.log_path}/{name} is left alone: it is no file of a log" for name in sorted((*foreign, "folder"))
    ]
    assert not (home.log_path / "leader-epoch-checkpoint.tmp").exists()
    assert not (home.log_path / "00000000000000000900.snapshot").exists()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, -1])
def test_an_index_longer_than_its_log_is_made_anew_and_told(
    home: LogHome, clean: bool, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    fill(log, 60)
    log.close()
    home.recovery_point = 120
    path = sorted(home.log_path.glob("*.index"))[number]
    right, size = path.read_bytes(), path.with_suffix(".log").stat().st_size
    path.write_bytes(right + struct.pack(">ii", 50, size + 7))
    log = home.reopen(clean=clean)
    assert values_of(log) == expected(60)
    log.close()
    assert path.read_bytes() == right
    told = [line for line in caplog.messages if "indexes are made anew" in line]
    if clean or number == 0:  # the newest is read after an unclean stop whatever its index says
        assert told == [
            f"{path}: its last entry points to byte {size + 7} of {size}, before byte {len(right) + 8}; "
            "indexes are made anew"
        ]


def test_bytes_behind_the_entries_of_an_index_are_told(home: LogHome, caplog: pytest.LogCaptureFixture) -> None:
    log = home.create()
    fill(log, 60)
    log.close()
    path = min(home.log_path.glob("*.timeindex"))
    right = path.read_bytes()
    path.write_bytes(right + b"half")
    log = home.reopen(clean=True)
    assert values_of(log) == expected(60)
    assert path.read_bytes() == right
    what = f"{path}: 4 bytes behind its last entry, before byte {len(right) + 4}; indexes are made anew"
    assert what in caplog.messages


@pytest.mark.parametrize("torn", [None, "", "version: 0\ntopic_id: ", "\0" * 43])
def test_a_lost_topic_id_is_written_anew(home: LogHome, torn: str | None, caplog: pytest.LogCaptureFixture) -> None:
    fill(home.create(), 3)
    path = home.log_path / "partition.metadata"
    right = path.read_text()
    path.unlink()
    if torn is not None:
        path.write_text(torn)
    assert values_of(home.reopen(clean=True)) == expected(3)
    assert path.read_text() == right
    assert f"{path} was missing or damaged, and is written anew" in caplog.messages


def test_a_log_of_another_topic_is_not_served_and_told_once(home: LogHome, caplog: pytest.LogCaptureFixture) -> None:
    log = home.create()
    fill(log, 3)
    log.close()
    path = home.log_path / "partition.metadata"
    checkpoints.store_topic_id(home.fs, str(path), UUID(int=5))
    for _ in range(2):
        with pytest.raises(DiskDamaged, match="of another topic, which is not served, at byte 11; move"):
            log.open()
    (told,) = [line for line in caplog.messages if "another topic" in line]
    assert told.startswith(f"orders-0: {path}: topic_id AAAAAAAAAAAAAAAAAAAABQ, the topic of this name has ")
    assert "remove this file if the log is that topic's" in told, "one digit of the id may have been damaged"
    path.unlink()
    assert values_of(log) == expected(3)
    assert checkpoints.load_topic_id(home.fs, str(path)) == log.topic_id


def test_why_a_log_cannot_be_opened_is_told_once(home: LogHome, caplog: pytest.LogCaptureFixture) -> None:
    log = home.create()
    fill(log, 3)
    log.close()
    segment = last_segment(home)
    moved = segment.rename(home.path / "aside")
    segment.mkdir()
    for _ in range(2):
        with pytest.raises(StorageFailed):
            log.open()
    (told,) = caplog.messages
    assert str(segment) in told and "Is a directory" in told
    segment.rmdir()
    moved.rename(segment)
    assert values_of(log) == expected(3)


def test_damaged_leader_epochs_are_told_with_their_place(home: LogHome, caplog: pytest.LogCaptureFixture) -> None:
    log = home.create()
    log.be_alone(3)
    fill(log, 3)
    log.close()
    path = home.log_path / "leader-epoch-checkpoint"
    right = path.read_text()
    path.write_text(right[:-2])
    home.reopen(clean=True)
    assert path.read_text() == right
    (told,) = [line for line in caplog.messages if str(path) in line]
    assert "at byte" in told and told.endswith("it is made anew from the log")
