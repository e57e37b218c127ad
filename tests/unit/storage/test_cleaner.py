"""The log cleaner: which log is cleaned next, what the checkpoint says, what becomes of a log that cannot be."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import TopicPartition
from kbroker.protocol.records import encode_batch
from kbroker.storage import checkpoints
from kbroker.storage.cleaner import Throttle
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import CleanerOptions, LogOptions, StorageOptions
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import TOPIC_ID, ManualClock, read_all
from tests.kit.parts.processors import wait_until

COMPACT = LogOptions(segment_bytes=2000, index_interval_bytes=200, compacted=True, deleted_by_retention=False)
SMALL = CleanerOptions(io_buffer_size=2000)


class Broker:
    """A LogManager over one directory. The test itself calls the cleaning, unless it asks for threads."""

    def __init__(self, home: Path, cleaner: CleanerOptions = SMALL, fs: FileSystem | None = None):
        self.home = home
        self.fs = fs
        self.options = StorageOptions((str(home),), flusher_threads=1, cleaner=cleaner)
        self.clock = ManualClock()
        self.known: dict[TopicPartition, LogOptions] = {}
        self.start()

    def start(self, *, background: bool = False) -> None:
        self.logs = LogManager(self.options, clock=self.clock, fs=self.fs)
        known = {at: (TOPIC_ID, options) for at, options in self.known.items()}
        self.logs.start(known.get, background=background)

    def create(self, topic: str, options: LogOptions = COMPACT) -> Log:
        self.known[TopicPartition(topic, 0)] = options
        return self.logs.create(topic, TOPIC_ID, 0, options)

    def clean(self) -> bool:
        return self.logs.cleaner.clean_filthiest(DedupeMap(1 << 16))

    def checkpoint(self) -> dict[TopicPartition, int]:
        path = str(self.home / checkpoints.CLEANER_OFFSETS)
        return checkpoints.load_offsets(self.logs._fs, path)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "disk")
    yield broker
    broker.logs.stop()


def fill(log: Log, count: int, keys: int = 20, seed: int = 1) -> dict[bytes, bytes]:
    """Append records with few keys, and flush; return the newest value of each key."""
    chance = random.Random(seed)
    newest: dict[bytes, bytes] = {}
    for number in range(count):
        key, value = b"key %d" % chance.randrange(keys), b"%d of %d" % (number, seed)
        log.append(encode_batch([(log.context.clock.wall_ms(), key, value)]))
        newest[key] = value
    log.flush()
    return newest


def newest_in(log: Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_all(log)}


def test_a_dirty_log_is_cleaned_once_and_its_checkpoint_says_how_far(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log = broker.create("a")
    newest = fill(log, 300)
    active = log.state.segments()[-1].base_offset
    with caplog.at_level(logging.INFO, "kbroker.storage"):
        assert broker.clean()
    assert f"a-0: cleaned offsets [0, {active}) in 0.000 s" in caplog.text
    assert not broker.clean()
    assert newest_in(log) == newest
    assert len(read_all(log)) < 100
    assert broker.checkpoint() == {log.topic_partition: active}
    assert broker.logs.cleaner.max_dirty_ratio == 0
    assert broker.logs.cleaner.bytes_read > broker.logs.cleaner.bytes_written > 0


def test_what_compaction_has_left_stays_when_the_topic_is_not_compacted_any_more_after_a_kill(broker: Broker) -> None:
    """The options of a member's topic may change while it is away, and its recovery points are as old as a minute."""
    log = broker.create("a")
    for number in range(600):  # now and then a key that does not come again: it is all that some segments keep
        key = b"key %d" % (number if number % 50 == 0 else number % 3)
        log.append(encode_batch([(log.context.clock.wall_ms(), key, b"%d" % number)]))
    log.flush()
    assert broker.clean()
    kept, end_offset = read_all(log), log.log_end_offset
    assert len(kept) < 100
    broker.logs.abandon()
    broker.known[log.topic_partition] = COMPACT._replace(compacted=False)
    broker.start()
    again = broker.logs.get(log.topic_partition)
    assert again is not None
    again.open()
    assert (read_all(again), again.log_end_offset) == (kept, end_offset)


