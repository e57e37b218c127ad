"""Compares the replicas of a partition, batch by batch and byte by byte: the check behind `verify-log --replicas`.

Below the high watermark all replicas of a partition hold the same batches, from where the last of them begins. What
another replica lacks, or does not know to be committed, is not compared, and told by `NotCompared`. Compaction is each
broker's own: in a compacted partition a replica may lack batches that another has, or have a batch with fewer records.
There only batches that have as many records are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker._core.wire import record_batch
from kbroker.client.admin.admin_client import AdminClient
from kbroker.errors import KbrokerError, MalformedBytes
from kbroker.fs import RealFileSystem
from kbroker.inspection.log_file import BatchBytes, batch_bytes, read_batch_bytes
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints, file_names
from kbroker.storage.directory import parse_partition_directory

HIGH_WATERMARKS = "replication-offset-checkpoint"
_LENGTH_AT = 8
_COUNT_AT = 57
_SMALLEST = 26  # bytes of the smallest message, of magic 0
_COUNT = struct.Struct(">i")
_MAGIC_AT = 16


class Difference(NamedTuple):
    """The first offset at which a replica is not as the others are; None if it could not be read at all.

    `replica` names it as the caller did.
    """

    partition: TopicPartition
    replica: str
    offset: int | None
    what: str

    def __str__(self) -> str:
        place = "" if self.offset is None else f"offset {self.offset}: "
        return f"{self.partition} on {self.replica}: {place}{self.what}"


class NotCompared(NamedTuple):
    """Offsets from `start` to before `end` that a replica was not compared in, and why."""

    partition: TopicPartition
    replica: str
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        return (
            f"{self.partition} on {self.replica}: offsets {self.start} to {self.end - 1} were not compared: {self.why}"
        )


class Bounds(NamedTuple):
    """Where a replica begins, and up to where it is committed."""

    start_offset: int
    high_watermark: int


class Replica(NamedTuple):
    """One replica as it was when it was looked at: its bounds, and how its batches are read from an offset on.

    `look` returns the bounds of now.
    """

    bounds: Bounds
    read: Callable[[int], Iterator[BatchBytes]]
    look: Callable[[], Bounds]


class Compared(NamedTuple):
    """What has come out for two replicas, the first and another: the bounds of both, and the offsets compared.

    `difference` is the offset of the first difference, and what it is; `{first}` stands for the name of the first.
    """

    first: Bounds
    other: Bounds
    start: int
    end: int
    difference: tuple[int, str] | None

    @property
    def is_whole(self) -> bool:
        """Whether the other replica has all offsets of the first."""
        first, other = self.first, self.other
        is_empty = first.start_offset >= first.high_watermark
        return is_empty or (other.start_offset <= first.start_offset and other.high_watermark >= first.high_watermark)

    def not_compared(self, partition: TopicPartition, replica: str) -> Iterator[NotCompared]:
        """Yield the offsets of the first replica that the other, which is named, could not be compared in."""
        (start, end), (other_start, other_end) = self.first, self.other
        if start < end and other_start > start:
            why = f"its log begins at offset {other_start}"
            yield NotCompared(partition, replica, start, min(other_start, end), why)
        begin = max(start, other_start, other_end)
        if begin < end and other_end < end:
            yield NotCompared(partition, replica, begin, end, f"its high watermark is {other_end}")


class Tally:
    """Counts partitions with more than one replica: those compared as a whole, in part, and not at all."""

    def __init__(self) -> None:
        self._is_whole: dict[TopicPartition, bool] = {}
        self._in_part: set[TopicPartition] = set()

    def begin(self, partition: TopicPartition) -> None:
        self._is_whole[partition] = True

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that is gone."""
        self._is_whole.pop(partition, None)

    def add(self, partition: TopicPartition, compared: Compared) -> None:
        if compared.start < compared.end:
            self._in_part.add(partition)

    def lack(self, partition: TopicPartition) -> None:
        """Something of the partition was not compared."""
        if partition in self._is_whole:
            self._is_whole[partition] = False

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many partitions were compared as a whole, in part, and not at all."""
        short = {each for each, is_whole in self._is_whole.items() if not is_whole}
        in_part = len(short & self._in_part)
        return len(self._is_whole) - len(short), in_part, len(short) - in_part


def compare(
    partition: TopicPartition, replicas: Mapping[str, Replica], tally: Tally, *, compacted: bool = False
) -> Iterator[Difference | NotCompared]:
    """Compare the replicas with the one that is committed furthest.

    Yield the first difference of each other replica, and offsets that it was not compared in.
    """
    if len(replicas) < 2:
        return
    tally.begin(partition)
    by_length = sorted(replicas, key=lambda each: (-replicas[each].bounds.high_watermark, replicas[each].bounds))
    first, *others = by_length
    for name in others:
        compared = compare_two(replicas[first], replicas[name], compacted=compacted)
        tally.add(partition, compared)
        if compared.difference is not None:
            offset, what = compared.difference
            yield Difference(partition, name, offset, what.format(first=first))
        for missed in compared.not_compared(partition, name):
            tally.lack(partition)
            yield missed


def compare_two(
    first: Replica, other: Replica, start: int = 0, end: int | None = None, *, compacted: bool = False
) -> Compared:
    """Compare two replicas from `start` to before `end`, or to the end, as far as both have it while they are read.

    What retention removes meanwhile is no difference, and what a broker that has started anew does not know to be
    committed yet is none either.
    """
    ours, theirs = first.bounds, other.bounds
    start = max(start, ours.start_offset, theirs.start_offset)
    end = min(each.high_watermark for each in (ours, theirs)) if end is None else end
    end = min(end, ours.high_watermark, theirs.high_watermark)
    while start < end:
        found = _first_difference(first.read(start), other.read(start), start, end, compacted=compacted)
        if found is None:
            break
        offset, _ = found
        ours, theirs = first.look(), other.look()
        start_now = max(ours.start_offset, theirs.start_offset)
        end_now = min(end, ours.high_watermark, theirs.high_watermark)
        if start_now <= offset < end_now:
            return Compared(ours, theirs, start, end, found)
        start, end = max(start, start_now), end_now
    return Compared(ours, theirs, start, end, None)


def _first_difference(
    ours: Iterator[BatchBytes], theirs: Iterator[BatchBytes], start: int, end: int, *, compacted: bool
) -> tuple[int, str] | None:
    """Return the offset of the first difference, and what it is, with `{first}` for the name of our replica."""
    ours, theirs = _between(ours, start, end), _between(theirs, start, end)
    our, their = next(ours, None), next(theirs, None)
    while our is not None or their is not None:
        at = min(each.base_offset for each in (our, their) if each is not None)
        has_our, has_their = (each is not None and each.base_offset == at for each in (our, their))
        if not (has_our and has_their):
            if not compacted:
                return at, "a batch that {first} has is missing" if has_our else "a batch that {first} does not have"
        elif (
            our is not None
            and their is not None
            and our.data != their.data
            and not (compacted and _count(our) != _count(their))
        ):
            return at, f"the batch differs from {{first}}'s at its byte {_first_unequal(our.data, their.data)}"
        if has_our:
            our = next(ours, None)
        if has_their:
            their = next(theirs, None)
    return None


def _between(batches: Iterator[BatchBytes], start: int, end: int) -> Iterator[BatchBytes]:
    """Yield the batches that begin in [start, end): all replicas have them whole."""
    for each in batches:
        if each.base_offset >= end:
            return
        if each.base_offset >= start:
            yield each


def _count(batch: BatchBytes) -> int:
    """Return the number of records; -1 for a message of magic 0 or 1."""
    if batch.data[_MAGIC_AT] != 2:
        return -1
    count: int = _COUNT.unpack_from(batch.data, _COUNT_AT)[0]
    return count


def _first_unequal(ours: bytes, theirs: bytes) -> int:
    for position, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return position
    return min(len(ours), len(theirs))


# --- replicas on brokers ----------------------------------------------------------------------------------------------


def replica_on(admin: AdminClient, partition: TopicPartition, node_id: int) -> Replica:
    """Return the replica of a running broker, which is read as a consumer reads it.

    Raises BrokerError if the broker does not serve it, ConnectionFailed or TimedOut if the broker is not reached.
    """

    def look() -> Bounds:
        there = admin.fetch_replica(partition, node_id, 0, max_bytes=1)
        start = there.log_start_offset
        if there.high_watermark > start:
            there = admin.fetch_replica(partition, node_id, start, max_bytes=1)
        return Bounds(start, there.high_watermark)

    return Replica(look(), lambda offset: _fetch(admin, partition, node_id, offset), look)


def _fetch(admin: AdminClient, partition: TopicPartition, node_id: int, offset: int) -> Iterator[BatchBytes]:
    """Yield the batches from `offset` on, or from the log's start if retention has moved that beyond it."""
    while True:
        fetched = admin.fetch_replica(partition, node_id, offset)
        before = offset
        for each in _split(fetched.data):
            if each.last_offset >= before:
                yield each
                offset = each.last_offset + 1
        if offset == before:
            if fetched.log_start_offset <= offset:
                return
            offset = fetched.log_start_offset


