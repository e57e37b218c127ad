"""Compaction by kbroker and by Apache Kafka's own cleaner leaves the same log."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.inspection.directory_check import Verifier
from kbroker.protocol.compression import Codec, deflate, inflate
from kbroker.storage.compaction import Cleaned, clean_log
from kbroker.storage.options import LogOptions
from tests.kit.kafka.cleaner import KafkaCleaner
from tests.kit.logs.home import LogHome
from tests.kit.models import compaction as compaction_model
from tests.kit.models import message_set as message_set_model
from tests.kit.models.compaction import ABORT, COMMIT, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from tests.kit.models.message_set import Message
from tests.kit.models.record_batch import Batch, Record

RETENTION_MS = 10_000
BEGIN_MS = 1_700_000_000_000
SETTINGS = {"segment.bytes": 1500, "index.interval.bytes": 200, "delete.retention.ms": RETENTION_MS}
OPTIONS = LogOptions(
    segment_bytes=1500,
    index_interval_bytes=200,
    compacted=True,
    deleted_by_retention=False,
    delete_retention_ms=RETENTION_MS,
)


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCleaner]:
    with KafkaCleaner(SETTINGS) as cleaner:
        yield cleaner


class Writer:
    """Writes batches of all kinds: with and without keys, values, producers, transactions, codecs."""

    def __init__(self, seed: int, codec: Codec):
        self.chance = random.Random(seed)
        self.codec = codec
        self.offset = 0
        self.sequences = dict.fromkeys(range(1000, 1006), 0)
        self.ongoing: set[int] = set()
        self.batches: list[bytes] = []

    def write(self, count: int) -> list[bytes]:
        self.batches = []
        for _ in range(count):
            self._data()
            if self.ongoing and self.chance.random() < 0.4:
                self._marker(self.chance.choice(sorted(self.ongoing)))
        while self.ongoing:
            self._marker(min(self.ongoing))
        # The active segment is of none of these.
        for _ in range(6):
            self._put(Batch((Record(0, 0, b"last", b"x" * 300),)))
        return self.batches

    def _data(self) -> None:
        records = tuple(
            Record(
                at,
                self.chance.randrange(50),
                b"key %d" % self.chance.randrange(12),
                None if self.chance.random() < 0.2 else b"v" * self.chance.randrange(40),
                ((b"header", b"1"),) if self.chance.random() < 0.2 else (),
            )
            for at in range(self.chance.randrange(1, 6))
        )
        attributes = self.codec | (LOG_APPEND_TIME if self.chance.random() < 0.1 else 0)
        producer_id = self.chance.choice([-1, -1, *self.sequences])
        if producer_id < 0:
            self._put(Batch(records, attributes=attributes))
            return
        # Some producers only do transactions, others none.
        if producer_id % 2:
            self.ongoing.add(producer_id)
            attributes |= TRANSACTIONAL
        sequence = self.sequences[producer_id]
        self.sequences[producer_id] += len(records)
        self._put(
            Batch(records, attributes=attributes, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        )

    def _marker(self, producer_id: int) -> None:
        self.ongoing.discard(producer_id)
        kind = self.chance.choice([ABORT, COMMIT])
        record = Record(0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
        self._put(Batch((record,), attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id, producer_epoch=0))

    def _put(self, batch: Batch) -> None:
        stamped = replace(batch, base_offset=self.offset, base_timestamp=BEGIN_MS + self.offset, leader_epoch=0)
        self.batches.append(compaction_model.encode(stamped))
        self.offset += len(batch.records)


class OldWriter(Writer):
    """Writes messages of magic 0 or 1."""

    def __init__(self, seed: int, codec: Codec, magic: int):
        super().__init__(seed, codec)
        self.magic = magic

    def _put(self, batch: Batch) -> None:
        if batch.attributes & CONTROL:
            return
        group = [
            Message(self.offset + at, BEGIN_MS + self.offset + at if self.magic else -1, row.key, row.value, self.magic)
            for at, row in enumerate(batch.records)
        ]
        if self.codec:
            base = group[0].offset if self.magic else 0
            plain = message_set_model.encode_set([replace(each, offset=each.offset - base) for each in group])
            value = deflate(self.codec, plain, magic=self.magic)
            outer = Message(group[-1].offset, group[-1].timestamp, None, value, self.magic, self.codec)
            self.batches.append(message_set_model.encode(outer))
        else:
            # A follower takes one batch at a time; uncompressed messages are each one.
            self.batches += [message_set_model.encode(each) for each in group]
        self.offset += len(batch.records)


def clean_with_kbroker(home: Path, now_ms: int, first_dirty_offset: int) -> Cleaned:
    log_home = LogHome(home, options=OPTIONS)
    log_home.clock.now_ms = now_ms
    log = log_home.reopen(clean=True)
    try:
        return clean_log(log, DedupeMap(1 << 16), first_dirty_offset, 700)
    finally:
        log.close()
        log_home.abandon()


def files(directory: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*" + suffix)}


def set_times_of_change(directory: Path, now_ms: int) -> None:
    """Give all segments that were just filled one time of change: it decides when tombstones of old formats go."""
    for path in directory.glob("*.log"):
        if path.stat().st_mtime > now_ms / 1000:
            os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


def assert_same(ours: Path, kafkas: Path, codec: Codec, magic: int) -> None:
    mine, theirs = files(ours, ".log"), files(kafkas, ".log")
    assert sorted(mine) == sorted(theirs)
    for name in theirs:
        times = [(home / name).stat().st_mtime_ns // 1_000_000 for home in (ours, kafkas)]
        assert times[0] == times[1] or name == max(theirs), name
    for name, data in theirs.items():
        if codec == Codec.NONE:
            assert mine[name] == data, name
        elif magic == 2:
            # Compressors differ in their bytes, not in what they hold.
            assert compaction_model.decode(mine[name]) == compaction_model.decode(data), name
        else:
            assert read_old(mine[name]) == read_old(data), name
    mine, theirs = files(ours, ".txnindex"), files(kafkas, ".txnindex")
    assert {name: data for name, data in mine.items() if data} == {name: data for name, data in theirs.items() if data}
    assert magic < 2 or any(theirs.values())


def read_old(log: bytes) -> list[tuple[Message, list[Message]]]:
    found = []
    while log:
        outer, log = message_set_model.decode_one(log)
        inner = []
        if outer.attributes & 7:
            assert outer.value is not None
            plain = inflate(outer.attributes & 7, outer.value, 1 << 20, magic=outer.magic)
            inner, outer = message_set_model.decode_set(plain), replace(outer, value=None)
        found.append((outer, inner))
    return found


def compare(tmp_path: Path, kafka: KafkaCleaner, writer: Writer, codec: Codec, magic: int) -> None:
    ours, kafkas = tmp_path / "ours" / "orders-0", tmp_path / "kafka" / "orders-0"
    kafkas.mkdir(parents=True)
    ours.parent.mkdir()
    first_dirty_offset, now_ms, removed = 0, BEGIN_MS + 1_000_000, 0
    for _ in range(6):
        kafka.fill(kafkas, writer.write(40))
        set_times_of_change(kafkas, now_ms)
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(kafkas, ours)
        for path in ours.glob("*.deleted"):
            path.unlink()
        next_offset = kafka.clean(kafkas, now_ms, first_dirty_offset)
        done = clean_with_kbroker(ours.parent, now_ms, first_dirty_offset)
        assert done.next_dirty_offset == next_offset
        assert_same(ours, kafkas, codec, magic)
        for home in (ours, kafkas):
            assert list(Verifier(has_gaps=True).check(home)) == []
        first_dirty_offset = next_offset
        removed += done.records_read - done.records_kept
        now_ms += RETENTION_MS // 2
    assert removed > 100


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_with_transactions_and_producers(tmp_path: Path, kafka: KafkaCleaner, codec: Codec) -> None:
    compare(tmp_path, kafka, Writer(codec + 10, codec), codec, 2)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_messages_of_old_formats(tmp_path: Path, kafka: KafkaCleaner, codec: Codec, magic: int) -> None:
    compare(tmp_path, kafka, OldWriter(codec, codec, magic), codec, magic)