def test_the_dirtiest_log_above_its_ratio_is_first(broker: Broker) -> None:
    cleaned: list[str] = []
    large = COMPACT._replace(segment_bytes=8000)
    logs = {name: broker.create(name, large) for name in ("half", "most", "clean", "other")}
    logs["plain"] = broker.create("plain", large._replace(compacted=False))
    for log in logs.values():
        fill(log, 400, keys=1000)
    while broker.clean():
        pass
    before = broker.checkpoint()
    assert before.keys() == {log.topic_partition for name, log in logs.items() if name != "plain"}
    fill(logs["half"], 800, keys=1000)
    fill(logs["most"], 2000, keys=1000)
    fill(logs["clean"], 200, keys=1000)
    while broker.clean():
        now = broker.checkpoint()
        cleaned += [at.topic for at in now if now[at] != before[at]]
        before = now
    assert cleaned == ["most", "half"]
    assert 0 < broker.logs.cleaner.max_dirty_ratio < 0.5


def test_a_log_with_an_overdue_record_is_cleaned_whatever_its_ratio(broker: Broker) -> None:
    log = broker.create("a", COMPACT._replace(max_compaction_lag_ms=5000, min_cleanable_ratio=1.0))
    fill(log, 300)
    assert not broker.clean()
    broker.clock.now_ms += 5000
    assert not broker.clean()
    broker.clock.now_ms += 1
    assert broker.clean()
    assert broker.logs.cleaner.max_compaction_delay_ms == 1
    assert not broker.clean()


def test_a_young_segment_and_all_behind_it_are_left_alone(broker: Broker) -> None:
    log = broker.create("a", COMPACT._replace(min_compaction_lag_ms=1000))
    fill(log, 200)
    broker.clock.now_ms += 1000
    young = log.state.segments()[-1].base_offset
    fill(log, 200, seed=2)
    assert broker.clean()
    assert broker.checkpoint() == {log.topic_partition: young}
    broker.clock.now_ms += 1000
    assert broker.clean()
    assert broker.checkpoint()[log.topic_partition] > young


def test_a_restart_goes_on_behind_the_checkpoint(broker: Broker) -> None:
    log = broker.create("a")
    newest = fill(log, 300)
    assert broker.clean()
    before = broker.checkpoint()
    broker.logs.stop()
    broker.start()
    assert not broker.clean()
    assert broker.checkpoint() == before
    again = broker.logs.get(log.topic_partition)
    assert again is not None
    assert newest_in(again) == newest