def _split(data: bytes) -> Iterator[BatchBytes]:
    """Yield the batches of a response. The last one may be cut off. Raises MalformedBytes for impossible sizes."""
    position = 0
    while len(data) - position >= _SMALLEST:
        (length,) = _COUNT.unpack_from(data, position + _LENGTH_AT)
        end = position + _LENGTH_AT + _COUNT.size + length
        smallest = record_batch.HEADER_SIZE if data[position + _MAGIC_AT] == 2 else _SMALLEST
        if end - position < smallest:
            raise MalformedBytes(f"a batch of {end - position} bytes")
        if end > len(data):
            return
        yield batch_bytes(data[position:end])
        position = end


# --- replicas in directories ------------------------------------------------------------------------------------------


def replicas_in(directories: Iterable[Path]) -> dict[TopicPartition, dict[str, Replica]]:
    """Return the replicas in log directories of different brokers, which do not run, by partition and directory.

    The high watermark of a partition is its entry in replication-offset-checkpoint, else the end of its log. Raises
    KbrokerError or OSError for a directory that cannot be read.
    """
    found: dict[TopicPartition, dict[str, Replica]] = {}
    for directory in directories:
        if not directory.is_dir():
            raise KbrokerError(f"{directory} is no directory")
        high_watermarks = _offsets(directory / HIGH_WATERMARKS)
        starts = _offsets(directory / checkpoints.LOG_START_OFFSETS)
        for path in sorted(directory.iterdir()):
            partition = parse_partition_directory(path.name) if path.is_dir() else None
            if partition is None:
                continue
            logs = _log_files(path)
            start = max(starts.get(partition, 0), min(logs, default=0))
            end = high_watermarks.get(partition)
            if end is None:
                end = max((each.last_offset + 1 for each in _read_files(logs, 0)), default=start)
            found.setdefault(partition, {})[str(directory)] = _unchanging(Bounds(start, end), logs)
    return found


def _offsets(path: Path) -> dict[TopicPartition, int]:
    return checkpoints.load_offsets(RealFileSystem(), str(path)) if path.exists() else {}


def _log_files(path: Path) -> dict[int, Path]:
    """The segments' .log files, by base offset, ascending."""
    parsed = [(file_names.parse_file_name(each.name), each) for each in path.iterdir()]
    return dict(
        sorted(
            (name.base_offset, each)
            for name, each in parsed
            if name is not None and (name.suffix, name.step) == (file_names.LOG, "")
        )
    )


def _unchanging(bounds: Bounds, logs: Mapping[int, Path]) -> Replica:
    return Replica(bounds, lambda offset: _read_files(logs, offset), lambda: bounds)


def _read_files(logs: Mapping[int, Path], offset: int) -> Iterator[BatchBytes]:
    bases = list(logs)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is None or following > offset:
            yield from read_batch_bytes(logs[base])
