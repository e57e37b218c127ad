"""After a bit flip in a small file without a check sum, nothing is deleted, fenced or cut against what the log says."""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path

import pytest

from kbroker._core.wire.crc import crc32c_of
from kbroker.errors import KbrokerError, ProtocolError
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.protocol.records import Record, encode_batch
from kbroker.storage import checkpoints
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.committed import read_committed
from tests.kit.logs.home import LogHome, batch_of, read_all

NOW = 1_700_000_000_000
OPTIONS = LogOptions(segment_bytes=1500, index_interval_bytes=200)
"""Includes the default retention."""
TIME_ENTRY = struct.Struct(">qi")


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=OPTIONS)


def fill(log: Log, count: int, first: int = 0) -> None:
    for at in range(first, first + count):
        log.append(batch_of([b"%d" % at, b"x" * 50], NOW - 100_000 + at * 10))


def values_of(log: Log) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def expected(count: int, first: int = 0) -> list[bytes]:
    return [value for at in range(first, count) for value in (b"%d" % at, b"x" * 50)]


def stop(log: Log, home: LogHome) -> None:
    """Stop the log cleanly, and write the checkpoints that a manager would write."""
    home.start_offset, home.recovery_point = log.checkpointed_start_offset, log.log_end_offset
    log.close()


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("place", ["a closed segment", "the newest segment"])
def test_no_bit_of_a_last_time_entry_deletes_or_hides_anything(
    home: LogHome, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    fill(log, 40)
    stop(log, home)
    paths = sorted(home.log_path.glob("*.timeindex"))
    path = paths[0] if place == "a closed segment" else paths[-1]
    good = path.read_bytes()
    for bit in range(TIME_ENTRY.size * 8):
        flip(path, len(good) - TIME_ENTRY.size + bit // 8, bit % 8)
        log = home.reopen(clean=True)
        assert log.delete_old_segments() == 0
        assert values_of(log) == expected(40)
        newest = log.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 79
        log.close()
        assert path.read_bytes()[-TIME_ENTRY.size : -4] == good[-TIME_ENTRY.size : -4], "it was made anew"
        path.write_bytes(good)
    assert f"{path}: its last entry" in caplog.text


def test_what_was_confirmed_costs_later_lookups_by_time_nothing(home: LogHome) -> None:
    log = home.create()
    for at in range(100):
        log.append(batch_of([b"x"], NOW + at))
        log.roll()
    stop(log, home)
    log = home.reopen(clean=True)
    assert sys.getsizeof(log._files.unread) > sys.getsizeof(set())
    assert log.offset_for_timestamp(NOW)[:2] == (NOW, 0)
    assert sys.getsizeof(log._files.unread) == sys.getsizeof(set())


def test_a_lookup_by_time_does_not_believe_a_last_entry_that_the_log_contradicts(home: LogHome) -> None:
    log = home.create()
    fill(log, 40)
    stop(log, home)
    path = sorted(home.log_path.glob("*.timeindex"))[1]
    size = path.stat().st_size
    for position in range(size - TIME_ENTRY.size, size - 4):
        flip(path, position, 0)
        log = home.reopen(clean=True)
        for at in range(40):
            found = log.offset_for_timestamp(NOW - 100_000 + at * 10)
            assert found is not None and found.offset == 2 * at
        log.close()


def test_leader_epochs_that_the_batches_contradict_are_made_anew_from_them(
    home: LogHome, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    for epoch in (0, 2, 5):
        log.be_alone(epoch)
        fill(log, 12)
    stop(log, home)
    path = home.log_path / checkpoints.LEADER_EPOCHS
    good = path.read_bytes()
    assert good == b"0\n3\n0 0\n2 24\n5 48\n"
    for position in range(len(b"0\n3\n"), len(good)):
        for bit in range(8):
            flip(path, position, bit)
            log = home.reopen(clean=True)
            assert (log.leader_epoch, path.read_bytes().split()) == (5, good.split()), (position, bit)
            log.close()
            path.write_bytes(good)
    assert f"{path}: epoch 1 at offset 0, where the batch has 0; it is made anew from the log" in caplog.text


def test_an_empty_log_is_of_the_epoch_that_the_controller_says(home: LogHome) -> None:
    log = home.create()
    log.open()
    stop(log, home)
    (home.log_path / checkpoints.LEADER_EPOCHS).write_bytes(b"0\n1\n8 0\n")
    log = home.reopen(clean=True)
    assert log.leader_epoch == 0
    log.be_alone(3)
    assert log.leader_epoch == 3
    assert log.end_offset_for_epoch(3) == (3, 0)


@pytest.mark.parametrize("known", [8, 9])
def test_an_epoch_of_an_empty_log_that_the_cluster_has_named_is_nothing_to_warn_of(
    home: LogHome, known: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is alone recovers its logs after a kill before it leads their partitions again."""
    log = home.create()
    log.open()
    log.be_alone(8)
    home.known_epoch = known
    log = home.reopen(clean=False)
    assert log.epochs == [(8, 0)]
    assert "which no batch has" not in caplog.text
    home.known_epoch = 7
    assert home.reopen(clean=False).epochs == [(7, 0)]
    assert "epoch 8, which no batch has; it is 7" in caplog.text


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("claimed", [90, 26, 17])
def test_a_start_offset_that_the_first_epoch_contradicts_hides_and_removes_nothing(
    home: LogHome, claimed: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    fill(log, 25)
    log.delete_records_before(10)
    stop(log, home)
    home.start_offset = claimed
    log = home.reopen(clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (10, 50)
    assert log.delete_old_segments() == 0
    assert values_of(log) == expected(25, 5)
    assert f"starts at offset {claimed} by" in caplog.text
    assert log.delete_records_before(12) == 12, "and it can be moved on"
    assert home.start_offset == 12


def test_a_log_that_would_be_removed_after_a_clean_stop_is_refused_and_told_what_to_do(
    home: LogHome, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    fill(log, 45)
    log.delete_records_before(90)
    fill(log, 5, 45)
    stop(log, home)
    newest = max(home.log_path.glob("*.log"))
    for path in home.log_path.glob("*.log"):
        os.truncate(path, 0)
    with pytest.raises(
        KbrokerError, match="all of it would be removed; put the right offset into the line of orders-0"
    ):
        home.reopen(clean=True)
    assert caplog.text.count("would be removed") == 1
    assert newest.exists()
    home.start_offset = 0
    assert home.reopen(clean=True).log_start_offset == 0


@pytest.mark.parametrize("position", [4, 11, 16], ids=["leader of the offset", "length", "magic"])
def test_a_log_that_would_be_cut_after_a_clean_stop_is_refused_until_it_is_cut_by_hand(
    home: LogHome, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    fill(log, 25)
    last_batch = log.state.locate(48, 1).position
    stop(log, home)
    path = max(home.log_path.glob("*.log"))
    flip(path, last_batch + position, 7)
    size = path.stat().st_size
    for _ in range(2):
        with pytest.raises(KbrokerError, match=rf"at byte {last_batch}; put a copy .*truncate -s {last_batch}"):
            home.reopen(clean=True)
    assert path.stat().st_size == size
    os.truncate(path, last_batch)
    assert values_of(home.reopen(clean=True)) == expected(24)


def test_records_that_are_missing_after_a_clean_stop_are_told(home: LogHome, caplog: pytest.LogCaptureFixture) -> None:
    log = home.create()
    fill(log, 25)
    last_batch = log.state.locate(48, 1).position
    stop(log, home)
    os.truncate(max(home.log_path.glob("*.log")), last_batch)
    assert values_of(home.reopen(clean=True)) == expected(24)
    assert (
        "was stopped cleanly at offset 50 by recovery-point-offset-checkpoint, and its files end at 48" in caplog.text
    )


def test_a_lookup_by_time_does_not_believe_a_middle_entry_that_its_batch_contradicts(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(index_interval_bytes=200))
    log = home.create()
    fill(log, 40)
    log.roll()
    stop(log, home)
    path = min(home.log_path.glob("*.timeindex"))
    good = path.read_bytes()
    for position in range(4, 8 * TIME_ENTRY.size):
        for bit in (0, 4, 7):
            flip(path, position, bit)
            log = home.reopen(clean=True)
            for at in range(0, 40, 3):
                found = log.offset_for_timestamp(NOW - 100_000 + at * 10)
                assert found is not None and found.offset == 2 * at, (position, bit)
            log.close()
            path.write_bytes(good)


def transactional(producer_id: int, sequence: int) -> bytes:
    records = [(NOW, b"key", b"%d of %d" % (sequence, producer_id))]
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
    )


def fill_with_transactions(log: Log, rounds: int) -> None:
    """Let producer 1 abort every second of its transactions, while 2 and 3 are open over several of them."""
    for at in range(rounds):
        log.append(transactional(1, 2 * at))
        log.append(transactional(2 + at % 2, at // 2))
        log.append(transactional(1, 2 * at + 1))
        log.append_marker(1, 0, 0, commit=at % 2 == 0)
        if at % 4 == 3:
            log.append_marker(2, 0, 0, commit=at % 8 == 3)
            log.append_marker(3, 0, 0, commit=at % 8 != 3)


def home_with_transactions(path: Path, fs: FileSystem | None = None) -> tuple[LogHome, list[Record]]:
    """A log of several segments, stopped cleanly, and what a reader of committed records gets of it."""
    options = LogOptions(segment_bytes=4000, index_interval_bytes=200, verify_transactions=False)
    home = LogHome(path, fs or RealFileSystem(), options=options)
    log = home.create()
    fill_with_transactions(log, 32)
    stop(log, home)
    log = home.reopen(clean=True)
    good = read_committed(log)
    log.close()
    return home, good


@pytest.mark.parametrize("suffix", [".txnindex", ".index"])
@pytest.mark.parametrize("by_kafka", [False, True], ids=["ours", "without check sums"])
def test_no_bit_of_an_index_hides_or_invents_an_aborted_transaction(
    tmp_path: Path, suffix: str, by_kafka: bool, caplog: pytest.LogCaptureFixture
) -> None:
    home, good = home_with_transactions(tmp_path)
    if by_kafka:
        for snapshot in home.log_path.glob("*.snapshot"):
            data = snapshot.read_bytes()
            (count,) = struct.unpack_from(">i", data, 6)
            data = data[: 10 + count * 46]
            snapshot.write_bytes(data[:2] + struct.pack(">I", crc32c_of(data[6:])) + data[6:])
    paths = sorted(home.log_path.glob(f"*{suffix}"))
    assert len(paths) > 2
    for path in (paths[0], paths[1], paths[-1]):
        data = path.read_bytes()
        for position in range(0 if suffix == ".index" else 2, min(len(data), 70), 1 if suffix == ".txnindex" else 3):
            flip(path, position, position % 6)
            log = home.reopen(clean=True)
            assert read_committed(log) == good, (path, position)
            log.close()
            path.write_bytes(data)
    assert ("does not tell what was aborted" in caplog.text) == (suffix == ".txnindex")


def test_an_index_that_a_full_disk_keeps_from_being_mended_is_not_believed(tmp_path: Path) -> None:
    is_full = False
    fs = CrashFileSystem(tmp_path, lambda call, _: errno.ENOSPC if is_full and call == "create" else 0)
    home, good = home_with_transactions(tmp_path, fs)
    flip(min(home.log_path.glob("*.txnindex")), 9, 2)
    log = home.reopen(clean=True)
    is_full = True
    for _ in range(2):
        with pytest.raises(ProtocolError):
            read_committed(log)
    is_full = False
    assert read_committed(log) == good
