"""The check of one partition's directory: every segment is read, and its files are compared with each other.

The order of reading makes the check right on a log that grows: an index before its log, the leader epochs after both.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from kbroker._core.log.scan import segment_check
from kbroker._core.log.scan.segment_check import (
    EpochRun,
    SegmentCheck,
    SegmentFinding,
    TransactionEvent,
    check_segment,
)
from kbroker.inspection.binary_files import BINARY_FILES, used_size
from kbroker.inspection.entries import (
    WHOLE_FILE,
    Entry,
    Finding,
    Found,
    Problem,
    open_regular,
    read_whole,
    reason_of,
)
from kbroker.inspection.text_files import TEXT_FILES
from kbroker.protocol.compression import inflate_shared
from kbroker.protocol.records import INFLATED_LIMIT
from kbroker.storage import checkpoints, file_names
from kbroker.storage.index_entries import ABORTED_TRANSACTION, INDEX_ENTRY, TIME_INDEX_ENTRY

_OPEN_TRANSACTIONS = 100_000  #: so many open transactions are followed; with more the .txnindex check is incomplete

_SUFFIXES = {
    segment_check.LOG: file_names.LOG,
    segment_check.INDEX: file_names.INDEX,
    segment_check.TIME_INDEX: file_names.TIME_INDEX,
}
_ENTRIES = {file_names.INDEX: INDEX_ENTRY, file_names.TIME_INDEX: TIME_INDEX_ENTRY}

Progress = Callable[[int], None]


def inflate(codec: int, payload: memoryview, magic: int) -> memoryview:
    return inflate_shared(codec, payload, INFLATED_LIMIT, magic=magic)


class Aborted(NamedTuple):
    """A transaction that a marker in the log has aborted."""

    producer_id: int
    first_offset: int
    """-1: the transaction's beginning is not in the log."""
    last_offset: int
    last_stable_offset: int
    position: int
    """The marker's position in the .log, in bytes."""


@dataclass(slots=True)
class TransactionWalk:
    """Follows the transactions of a log through its batches."""

    opened: dict[int, int] = field(default_factory=dict)
    """First offsets of open transactions, by producer id."""
    aborted: list[Aborted] = field(default_factory=list)
    """Transactions that were aborted in the current segment."""
    is_complete: bool = True
    """Whether `opened` has every open transaction, with its first record."""

    def follow(self, events: Iterable[TransactionEvent]) -> None:
        for event in events:
            if event.kind == segment_check.TRANSACTION_DATA:
                if len(self.opened) < _OPEN_TRANSACTIONS:
                    self.opened.setdefault(event.producer_id, event.first_offset)
                else:
                    self.is_complete = False
                continue
            begun = self.opened.pop(event.producer_id, -1)
            if event.kind == segment_check.TRANSACTION_ABORT:
                stable = min(self.opened.values(), default=event.last_offset + 1)
                self.aborted.append(Aborted(event.producer_id, begun, event.last_offset, stable, event.position))


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What the check of a partition has to know from outside the partition's directory."""

    has_gaps: bool = True
    """Offsets may be missing: the log was compacted, or that is unknown."""
    is_live: bool = False
    """A broker may be writing the partition now."""
    progress: Progress | None = None


@dataclass(slots=True)
class PartitionCheck:
    """What was found in a partition's directory."""

    findings: list[Finding] = field(default_factory=list)
    log_end_offset: int | None = None
    """None: the log was not read to its end, or there is none."""
    size: int = 0
    topic_id: str | None = None
    first_epoch_offset: int | None = None
    """Start offset of the first leader epoch."""


