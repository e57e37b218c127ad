"""The entries of a file of any kind, and the files of a directory that can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kbroker.errors import KbrokerError
from kbroker.inspection.binary_files import BINARY_FILES
from kbroker.inspection.directory_check import is_log_directory, is_partition_directory, refuse_kraft
from kbroker.inspection.entries import Entry, Found, Problem, read_whole
from kbroker.inspection.log_file import LogOptions, read_log
from kbroker.inspection.partition_check import PartitionChecker, PartitionContext
from kbroker.inspection.text_files import TEXT_FILES
from kbroker.storage import file_names


def files_of(path: Path) -> Iterator[Path]:
    """Yield the file at `path`, or the files of known kinds below a log directory or a partition's directory.

    Raises KbrokerError if the path is something else.
    """
    if not path.exists():
        raise KbrokerError(f"{path}: no such file or directory")
    refuse_kraft(path)
    if path.is_dir():
        if not (is_partition_directory(path) or is_log_directory(path)):
            raise KbrokerError(f"{path}: neither a log directory nor a partition's: none of their files is there")
        yield from sorted(file for file in path.rglob("*") if is_known(file.name) and not file.is_dir())
    elif is_known(path.name):
        yield path
    else:
        raise KbrokerError(f"{path}: no file of a log directory has this name")


def is_known(name: str) -> bool:
    return name in TEXT_FILES or file_names.is_of_a_log(name)


def is_index(path: Path) -> bool:
    return _kind(path) in (file_names.INDEX, file_names.TIME_INDEX)


def read_entries(path: Path, options: LogOptions) -> Found:
    """Yield the entries and problems of a file. Raises OSError if it cannot be read."""
    if path.name in TEXT_FILES:
        yield from TEXT_FILES[path.name](read_whole(str(path)))
        return
    parsed = file_names.parse_file_name(path.name)
    if parsed is None:
        return
    if parsed.suffix == file_names.LOG:
        yield Entry("log", 0, {"starting_offset": parsed.base_offset})
        yield from read_log(path, options)
    elif parsed.suffix in BINARY_FILES:
        yield from BINARY_FILES[parsed.suffix](read_whole(str(path)), parsed.base_offset)


def index_sanity(path: Path) -> Found:
    """Check an index only as a broker does before it uses it: whole entries, and the last not before the first."""
    data = read_whole(str(path))
    entries = []
    for item in BINARY_FILES[_kind(path)](data, 0):
        if isinstance(item, Problem):
            yield item
        else:
            entries.append((item.position, item.fields["offset"], item.fields.get("timestamp", 0)))
    if entries and (entries[-1][1] < 0 or entries[-1][1] < entries[0][1] or entries[-1][2] < entries[0][2]):
        yield Problem(entries[-1][0], "the last entry stands before the first")


def against_its_log(path: Path) -> Iterator[Problem]:
    """Yield the problems of an index when it is compared with the log beside it."""
    context = PartitionContext()
    for finding in PartitionChecker(path.parent, context).check_file(path.name).findings:
        yield Problem(finding.position, finding.what)


def _kind(path: Path) -> str:
    parsed = file_names.parse_file_name(path.name)
    return parsed.suffix if parsed else ""
