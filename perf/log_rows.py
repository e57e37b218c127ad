"""Rows about the log's files: recovery, loading, start, lookups, memory. Some measure this process, as they say."""

from __future__ import annotations

import gc
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.wire import record_batch
from kbroker.fs import RealFileSystem
from kbroker.protocol.records import encode_batch
from kbroker.storage import file_names
from kbroker.storage.index_entries import INDEX_ENTRY, TIME_INDEX_ENTRY
from kbroker.storage.log import Log
from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.producer_state import store_snapshot
from perf import machine, tools
from perf.duel import Figure, absolute, compared
from perf.peers import Kafka39, Kbroker, Peer
from tests.kit.logs.home import LogHome

TIME = 1_700_000_000_000
PRODUCERS = 10
LOADED = re.compile(r"Loaded (\d+) logs in (\d+) ?ms")

# --- recovery and loading -------------------------------------------------------------------------------


def recovery() -> list[Figure]:
    """Opening a log of one segment as after a crash: CRCs, indexes, leader epochs, producers.

    Runs in this process, on one thread, with the file in the page cache.
    """
    large, small = [], []
    with log_home() as few, log_home() as many:
        size = write_segment(few, [batch_of(1000, 16, at) for at in range(PRODUCERS)], 512 << 20)
        batches = write_segment(many, [batch_of(100, 1, at) for at in range(PRODUCERS)], 256 << 20)
        for _ in range(5):
            large.append(size / seconds_to_recover(few) / 1e9)
            small.append(batches / seconds_to_recover(many) / len(batch_of(100, 1)) / 1e6)
    return [
        absolute("recovery scan, one core, batches of 16 KiB", large, ">= 1.5", ">= 3", "GB/s"),
        absolute("recovery scan, one core, batches of one record of 100 B", small, ">= 3", ">= 6", "M/s"),
    ]


@contextmanager
def log_home() -> Iterator[LogHome]:
    """Yield an empty directory with what a log needs around it."""
    with TemporaryDirectory(prefix="kbroker-bench-") as folder:
        home = LogHome(Path(folder))
        home.open_segments = OpenSegments(4000)
        home.context.on_segment_opened = home.open_segments.add
        home.log_path.mkdir()
        try:
            yield home
        finally:
            home.abandon()


def batch_of(value_size: int, records: int, producer: int = -1, timestamp: int = TIME) -> bytes:
    """Return an encoded batch. With equal sizes and counts, batches of all producers are equally long."""
    made = ((timestamp + number, None, b"%08d" % number + bytes(value_size - 8)) for number in range(records))
    if producer < 0:
        return encode_batch(made)
    return encode_batch(made, producer_id=1000 + producer, producer_epoch=0, base_sequence=0)


