"""The check of whole log directories, partitions and files behind `kbroker verify-log`.

A partition that a broker is writing is checked up to three times if something seems wrong. A finding counts only if it
is found each time: others were states in the middle of the broker's work.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.errors import KbrokerError
from kbroker.inspection.entries import WHOLE_FILE, Entry, Finding, Problem, read_whole, reason_of
from kbroker.inspection.partition_check import (
    PartitionCheck,
    PartitionChecker,
    PartitionContext,
    Progress,
)
from kbroker.inspection.text_files import OFFSET_CHECKPOINTS, TEXT_FILES
from kbroker.model import INTERNAL_TOPICS, TopicPartition
from kbroker.storage import checkpoints, directory, file_names
from kbroker.storage.checkpoints import CLEANER_OFFSETS

_ROOT_FILES = (*OFFSET_CHECKPOINTS, directory.META_PROPERTIES, directory.CLEAN_MARK)
_OF_OTHERS = re.compile(r"\.lock|coordination\.sqlite(\.carried)?(-.*)?|lost\+found")
_DEPARTED = re.compile(r"(.+)-(\d+)\.[0-9a-f]{32}(-delete|-stray|-future)")
_LOCK = struct.Struct("hhqqi4x")  # struct flock
_LOOKS = 3
_PAUSE_S = 0.1

_ADVICE = {
    checkpoints.LOG_START_OFFSETS: ": a start refuses the log after a clean stop; put the right offset into this line,"
    " or remove it and lower the number above by one"
}
"""What can be done about an offset beyond a log's end, by the checkpoint that has it."""

Offsets = dict[TopicPartition, tuple[int, int]]
"""The entries of a checkpoint: for each partition the offset, and the byte at which its line begins."""