class PartitionChecker:
    """Checks the directory of one partition, once."""

    def __init__(self, path: Path, context: PartitionContext):
        self._path = path
        self._context = context
        self._transactions = TransactionWalk()
        self._runs: list[tuple[str, EpochRun]] = []
        """Runs of one leader epoch, each with the path of its .log."""
        self.result = PartitionCheck()

    def check(self) -> PartitionCheck:
        try:
            present = sorted(os.listdir(self._path))  # noqa: PTH208
        except FileNotFoundError:
            return self.result
        except OSError as error:
            self._add(self._path, WHOLE_FILE, reason_of(error))
            return self.result
        segments: dict[int, set[str]] = {}
        for name in present:
            parsed = file_names.parse_file_name(name)
            if not file_names.is_of_a_log(name):
                self._add(self._path / name, WHOLE_FILE, "no file of a partition has this name")
            elif parsed and not parsed.step and parsed.suffix != file_names.SNAPSHOT:
                segments.setdefault(parsed.base_offset, set()).add(parsed.suffix)
        self._check_segments(segments)
        for name in present:
            if name in TEXT_FILES:
                self._check_text(name)
            parsed = file_names.parse_file_name(name)
            if parsed and parsed.suffix == file_names.SNAPSHOT and not parsed.step:
                self._check_snapshot(name, parsed.base_offset)
        return self.result

    def check_file(self, name: str) -> PartitionCheck:
        """Check one file, together with the segment that it belongs to. Only findings of that file are returned."""
        parsed = file_names.parse_file_name(name)
        if name in TEXT_FILES:
            self._check_text(name)
        elif parsed and not parsed.step and parsed.suffix in (file_names.LOG, *file_names.INDEX_SUFFIXES):
            self._transactions.is_complete = False
            self._check_segment(parsed.base_offset, None)
        elif parsed and parsed.suffix == file_names.LOG:
            self._check_lone_log(name, parsed.base_offset)
        elif parsed and (data := self._read(name)) is not None:
            self._items(self._path / name, BINARY_FILES[parsed.suffix](data, parsed.base_offset))
        path = str(self._path / name)
        self.result.findings = [finding for finding in self.result.findings if finding.path == path]
        return self.result

    def _check_lone_log(self, name: str, base: int) -> None:
        """Check a .log with another suffix behind, such as `.deleted` or `.swap`, without its indexes."""
        fd = open_regular(str(self._path / name))
        try:
            checked = check_segment(fd, os.fstat(fd).st_size, base, inflate=inflate, gaps=True)
            self.result.findings += [Finding(str(self._path / name), at.position, at.what) for at in checked.findings]
        finally:
            os.close(fd)

    def _file(self, base: int, suffix: str) -> Path:
        return self._path / file_names.file_name(base, suffix)

    def _add(self, path: Path | str, position: int, what: str) -> None:
        self.result.findings.append(Finding(str(path), position, what))

    def _read(self, name: str) -> bytes | None:
        """Return a file's bytes; None if it is gone or cannot be read. Only the latter is a finding."""
        path = self._path / name
        try:
            return read_whole(str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._add(path, WHOLE_FILE, reason_of(error))
            return None

    # --- segments

    def _check_segments(self, segments: dict[int, set[str]]) -> None:
        bases = sorted(base for base, suffixes in segments.items() if file_names.LOG in suffixes)
        for base, suffixes in sorted(segments.items()):
            if file_names.LOG not in suffixes:
                for suffix in sorted(suffixes):
                    self._add(self._file(base, suffix), WHOLE_FILE, "its .log is not there")
        expected: int | None = None
        self._transactions.is_complete = bases[:1] == [0]
        for number, base in enumerate(bases):
            end_offset = bases[number + 1] if number + 1 < len(bases) else None
            if expected is not None and base > expected and not self._context.has_gaps:
                what = f"begins at offset {base}, but the segment before it ends at {expected}"
                self._add(self._file(base, file_names.LOG), 0, f"{what}, and nothing tells of compaction")
            checked = self._check_segment(base, end_offset)
            for suffix in (file_names.INDEX, file_names.TIME_INDEX):
                is_of_magic_0 = checked is not None and checked.batches > 0 and checked.max_timestamp < 0
                if suffix not in segments[base] and not (suffix == file_names.TIME_INDEX and is_of_magic_0):
                    self._add(self._file(base, file_names.LOG), WHOLE_FILE, f"its {suffix} is not there")
            expected = checked.next_offset if checked is not None and checked.is_sure else None
        self.result.log_end_offset = expected

    def _check_segment(self, base: int, end_offset: int | None) -> SegmentCheck | None:
        """Check a segment's files. `end_offset` is the next segment's base offset; None for the last segment.

        Returns None if the segment was not read to its end: then nothing is known about what should follow.
        """
        is_last = end_offset is None
        paths = {suffix: self._file(base, suffix) for suffix in (file_names.LOG, *file_names.INDEX_SUFFIXES)}
        indexes = {
            suffix: self._index_entries(paths[suffix], entry.size, is_last) for suffix, entry in _ENTRIES.items()
        }
        aborted = self._read(paths[file_names.TRANSACTION_INDEX].name)
        log = str(paths[file_names.LOG])
        try:
            fd = open_regular(log)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._add(log, WHOLE_FILE, reason_of(error))
            return None
        try:
            size = os.fstat(fd).st_size
            self._transactions.aborted.clear()
            checked = check_segment(
                fd, size, base, inflate=inflate, index=indexes[file_names.INDEX],
                time_index=indexes[file_names.TIME_INDEX], end_offset=end_offset, gaps=self._context.has_gaps,
                zeros_allowed=is_last and self._context.is_live, transactions=self._transactions.follow,
                progress=self._context.progress,
            )  # fmt: skip
        except OSError as error:
            self._add(log, WHOLE_FILE, reason_of(error))
            return None
        finally:
            os.close(fd)
        self.result.size += size
        for at in checked.findings:
            suffix = _SUFFIXES[at.file]
            if not (is_last and self._is_remnant(paths[suffix], indexes.get(suffix, b""), at, checked)):
                self._add(paths[suffix], at.position, at.what)
        if checked.finding_count > len(checked.findings):
            self._add(log, WHOLE_FILE, f"{checked.finding_count - len(checked.findings)} more findings")
        is_whole = checked.position == size or (is_last and self._context.is_live)
        if not is_whole:
            self._transactions = TransactionWalk(is_complete=False)
            return None
        if not is_last:
            self._check_last_time(paths[file_names.TIME_INDEX], indexes[file_names.TIME_INDEX], checked)
        self._check_aborted(paths[file_names.TRANSACTION_INDEX], aborted, base, log)
        self._runs += [(log, run) for run in checked.epochs]
        return checked

    def _index_entries(self, path: Path, entry_size: int, is_last: bool) -> bytes:
        data = self._read(path.name) or b""
        for item in BINARY_FILES[path.suffix](data[len(data) - len(data) % entry_size :], 0):
            if isinstance(item, Problem):
                self._add(path, len(data) - len(data) % entry_size, item.what)
        used = used_size(data, entry_size)
        if used < len(data) - len(data) % entry_size and not is_last:
            # Only the active segment's index may be larger than its entries.
            self._add(path, used, f"{len(data) - used} bytes of zeros to the end")
        return data[:used]

    def _is_remnant(self, path: Path, index: bytes, finding: SegmentFinding, checked: SegmentCheck) -> bool:
        """Whether the finding is an entry that a truncation by Kafka has left behind the end of a preallocated index.

        Such a truncation moves the end, which no file has, and leaves the bytes: wrong entries in their order, and then
        zeros. They go when the index is closed.
        """
        if finding.file == segment_check.LOG:
            return False
        entry = _ENTRIES[_SUFFIXES[finding.file]]
        try:
            if path.stat().st_size < len(index) + entry.size:
                return False
        except OSError:
            return False
        wrong = {each.position for each in checked.findings if each.file == finding.file}
        behind = range(finding.position, len(index), entry.size)
        values = [entry.unpack_from(index, at) for at in behind]
        return wrong.issuperset(behind) and all(
            mine[0] <= following[0] and mine[1] <= following[1] for mine, following in pairwise(values)
        )

    def _check_last_time(self, path: Path, index: bytes, checked: SegmentCheck) -> None:
        """Check that the time index of a closed segment ends with its largest timestamp: lookups by time rely on it."""
        last = TIME_INDEX_ENTRY.unpack_from(index, len(index) - TIME_INDEX_ENTRY.size)[0] if index else -1
        if last < checked.max_timestamp and not any(finding.path == str(path) for finding in self.result.findings):
            self._add(path, len(index), f"ends at timestamp {last}; the segment's largest is {checked.max_timestamp}")

    def _check_aborted(self, path: Path, data: bytes | None, base: int, log: str) -> None:
        """Compare a `.txnindex` with the abort markers in its segment."""
        markers = {marker.last_offset: marker for marker in self._transactions.aborted}
        told = set()
        is_known = self._transactions.is_complete and not self._context.has_gaps
        for item in BINARY_FILES[file_names.TRANSACTION_INDEX](data or b"", base):
            if isinstance(item, Problem):
                self._add(path, item.position, item.what)
                told.add(item.position)
                continue
            entry = item.fields
            marker = markers.pop(entry["last_offset"], None)
            if item.position in told:
                continue
            if marker is None or marker.producer_id != entry["producer_id"]:
                what = f"no marker of producer {entry['producer_id']} aborts at offset {entry['last_offset']}"
                self._add(path, item.position, what)
            elif is_known and 0 <= marker.first_offset != entry["first_offset"]:
                what = f"first offset {entry['first_offset']}, but the transaction began at {marker.first_offset}"
                self._add(path, item.position, what)
            elif is_known and marker.last_stable_offset != entry["last_stable_offset"]:
                what = f"last stable offset {entry['last_stable_offset']}, but it was {marker.last_stable_offset}"
                self._add(path, item.position, what)
        if self._context.is_live or not is_known:
            return
        for marker in markers.values():
            if marker.first_offset >= 0:
                what = f"the abort of producer {marker.producer_id} at byte {marker.position} of the log is not there"
                entry_size = ABORTED_TRANSACTION.size
                self._add(path, len(data or b"") // entry_size * entry_size, what)

    # --- the other files

    def _items(self, path: Path, found: Found) -> list[Entry]:
        entries = []
        for item in found:
            if isinstance(item, Problem):
                self._add(path, item.position, item.what)
            else:
                entries.append(item)
        return entries

    def _check_text(self, name: str) -> None:
        data = self._read(name)
        if data is None:
            return
        entries = self._items(self._path / name, TEXT_FILES[name](data))
        if name == checkpoints.PARTITION_METADATA:
            self.result.topic_id = next((e.fields["topic_id"] for e in entries if "topic_id" in e.fields), None)
        elif name == checkpoints.LEADER_EPOCHS:
            self._check_epochs(self._path / name, entries)

    def _check_epochs(self, path: Path, entries: list[Entry]) -> None:
        """Check that the batches have the leader epochs that the checkpoint says, and that no epoch begins too late."""
        starts = [entry.fields["start_offset"] for entry in entries]
        epochs = [entry.fields["epoch"] for entry in entries]
        if starts != sorted(starts):
            return
        self.result.first_epoch_offset = starts[0] if starts else None
        for log, run in self._runs:
            epoch = run.leader_epoch
            if self._context.is_live and epochs and epoch > epochs[-1]:
                continue  # a leader stores its epoch before the next recovery point; until then the records have it
            for offset in (run.first_offset, run.last_offset):
                at = bisect_right(starts, offset) - 1
                if (at >= 0 and epochs[at] != epoch) or (at < 0 and epochs and epoch > epochs[0]):
                    entry = entries[max(at, 0)]
                    known = f"epoch {entry.fields['epoch']} from offset {entry.fields['start_offset']} on"
                    what = f"leader epoch {epoch} at offset {offset}; {path.name}, byte {entry.position}, has {known}"
                    self._add(log, run.position, what)
                    break
        end_offset = self._known_end()
        for entry in entries:
            epoch, start_offset = entry.fields["epoch"], entry.fields["start_offset"]
            if end_offset is not None and start_offset > end_offset:
                self._add(path, entry.position, f"epoch {epoch} begins at {start_offset}, the log ends at {end_offset}")

    def _check_snapshot(self, name: str, offset: int) -> None:
        data = self._read(name)
        if data is None:
            return
        self._items(self._path / name, BINARY_FILES[file_names.SNAPSHOT](data, offset))
        end_offset = self._known_end()
        if end_offset is not None and offset > end_offset:
            self._add(self._path / name, WHOLE_FILE, f"is of offset {offset}, the log ends at {end_offset}")

    def _known_end(self) -> int | None:
        """Return the log's end offset; None if it is unknown or a broker may be moving it."""
        return None if self._context.is_live else self.result.log_end_offset