def write_segment(home: LogHome, batches: list[bytes], size: int) -> int:
    """Write the batches, again and again, to one segment of about `size` bytes, stamped with their offsets there.

    Returns the size of the segment.
    """
    records = record_batch.check(batches[0]).record_count
    offset = 0
    with (home.log_path / file_names.file_name(0, file_names.LOG)).open("wb") as log:
        while log.tell() < size:
            piece = bytearray().join(batches * (1 + (4 << 20) // (len(batches) * len(batches[0]))))
            with memoryview(piece) as view:
                for at in range(0, len(piece), len(batches[0])):
                    record_batch.stamp(view[at : at + len(batches[0])], offset, 0)
                    offset += records
            log.write(piece)
        return log.tell()


def seconds_to_recover(home: LogHome) -> float:
    """Return the CPU seconds of a recovery. All files that were derived from the log are removed before."""
    for pattern in ("*index", "leader-epoch-checkpoint", "*.snapshot"):
        for path in home.log_path.glob(pattern):
            path.unlink()
    began = time.thread_time()
    home.reopen(clean=False)
    return time.thread_time() - began


def loading() -> list[Figure]:
    """Time to load 1 GB in 100 partitions that was never flushed, after kill -9, as both brokers' own logs say it.

    Both have the same batches of 16 KiB from the same client, two recovery threads, and the files in the page cache. A
    start flushes nothing of what it has recovered, so every round has the same to do.
    """
    partitions, requests = 100, 65_536
    overrides = {"num.recovery.threads.per.data.dir": 2}
    ours: list[float] = []
    kafka: list[float] = []
    machine.touch_memory()
    with ExitStack() as stack:
        peers = [(stack.enter_context(Kbroker(overrides)), ours), (stack.enter_context(Kafka39(overrides)), kafka)]
        for peer, _ in peers:
            peer.create_topic("loaded", partitions)
            tools.drive("produce-count", peer.port, "loaded", partitions, 1000, 16, 4, 4, requests, 1)
        for number in range(4):
            for peer, runs in peers if number % 2 == 0 else reversed(peers):
                peer.kill()
                taken = ms_to_load(peer, at_least=partitions)
                if number:  # the first round makes the indexes as recovery writes them
                    runs.append(taken)
        for peer, _ in peers:
            peer.kill()
    return [compared("loading 1 GB in 100 partitions after kill -9", ours, kafka, "<= 0.7", "<= 0.3", "ms")]


def ms_to_load(peer: Peer, at_least: int) -> float:
    """Start the peer, and return how long, by its own log, it took to load `at_least` logs."""
    known = len(peer.output)
    peer.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for count, ms in LOADED.findall(peer.output[known:]):
            if int(count) >= at_least:
                return float(ms)
        time.sleep(0.02)
    raise RuntimeError(f"{peer.name} does not say how long loading took:\n{peer.output[-2000:]}")


# --- start ----------------------------------------------------------------------------------------------


def clean_start() -> list[Figure]:
    """A start after a clean stop, with 20,000 segments in 5,000 partitions: until it serves, until all logs are open.

    Kafka 3.9 is beside it for information, with one segment a partition: it holds a descriptor for every segment.
    """
    serving, opened, closed_kb, open_kb, kafka = [], [], [], [], []
    with TemporaryDirectory(prefix="kbroker-bench-") as folder, Kbroker() as empty:
        before = empty.memory_mb()
        with Kbroker(folder=Path(folder)) as peer:
            create_topics(peer)
        add_segments(Path(folder) / "data", 4)
        for _ in range(3):
            with Kbroker(folder=Path(folder)) as peer:
                serving.append(peer.ready_s)
                closed_kb.append((peer.memory_mb() - before) * 1024 / 5000)
                opened.append(peer.ready_s + seconds_to_open(peer))
                open_kb.append((peer.memory_mb() - before) * 1024 / 5000)
    with TemporaryDirectory(prefix="kbroker-bench-") as folder:
        with Kafka39(folder=Path(folder)) as peer:
            create_topics(peer)
        for _ in range(2):
            with Kafka39(folder=Path(folder)) as peer:
                kafka.append(peer.ready_s + seconds_to_open(peer))
    return [
        absolute("clean start, 5,000 partitions, 20,000 segments: serving", serving, "<= 2", "<= 0.5", "s"),
        absolute("clean start, 5,000 partitions, 20,000 segments: every log open", opened, "", "", "s", kafka),
        absolute("memory of a partition that is not open", closed_kb, "", "", "KB"),
        absolute("memory of an open partition of 4 segments", open_kb, "", "", "KB"),
    ]


def create_topics(peer: Peer) -> None:
    """Create five topics of 1,000 partitions."""
    for number in range(5):
        peer.create_topic(f"many-{number}", 1000)


def add_segments(data: Path, count: int) -> None:
    """Add `count` segments of one batch to every log of a cleanly stopped broker, as it would have left them."""
    for folder in data.glob("many-*"):
        for base_offset in range(count):
            write_closed_segment(folder, base_offset, 1, 100)
        store_snapshot(RealFileSystem(), str(folder), count, ProducerTable())


def seconds_to_open(peer: Peer) -> float:
    """Return how long it takes until the peer answers with the ends of all logs."""
    began = time.perf_counter()
    for number in range(5):
        peer.await_leaders(f"many-{number}", 1000)
    return time.perf_counter() - began


# --- lookups --------------------------------------------------------------------------------------------


def lookups() -> list[Figure]:
    """Lookups by offset and by time in one log of 100,000 segments, in this process.

    Warm lookups are in 1,000 segments of 64 KiB that are open. The others are in any segment: most of these have to be
    opened, and have one batch of 100 B.
    """
    count, every = 100_000, 100
    with log_home() as home:
        offset, places = 0, []
        for number in range(count):
            batches = 64 if number % every == 0 else 1
            write_closed_segment(home.log_path, offset, batches, 900 if batches > 1 else 100)
            places.append((offset, batches))
            offset += batches
        gc.collect()
        before, began = machine.memory_mb(os.getpid()), time.perf_counter()
        log = home.reopen(clean=True)
        opened = time.perf_counter() - began
        gc.collect()
        each = (machine.memory_mb(os.getpid()) - before) * (1 << 20) / count
        warm = [base + at for base, batches in places[::every] for at in range(0, batches, 7)]
        cold = [base for base, _ in places]
        figures = [
            absolute(
                f"lookup by {kind}, 100,000 segments, {what}", [us_each(look, at) for _ in range(5)], *bounds, "us"
            )
            for what, at, bounds in (("warm", warm, ("<= 20", "<= 5")), ("opening its segment", cold, ("", "")))
            for kind, look in (("offset", by_offset(log)), ("time", by_time(log)))
        ]
        return [
            *figures,
            absolute("opening a log of 100,000 segments", [opened], "", "", "s"),
            absolute("memory of a closed segment", [each], "", "", "B"),
            absolute("memory of a producer id", [bytes_per_producer()], "", "", "B"),
        ]


def write_closed_segment(folder: Path, base_offset: int, count: int, value_size: int) -> None:
    """Write a segment as a roll leaves it, which is much like what a clean stop leaves.

    It has `count` batches of one record; timestamps rise by a millisecond per offset.
    """
    data, index, time_index = bytearray(), b"", b""
    indexed_to = 0
    for relative in range(count):
        batch = bytearray(batch_of(value_size, 1, timestamp=TIME + base_offset + relative))
        record_batch.stamp(batch, base_offset + relative, 0)
        if len(data) - indexed_to > 4096:
            index += INDEX_ENTRY.pack(relative, len(data))
            time_index += TIME_INDEX_ENTRY.pack(TIME + base_offset + relative, relative)
            indexed_to = len(data)
        data += batch
    time_index += TIME_INDEX_ENTRY.pack(TIME + base_offset + count - 1, count - 1)
    for suffix, content in ((file_names.LOG, data), (file_names.INDEX, index), (file_names.TIME_INDEX, time_index)):
        (folder / file_names.file_name(base_offset, suffix)).write_bytes(content)


def by_offset(log: Log) -> Callable[[int], bool]:
    return lambda offset: log.state.locate(offset, 1 << 20).size > 0


def by_time(log: Log) -> Callable[[int], bool]:
    def look(offset: int) -> bool:
        found = log.offset_for_timestamp(TIME + offset)
        return found is not None and found.offset == offset

    return look


def us_each(look: Callable[[int], bool], offsets: list[int]) -> float:
    """Return the CPU microseconds of a lookup at random ones of `offsets`. All of these are looked up once before."""
    random_ = random.Random(0)
    chosen = [random_.choice(offsets) for _ in range(5000)]
    if not all(look(offset) for offset in chosen):
        raise RuntimeError("a lookup that finds another record")
    began = time.thread_time()
    for offset in chosen:
        look(offset)
    return (time.thread_time() - began) / len(chosen) * 1e6


def bytes_per_producer(count: int = 30_000) -> float:
    """Return the memory that a producer id takes in a partition's table, with five batches remembered."""
    gc.collect()
    before = machine.memory_mb(os.getpid())
    tables = [ProducerTable() for _ in range(4)]
    for table in tables:
        for producer in range(count):
            table.restore(producer, 0, -1, TIME, -1, [(at, at, at, 0, TIME) for at in range(5)])
    return (machine.memory_mb(os.getpid()) - before) * (1 << 20) / (count * len(tables))