def is_locked(path: Path) -> bool:
    """Return whether a broker has locked the log directory. This only asks, and takes no lock."""
    try:
        fd = os.open(path / directory.LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        question = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer: bytes = fcntl.fcntl(fd, fcntl.F_GETLK, question)
        return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(fd)


def is_partition_directory(path: Path) -> bool:
    """Return whether a directory is a partition's, by its name and, if it is not empty, by the files in it."""
    if directory.parse_partition_directory(path.name) is None and _DEPARTED.fullmatch(path.name) is None:
        return False
    entries = os.listdir(path)  # noqa: PTH208
    return not entries or any(file_names.is_of_a_log(name) for name in entries)


def is_log_directory(path: Path) -> bool:
    """Return whether a directory has a file that only log directories have, or a partition's directory."""
    with os.scandir(path) as entries:
        return any(
            entry.name in _ROOT_FILES
            or (entry.is_dir() and directory.parse_partition_directory(entry.name) is not None
                and is_partition_directory(Path(entry.path)))
            for entry in entries
        )  # fmt: skip


def refuse_kraft(path: Path) -> None:
    """Refuse Kafka's metadata log. Raises KbrokerError if the path is a metadata log of KRaft or holds one."""
    if directory.METADATA_LOG in path.absolute().parts or path.name == "bootstrap.checkpoint":
        raise KbrokerError(f"{path}: of the metadata log of Kafka in KRaft mode, which kbroker does not read")
    if path.is_dir() and (path / directory.METADATA_LOG).exists():
        raise KbrokerError(f"{path}: a log directory of Kafka in KRaft mode, which kbroker does not read")


@dataclass(slots=True)
class Totals:
    """Counts how much was checked."""

    partitions: int = 0
    bytes: int = 0
    """Bytes of the partitions' .log files."""
    files: int = 0
    """Files that are not in a partition that was checked."""

    def __str__(self) -> str:
        parts = []
        if self.partitions:
            parts.append(f"{_counted(self.partitions, 'partition')} with {self.bytes / 1e6:.1f} MB")
        if self.files:
            parts.append(_counted(self.files, "file"))
        return f"checked {' and '.join(parts)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(slots=True)
class Verifier:
    """Checks paths one after the other. Ids of broker, cluster, directories and topics must agree across all paths."""

    has_gaps: bool = False
    """Offsets may be missing in any log, whatever the log directory says."""
    progress: Progress | None = None
    totals: Totals = field(default_factory=Totals)
    _identities: dict[str, tuple[str, str]] = field(default_factory=dict)
    _directory_ids: dict[str, str] = field(default_factory=dict)
    _topic_ids: dict[str, tuple[str, str]] = field(default_factory=dict)
    _homes: dict[TopicPartition, Path] = field(default_factory=dict)

    def check(self, path: Path) -> Iterator[Finding]:
        """Yield the findings of a file, a partition's directory or a log directory.

        Raises KbrokerError if the path is something else or cannot be read.
        """
        try:
            if not path.exists():
                raise KbrokerError(f"{path}: no such file or directory")
            refuse_kraft(path)
            if not path.is_dir():
                yield from self._check_file(path)
            elif is_partition_directory(path):
                yield from self._check_partition(path, LogDirectory(path.parent))
            elif is_log_directory(path):
                yield from self._check_log_directory(LogDirectory(path))
            else:
                raise KbrokerError(f"{path}: neither a log directory nor a partition's: none of their files is there")
        except OSError as error:
            raise KbrokerError(f"{error.filename or path}: {reason_of(error)}") from None

    # --- one file

    def _check_file(self, path: Path) -> Iterator[Finding]:
        self.totals.files += 1
        if path.name in _ROOT_FILES:
            yield from self._check_root_file(path)
            return
        if not file_names.is_of_a_log(path.name):
            raise KbrokerError(f"{path}: no file of a log directory has this name")
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))  # raises: an unreadable file is no finding
        home = LogDirectory(path.parent.parent)
        is_live = home.is_live
        context = PartitionContext(self.has_gaps or home.has_gaps(path.parent.name), is_live, self.progress)
        yield from _lasting(lambda _: PartitionChecker(path.parent, context).check_file(path.name), is_live).findings

    def _check_root_file(self, path: Path) -> Iterator[Finding]:
        for item in TEXT_FILES[path.name](read_whole(str(path))):
            if isinstance(item, Problem):
                yield Finding(str(path), item.position, item.what)
            elif path.name == directory.META_PROPERTIES:
                yield from self._check_identity(path, item)

    def _check_identity(self, path: Path, entry: Entry) -> Iterator[Finding]:
        for name, value in entry.fields.items():
            if name == "directory.id":
                other = self._directory_ids.setdefault(value, str(path))
                if other != str(path):
                    yield Finding(str(path), entry.position, f"directory.id {value} is that of {other}, too")
            elif name != "version":
                known, other = self._identities.setdefault(name, (value, str(path)))
                if known != value:
                    yield Finding(str(path), entry.position, f"{name} {value}, but {other} has {known}")

    # --- partitions

    def _check_partition(self, path: Path, home: LogDirectory) -> Iterator[Finding]:
        self.totals.partitions += 1
        partition = directory.parse_partition_directory(path.name)

        def look(is_again: bool) -> PartitionCheck:
            # Checkpoints read before the log cannot be newer than it, unless the topic was deleted and made anew.
            offsets = home.read_offsets() if is_again else home.offsets
            has_gaps = self.has_gaps or home.is_live or home.has_gaps(path.name)
            context = PartitionContext(has_gaps, home.is_live, self.progress)
            checked = PartitionChecker(path, context).check()
            if partition is not None and path.exists():
                checked.findings += home.beyond_the_end(partition, checked, offsets)
            return checked

        checked = _lasting(look, home.is_live)
        self.totals.bytes += checked.size
        yield from checked.findings
        if partition is None:
            return
        other = self._homes.setdefault(partition, path)
        if other != path:
            yield Finding(str(path), WHOLE_FILE, f"{partition} is in {other.parent}, too")
        if checked.topic_id is not None:
            file = path / checkpoints.PARTITION_METADATA
            known, where = self._topic_ids.setdefault(partition.topic, (checked.topic_id, str(file)))
            if known != checked.topic_id:
                yield Finding(str(file), len("version: 0\n"), f"topic_id {checked.topic_id}, but {where} has {known}")

    # --- log directories

    def _check_log_directory(self, home: LogDirectory) -> Iterator[Finding]:
        home.load()
        partitions = []
        for name in sorted(os.listdir(home.path)):  # noqa: PTH208
            path = home.path / name
            if name in _ROOT_FILES:
                self.totals.files += 1
                try:
                    yield from self._check_root_file(path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    yield Finding(str(path), WHOLE_FILE, reason_of(error))
            elif _OF_OTHERS.fullmatch(name) or name.removesuffix(".tmp") in _ROOT_FILES:
                continue
            elif path.is_dir() and (directory.parse_partition_directory(name) or _DEPARTED.fullmatch(name)):
                if not name.endswith(file_names.DIRECTORY_DELETE):
                    partitions.append(path)
            elif path.exists():
                kind = "directory" if path.is_dir() else "file"
                yield Finding(str(path), WHOLE_FILE, f"no {kind} of a log directory has this name")
        for path in partitions:
            yield from self._check_partition(path, home)
        yield from home.lost_partitions()


class LogDirectory:
    """What the files directly in a log directory say about its partitions."""

    def __init__(self, path: Path):
        self.path = path
        self.is_live = is_locked(path)
        self.is_known = (path / directory.META_PROPERTIES).exists()
        self.is_clean = (path / directory.CLEAN_MARK).exists()
        self.offsets: dict[str, Offsets] = {}

    def load(self) -> None:
        self.offsets = self.read_offsets()

    def read_offsets(self) -> dict[str, Offsets]:
        """Return the entries of each offset checkpoint, as far as it can be read."""
        return {name: _offsets_in(self.path / name) for name in OFFSET_CHECKPOINTS}

    def has_gaps(self, partition_directory: str) -> bool:
        """Return whether offsets may be missing in a partition: it was compacted, or that cannot be ruled out."""
        partition = directory.parse_partition_directory(partition_directory)
        if not self.is_known or partition is None or partition.topic in INTERNAL_TOPICS:
            return True
        cleaned = self.offsets[CLEANER_OFFSETS] if self.offsets else _offsets_in(self.path / CLEANER_OFFSETS)
        # A cleaning that was given up leaves gaps and no entry. So if other topics were compacted, this one may be too.
        return any(known.topic not in INTERNAL_TOPICS for known in cleaned)

    def beyond_the_end(
        self, partition: TopicPartition, checked: PartitionCheck, offsets: dict[str, Offsets]
    ) -> Iterator[Finding]:
        """Yield findings of checkpoints that contradict a log.

        The log ends below an offset of theirs, or its first leader epoch begins below their log start offset.
        """
        end_offset = checked.log_end_offset
        if end_offset is None:
            return
        for name, known in offsets.items():
            offset, position = known.get(partition, (0, 0))
            if offset > end_offset:
                what = f"{partition} at {offset}, its log ends at {end_offset}"
                yield Finding(str(self.path / name), position, what + _ADVICE.get(name, ""))
        starts = offsets.get(checkpoints.LOG_START_OFFSETS, {})
        if partition in starts and checked.first_epoch_offset is not None:
            offset, position = starts[partition]
            if checked.first_epoch_offset < offset <= end_offset:
                what = f"{partition} at {offset}, its first leader epoch begins at {checked.first_epoch_offset}"
                yield Finding(
                    str(self.path / checkpoints.LOG_START_OFFSETS), position, f"{what}: a start takes the less"
                )

    def lost_partitions(self) -> Iterator[Finding]:
        """Yield checkpoint entries whose partition has no directory. A crash may leave some, a clean stop none."""
        if not self.is_clean or self.is_live:
            return
        for name, known in self.offsets.items():
            for partition, (_, position) in known.items():
                if not (self.path / str(partition)).is_dir():
                    yield Finding(str(self.path / name), position, f"{partition} has no directory")


def _offsets_in(path: Path) -> Offsets:
    try:
        items: Sequence[Entry | Problem] = list(TEXT_FILES[path.name](read_whole(str(path))))
    except OSError:
        return {}
    return {
        TopicPartition(item.fields["topic"], item.fields["partition"]): (item.fields["offset"], item.position)
        for item in items
        if isinstance(item, Entry)
    }


def _lasting(look: Callable[[bool], PartitionCheck], is_live: bool) -> PartitionCheck:
    """Return the result of `look`; in a live directory, only the findings that up to three looks have all made.

    `look` is passed whether it looks again.
    """
    checked = look(False)
    for _ in range(_LOOKS - 1):
        if not is_live or not checked.findings:
            break
        time.sleep(_PAUSE_S)
        again = look(True)
        again.findings = [finding for finding in again.findings if finding in checked.findings]
        checked = again
    return checked