@pytest.mark.parametrize("text", ["0\n1\na 0 999999\n", "0\n2\na 0 5\n", "\xff\xfe", ""])
def test_a_checkpoint_that_cannot_be_right_means_to_begin_anew(
    broker: Broker, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = broker.create("a")
    newest = fill(log, 300)
    broker.logs.stop()
    (broker.home / checkpoints.CLEANER_OFFSETS).write_bytes(text.encode("latin-1"))
    broker.start()
    assert broker.clean()
    again = broker.logs.get(log.topic_partition)
    assert again is not None
    assert newest_in(again) == newest
    assert ("cleaned from" in caplog.text) == bool(text)


def test_what_was_written_after_a_truncation_is_dirty(broker: Broker) -> None:
    log = broker.create("a")
    fill(log, 300)
    assert broker.clean()
    log.truncate_to(100)
    fill(log, 400, seed=2)
    assert broker.clean()
    kept = [record.key for record in read_all(log) if record.offset < log.state.segments()[-1].base_offset]
    assert len(kept) == len(set(kept))


def test_what_was_said_of_a_log_that_is_gone_is_not_said_of_a_new_one(broker: Broker) -> None:
    broker.logs.stop()
    # The power went when the recovery points were written without it, and this checkpoint was not yet.
    path = str(broker.home / checkpoints.CLEANER_OFFSETS)
    checkpoints.store_offsets(RealFileSystem(), path, {TopicPartition("a", 0): 100})
    broker.start()
    broker.create("a")
    assert broker.checkpoint() == {}


def test_a_checkpoint_below_the_logs_start_begins_there(broker: Broker) -> None:
    log = broker.create("a", COMPACT._replace(deleted_by_retention=True))
    fill(log, 300)
    assert broker.clean()
    fill(log, 300, seed=2)
    start = log.state.segments()[-2].base_offset
    log.delete_records_before(start)
    log.delete_old_segments()
    assert broker.clean()
    assert broker.checkpoint()[log.topic_partition] > start


def damage(log: Log, at: int) -> Path:
    """Flip a bit of the second segment's first batch; return the segment's file."""
    broken = Path(log.path) / f"{log.state.segments()[1].base_offset:020d}.log"
    data = bytearray(broken.read_bytes())
    data[at] ^= 1
    broken.write_bytes(data)
    return broken


def note_damaged(broker: Broker, *, is_made_good: bool) -> list[Log]:
    """Be told of damaged logs as a member is. Returns the list of those that the cleaner names."""
    named: list[Log] = []

    def on_damaged(log: Log) -> bool:
        named.append(log)
        if is_made_good:
            log.note_damage(log.state.segments()[1].base_offset)
        return is_made_good

    broker.logs.cleaner.on_damaged = on_damaged
    return named


@pytest.mark.parametrize("at", [20, 70])
def test_a_corrupt_batch_leaves_the_log_as_it_is_and_the_others_go_on(
    broker: Broker, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = broker.create("a"), broker.create("b")
    fill(log, 300)
    fill(other, 300)
    broken = damage(log, at)
    before = {path.name: path.read_bytes() for path in (broker.home / "a-0").iterdir()}
    assert sorted([broker.clean(), broker.clean()]) == [False, True]
    assert not broker.clean()
    assert {path.name: path.read_bytes() for path in (broker.home / "a-0").iterdir()} == before
    (told,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"{broken}: " in told.getMessage() and "at byte 0" in told.getMessage()
    assert broker.checkpoint().keys() == {other.topic_partition}
    assert broker.logs.cleaner.uncleanable() == {str(broker.home): (1, log.state.size)}


def test_a_corrupt_log_that_is_made_good_holds_nobody_up_and_is_cleaned_afterwards(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = broker.create("a"), broker.create("b")
    fill(log, 300)
    fill(other, 300)
    broken = damage(log, 70)
    named = note_damaged(broker, is_made_good=True)
    assert sorted([broker.clean(), broker.clean()]) == [False, True]
    assert not broker.clean()
    assert named == [log]
    assert broker.logs.cleaner.uncleanable() == {}
    assert f"cleaning was given up: {broken}: " in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert broker.checkpoint().keys() == {other.topic_partition}
    log.mend()
    newest = newest_in(log) | fill(log, 300, seed=2)
    assert broker.clean()
    assert named == [log]
    assert newest_in(log) == newest


def test_a_corrupt_log_that_nobody_makes_good_is_left_alone(broker: Broker) -> None:
    log = broker.create("a")
    fill(log, 300)
    damage(log, 70)
    named = note_damaged(broker, is_made_good=False)
    assert not broker.clean()
    assert not broker.clean()
    assert named == [log]
    assert broker.logs.cleaner.uncleanable() == {str(broker.home): (1, log.state.size)}


def test_retention_of_a_compacted_log_needs_no_cleaner(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "disk", CleanerOptions(enabled=False))
    log = broker.create("a", COMPACT._replace(deleted_by_retention=True, retention_ms=1000))
    fill(log, 300)
    broker.clock.now_ms += 1001
    broker.logs.check_retention()
    assert log.log_start_offset == log.log_end_offset == 300
    broker.logs.stop()


def test_a_segment_that_retention_took_meanwhile_is_no_error(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.create("a", COMPACT._replace(deleted_by_retention=True))
    fill(log, 300)
    reads = 0

    def retire(_: int) -> None:
        nonlocal reads
        reads += 1
        if reads == 3:
            log.delete_records_before(log.state.segments()[3].base_offset)
            log.delete_old_segments()

    taken = broker.logs.cleaner._on_io
    monkeypatch.setattr(broker.logs.cleaner, "_on_io", lambda log, size: (retire(size), taken(log, size)))
    with caplog.at_level(logging.INFO, "kbroker.storage"):
        assert not broker.clean()
    assert "cleaning was given up" in caplog.text
    assert broker.logs.cleaner.uncleanable() == {}
    assert not list((broker.home / "a-0").glob("*.cleaned"))
    assert broker.clean()
    assert newest_in(log)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_is_full_is_tried_again_and_a_broken_one_goes_offline(tmp_path: Path, number: int) -> None:
    fails = [False]

    def fault(call: str, what: object) -> int:
        return number if fails[0] and call == "pwrite" else 0

    (tmp_path / "disk").mkdir()
    broker = Broker(tmp_path / "disk", fs=CrashFileSystem(tmp_path / "disk", fault=fault))
    log = broker.create("a")
    newest = fill(log, 200)
    fails[0] = True
    named = note_damaged(broker, is_made_good=True)
    assert not broker.clean()
    assert named == []
    assert not list((broker.home / "a-0").glob("*.cleaned"))
    assert log.directory.is_offline == (number == errno.EIO)
    assert bool(broker.logs.cleaner.uncleanable()) == (number == errno.EACCES)
    fails[0] = False
    assert broker.clean() == (number == errno.ENOSPC)
    if number != errno.EIO:
        assert newest_in(log) == newest
    broker.logs.stop()


@pytest.mark.parametrize("how", ["delete", "policy", "stop"])
def test_a_cleaning_under_way_is_given_up(tmp_path: Path, how: str) -> None:
    """The throttle lets hardly a byte through: without the abort the cleaning would never end."""
    broker = Broker(tmp_path / "disk", CleanerOptions(io_buffer_size=2000, io_max_bytes_per_second=1, backoff_ms=1))
    log = broker.create("a")
    fill(log, 300)
    cleaning = threading.Thread(target=broker.clean, daemon=True)
    cleaning.start()
    wait_until(lambda: bool(broker.logs.cleaner._in_progress), "the cleaning to begin")
    if how == "delete":
        broker.logs.delete(log.topic_partition)
    elif how == "policy":
        log.update_options(COMPACT._replace(compacted=False))
    else:
        broker.logs.cleaner.stop()
    cleaning.join(20)
    assert not cleaning.is_alive()
    assert broker.checkpoint() == {}
    broker.logs.stop()


def test_threads_clean_in_the_background_and_stop(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    broker = Broker(tmp_path / "disk", CleanerOptions(threads=2, dedupe_buffer_size=1 << 20, backoff_ms=1))
    logs = [broker.create(f"topic{number}") for number in range(4)]
    newest = [fill(log, 300, seed=number) for number, log in enumerate(logs)]
    broker.logs.cleaner.start()
    wait_until(lambda: len(broker.checkpoint()) == 4, "four logs cleaned")
    assert broker.logs.cleaner.dead_threads == 0
    broker.logs.cleaner.update_options(broker.options.cleaner._replace(threads=1))
    assert [newest_in(log) for log in logs] == newest
    broker.logs.stop()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("compaction")]


def test_a_topic_of_the_same_name_is_not_taken_for_clean(broker: Broker) -> None:
    log = broker.create("a")
    fill(log, 300)
    assert broker.clean()
    broker.logs.delete(log.topic_partition)
    fill(broker.create("a"), 400)
    assert broker.checkpoint() == {}
    assert broker.clean()


def test_the_time_of_change_of_the_last_segment_is_kept(broker: Broker) -> None:
    log = broker.create("a")
    fill(log, 60, keys=5)
    names = sorted((broker.home / "a-0").glob("*.log"))
    for number, path in enumerate(names):
        os.utime(path, (1000 + number, 1000 + number))
    assert len(names) >= 3
    closed = len(names) - 1
    assert broker.clean()
    times = [path.stat().st_mtime for path in sorted((broker.home / "a-0").glob("*.log"))]
    assert times[-2] == 1000 + closed - 1


def test_the_throttle_gives_every_byte_its_time() -> None:
    clock = ManualClock()
    throttle = Throttle(clock)
    assert throttle.charge(500, 1000) == 0.5
    assert throttle.charge(500, 1000) == 1.0
    clock.now_ms += 10_000
    assert throttle.charge(100, 1000) == pytest.approx(0.1)
