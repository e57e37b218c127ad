"""One bit flips, anywhere in any file of a stopped directory: what starts then serves what was there, or says where it
is wrong and gives up that batch or that log's tail; other partitions do not notice.

Batches are compared as a consumer gets them that checks CRCs: one that fails the check is found, not served. Retention
is the default, and has looked at the log before; what was aborted, and lookups by time, are compared too.
"""

from __future__ import annotations

import logging
import random
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kbroker._core.wire.crc import crc32c_of
from kbroker.errors import KbrokerError
from kbroker.inspection.directory_check import Verifier
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints, directory, file_names
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.logs import directory as kit
from tests.kit.logs.home import TOPIC_ID, ManualClock
from tests.kit.logs.quick_disk import UnsyncedFileSystem, quick_directory

FLIPS = 1000
"""The number of flips after a clean stop, and also after a kill."""
OPTIONS = LogOptions(index_interval_bytes=kit.INDEX_INTERVAL)
CLUSTER_ID = "kb-K3-kraft-or-not-3wA"
HEAD = struct.Struct(">qi")

Batches = dict[int, bytes]
"""The bytes of batches, by their base offset."""


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield base offset and bytes of each batch or message, of any format. The last one may be cut."""
    at = 0
    while at + HEAD.size <= len(data):
        base_offset, length = HEAD.unpack_from(data, at)
        yield base_offset, data[at : at + HEAD.size + max(length, 0)]
        at += HEAD.size + max(length, 0)


def is_whole(batch: bytes) -> bool:
    """Whether a batch passes the checks that a consumer makes before it reads its records."""
    if len(batch) < 26 or len(batch) != HEAD.size + HEAD.unpack_from(batch)[1]:
        return False
    if batch[16] == 2:
        return len(batch) >= 61 and int.from_bytes(batch[17:21], "big") == crc32c_of(batch[21:])
    return batch[16] in (0, 1) and int.from_bytes(batch[12:16], "big") == zlib.crc32(batch[16:])


@dataclass
class Served:
    """What a broker serves that was started on a directory."""

    refusal: str = ""
    """Why the broker did not start; empty if it did."""
    batches: dict[TopicPartition, Batches] = field(default_factory=dict)
    """The batches that pass the checks of a consumer."""
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that cannot be served, in whole or in part, and why."""
    said: str = ""
    """What the broker logged."""
    aborted: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    """Producer ids and first offsets of aborted transactions, for partitions that were served whole."""
    newest: dict[TopicPartition, int] = field(default_factory=dict)
    """Largest timestamps, for partitions that were served whole."""


def consume(log: Log, offsets: list[int], served: Served, at: TopicPartition) -> None:
    """Read at each of the offsets at which there was a batch before the flip."""
    found = served.batches.setdefault(at, {})
    for offset in offsets:
        if not log.log_start_offset <= offset < log.log_end_offset:
            continue
        try:
            data = log.read(offset, 1)
        except KbrokerError as error:
            served.failed[at] = str(error)
            continue
        _, batch = next(split(data), (-1, b""))
        if is_whole(batch):
            found[offset] = batch
        else:
            served.failed[at] = "a batch that no consumer takes"


def aborted_in(log: Log) -> Iterator[tuple[int, int]]:
    """Yield the aborted transactions that a read_committed consumer is told of, batch by batch."""
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        yield from log.aborted_transactions(offset, 1)
        data = log.read(offset, 1)
        if not data:
            break
        size = int.from_bytes(data[23:27], "big") + 1 if data[16] == 2 else 1
        offset = max(offset + 1, int.from_bytes(data[:8], "big") + size)


def serve(root: Path, good: dict[TopicPartition, Batches], caplog: pytest.LogCaptureFixture) -> Served:
    served = Served()
    caplog.clear()
    logs = LogManager(
        StorageOptions((str(root),), flusher_threads=0), fs=UnsyncedFileSystem(), clock=ManualClock(kit.NOW)
    )
    try:
        logs.start(lambda at: (TOPIC_ID, OPTIONS), 1, CLUSTER_ID, background=False)
    except KbrokerError as error:
        served.refusal = str(error)
        return served
    try:
        for log in logs.logs():
            at = log.topic_partition
            try:
                log.open()
                log.delete_old_segments()
                consume(log, list(good[at]), served, at)
                if at not in served.failed:
                    newest = log.offset_of_max_timestamp()
                    served.newest[at] = newest.timestamp if newest else -1
                    served.aborted[at] = sorted(set(aborted_in(log)))
            except KbrokerError as error:
                served.failed[at] = str(error)
    finally:
        logs.abandon()
    served.said = caplog.text
    return served


@pytest.fixture(scope="module")
def good() -> Iterator[Path]:
    with quick_directory() as home:
        yield kit.make_log_directory(home / "data")


