"""Compares the replicas of a partition, batch by batch and byte by byte: the check behind `verify-log --replicas`.

Below the high watermark all replicas of a partition hold the same batches. Compaction is each broker's own: in a
compacted partition a replica may lack batches that another has, or have a batch with fewer records. There only batches
that have as many records are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

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


class Replica(NamedTuple):
    """One replica: where it begins, up to where it is committed, and how its batches are read from an offset on."""

    start_offset: int
    high_watermark: int
    read: Callable[[int], Iterator[BatchBytes]]


def compare(
    partition: TopicPartition, replicas: Mapping[str, Replica], *, compacted: bool = False
) -> Iterator[Difference]:
    """Yield the first difference of each replica from the first one, over the offsets that all have committed."""
    if len(replicas) < 2:
        return
    start = max(each.start_offset for each in replicas.values())
    end = min(each.high_watermark for each in replicas.values())
    first, *others = replicas
    for name in others:
        found = _first_difference(
            replicas[first].read(start), replicas[name].read(start), start, end, compacted=compacted
        )
        if found is not None:
            offset, what = found
            yield Difference(partition, name, offset, what.format(other=first))


def _first_difference(
    ours: Iterator[BatchBytes], theirs: Iterator[BatchBytes], start: int, end: int, *, compacted: bool
) -> tuple[int, str] | None:
    """Return the offset of the first difference, and what it is with `{other}` for the name of our replica."""
    ours, theirs = _between(ours, start, end), _between(theirs, start, end)
    our, their = next(ours, None), next(theirs, None)
    while our is not None or their is not None:
        at = min(each.base_offset for each in (our, their) if each is not None)
        has_our, has_their = (each is not None and each.base_offset == at for each in (our, their))
        if not (has_our and has_their):
            if not compacted:
                return at, "a batch that {other} has is missing" if has_our else "a batch that {other} does not have"
        elif (
            our is not None
            and their is not None
            and our.data != their.data
            and not (compacted and _count(our) != _count(their))
        ):
            return at, f"the batch differs from {{other}}'s at its byte {_first_unequal(our.data, their.data)}"
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
    there = admin.fetch_replica(partition, node_id, 0, max_bytes=1)
    start = there.log_start_offset
    if there.high_watermark > start:
        there = admin.fetch_replica(partition, node_id, start, max_bytes=1)
    return Replica(start, there.high_watermark, lambda offset: _fetch(admin, partition, node_id, offset))


def _fetch(admin: AdminClient, partition: TopicPartition, node_id: int, offset: int) -> Iterator[BatchBytes]:
    while True:
        fetched = admin.fetch_replica(partition, node_id, offset)
        before = offset
        for each in _split(fetched.data):
            if each.last_offset >= before:
                yield each
                offset = each.last_offset + 1
        if offset == before:
            return


def _split(data: bytes) -> Iterator[BatchBytes]:
    """Yield the batches of a response. The last one may be cut off. Raises MalformedBytes for impossible sizes."""
    position = 0
    while len(data) - position >= _SMALLEST:
        (length,) = _COUNT.unpack_from(data, position + _LENGTH_AT)
        end = position + _LENGTH_AT + _COUNT.size + length
        if end - position < _SMALLEST:
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
            found.setdefault(partition, {})[str(directory)] = Replica(start, end, _reader(logs))
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


def _reader(logs: Mapping[int, Path]) -> Callable[[int], Iterator[BatchBytes]]:
    return lambda offset: _read_files(logs, offset)


def _read_files(logs: Mapping[int, Path], offset: int) -> Iterator[BatchBytes]:
    bases = list(logs)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is None or following > offset:
            yield from read_batch_bytes(logs[base])