def batches_in(root: Path) -> dict[TopicPartition, Batches]:
    found: dict[TopicPartition, Batches] = {}
    for path in sorted(root.glob("*-[0-9]")):
        topic, _, number = path.name.rpartition("-")
        of_log = found[TopicPartition(topic, int(number))] = {}
        for file in sorted(path.glob("*" + file_names.LOG)):
            of_log |= split(file.read_bytes())
    return found


@dataclass
class Flip:
    """A bit of a file below `root`."""

    root: Path
    file: Path
    position: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.position} of {self.file.relative_to(self.root)}"

    def do(self) -> None:
        data = bytearray(self.file.read_bytes())
        data[self.position] ^= 1 << self.bit
        self.file.write_bytes(data)

    @property
    def partition(self) -> str:
        """The partition that the file belongs to, or an empty string."""
        return "" if self.file.parent == self.root else self.file.parent.name

    def batch(self) -> tuple[int, int]:
        """The base offset of the batch with the flip, and the position of the flip in it."""
        position = 0
        for base_offset, batch in split(self.file.read_bytes()):
            if self.position < position + len(batch):
                return base_offset, self.position - position
            position += len(batch)
        raise AssertionError(f"{self} is in no batch")


def flips(root: Path, seed: int) -> Iterator[Flip]:
    """Yield flips: as many in small files as in large ones."""
    chance = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    for _ in range(FLIPS):
        file = chance.choice(files)
        yield Flip(root, file, chance.randrange(file.stat().st_size), chance.randrange(8))


def after_kill(root: Path) -> None:
    (root / directory.CLEAN_MARK).unlink()
    checkpoints.store_offsets(kit.FILES, str(root / checkpoints.RECOVERY_POINTS), {})


def judge(
    flip: Flip, good: dict[TopicPartition, Batches], whole: Served, served: Served, where: tuple[int, int] | None
) -> None:
    """Check what was served. `whole` was served without a flip. `where` is Flip.batch of a flip in a log, else None."""
    if served.refusal:
        assert flip.file.name == directory.META_PROPERTIES, served.refusal
        assert str(flip.root) in served.refusal
        return
    for at, batches in good.items():
        if flip.file.name == checkpoints.PARTITION_METADATA and str(at) == flip.partition and at in served.failed:
            # The topic id became another one: nobody knows to which topic the log belongs.
            assert f"{flip.file}: topic_id" in served.failed[at]
            assert f"{flip.file}: topic_id" in served.said
            continue
        if where is not None and str(at) == flip.partition and f"{flip.file}: " in served.failed.get(at, ""):
            assert "truncate -s" in served.said, "it does not say what to do"
            continue
        found = served.batches[at]
        if where is None or str(at) != flip.partition:
            assert at not in served.failed, served.failed[at]
            assert found == batches, at
            assert served.newest[at] == whole.newest[at], at
            assert served.aborted[at] == whole.aborted[at], at
            continue
        base_offset, byte = where
        altered = [offset for offset, batch in found.items() if batch != batches[offset]]
        # No CRC covers a batch's offset and its leader epoch.
        is_covered = byte >= 17 or 8 <= byte < 12
        assert not altered or not is_covered, altered
        assert all(offset in found for offset in batches if offset < base_offset)


def names_place(flip: Flip, said: str) -> bool:
    """Whether a log line says that the file was cut, at a byte that is not behind the flip."""
    found = re.search(rf"{re.escape(str(flip.file))}: cut at byte (\d+) of", said)
    return found is not None and int(found[1]) <= flip.position


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean stop", "after a kill"])
def test_a_flipped_bit_is_harmless_or_found_and_costs_no_more_than_it_must(
    good: Path, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    expected = batches_in(good)
    shutil.copytree(good, good.parent / "whole")
    whole = serve(good.parent / "whole", expected, caplog)
    shutil.rmtree(good.parent / "whole")
    assert whole.batches == expected, whole.failed
    assert any(whole.aborted.values())
    root = good.parent / "flipped"
    told = 0
    for flip in flips_of(good, root, is_clean):
        where = flip.batch() if flip.file.suffix == file_names.LOG else None
        flip.do()
        located = where is None or any(
            finding.path == str(flip.file) and finding.position <= flip.position for finding in Verifier().check(root)
        )
        served = serve(root, expected, caplog)
        try:
            judge(flip, expected, whole, served, where)
            assert located, "verify-log does not find it"
            if where is not None and not is_clean and where[1] >= 17:
                assert names_place(flip, served.said), served.said
                told += 1
        except AssertionError as failure:
            raise AssertionError(f"{flip}: {failure}") from failure
    assert is_clean or told > FLIPS / 20


def flips_of(good: Path, root: Path, is_clean: bool) -> Iterator[Flip]:
    """Yield flips, each in a directory that is as it was without flips."""
    shutil.copytree(good, root)
    if not is_clean:
        after_kill(root)
    for flip in list(flips(root, seed=is_clean)):
        yield flip
        shutil.rmtree(root)
        shutil.copytree(good, root)
        if not is_clean:
            after_kill(root)
    shutil.rmtree(root)
