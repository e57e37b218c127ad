"""How a compacted segment replaces the segments it was made from, so that a power cut at any moment leaves a whole log.

1. Its files are written as `.cleaned` and made durable.
2. They are renamed to `.swap`, the `.log` last. From then on a restart finishes the swap.
3. The old files are renamed to `.deleted`.
4. The new files lose their suffix.

The names are Apache Kafka's (LogCleaner, LogLoader). Each step is durable before the next, so the order in which a disk
writes names cannot mix old files with new ones.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from kbroker._core.log.scan.segment_scan import scan_segment
from kbroker.fs import FileSystem
from kbroker.storage import file_names

logger = logging.getLogger("kbroker.storage")


def discard_cleaned(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the `.cleaned` files of a compaction that was given up."""
    for suffix in (file_names.LOG, *file_names.INDEX_SUFFIXES):
        _unlink_if_there(fs, file_names.path_of(directory, base_offset, suffix) + file_names.CLEANED)


def begin_swap(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Rename `.cleaned` to `.swap`, durably. Once this returns, a restart finishes the swap."""
    for suffix in file_names.INDEX_SUFFIXES:
        path = file_names.path_of(directory, base_offset, suffix)
        _rename_if_there(fs, path + file_names.CLEANED, path + file_names.SWAP)
    fs.sync_directory(directory)
    path = file_names.path_of(directory, base_offset, file_names.LOG)
    fs.rename(path + file_names.CLEANED, path + file_names.SWAP)
    fs.sync_directory(directory)


def finish_swap(fs: FileSystem, directory: str, base_offset: int, old: Iterable[int]) -> list[str]:
    """Rename the files of the `old` segments to `.deleted` and put the swap's files in their place, durably.

    Returns the paths of the `.deleted` files. The producers' snapshot at the base offset stays: it describes the log
    before the segment.
    """
    paths = rename_to_deleted(fs, directory, old, keep_snapshot_of=base_offset)
    fs.sync_directory(directory)
    _drop_swap_suffix(fs, directory, base_offset)
    return paths


def _drop_swap_suffix(fs: FileSystem, directory: str, base_offset: int) -> None:
    for suffix in (*file_names.INDEX_SUFFIXES, file_names.LOG):
        path = file_names.path_of(directory, base_offset, suffix)
        _rename_if_there(fs, path + file_names.SWAP, path)
    fs.sync_directory(directory)


def rename_to_deleted(fs: FileSystem, directory: str, bases: Iterable[int], *, keep_snapshot_of: int = -1) -> list[str]:
    """Rename the files of segments to `.deleted` and return the new paths. Not durable: the directory is not synced."""
    paths: list[str] = []
    for base_offset in bases:
        for suffix in (file_names.LOG, *file_names.INDEX_SUFFIXES, file_names.SNAPSHOT):
            if suffix == file_names.SNAPSHOT and base_offset == keep_snapshot_of:
                continue
            path = file_names.path_of(directory, base_offset, suffix)
            if _rename_if_there(fs, path, path + file_names.DELETED):
                paths.append(path + file_names.DELETED)
    return paths


# --- after a crash


def finish_leftovers(fs: FileSystem, directory: str) -> list[str]:
    """Clean up after an interrupted roll, deletion or compaction: remove leftover files, or finish a swap.

    Returns the names in the directory afterwards.
    """
    present = fs.list_directory(directory)
    entries = {name: file_names.parse_file_name(name) for name in present}
    logs = {at.base_offset for at in entries.values() if at and at.suffix == file_names.LOG and not at.step}
    orphans = {
        name
        for name, at in entries.items()
        if at and at.suffix in file_names.INDEX_SUFFIXES and not at.step and at.base_offset not in logs
    }  # fmt: skip
    if not orphans and not any(at.step if at else file_names.is_temporary(name) for name, at in entries.items()):
        return present
    cleaned = [at.base_offset for at in entries.values() if at and at.step == file_names.CLEANED]
    swapped = sorted(
        at.base_offset
        for at in entries.values()
        if at and at.suffix == file_names.LOG and at.step == file_names.SWAP
    )  # fmt: skip
    # A `.swap` at or behind a `.cleaned` file belongs to an unfinished compaction: the old segments hold all records.
    swapped = [base_offset for base_offset in swapped if not cleaned or base_offset < min(cleaned)]
    swapped = [base_offset for base_offset in swapped if not _is_damaged(fs, directory, base_offset, entries)]
    for name, at in entries.items():
        is_unfinished = at is not None and at.step == file_names.SWAP and at.base_offset not in swapped
        is_done_with = at is not None and at.step in (file_names.DELETED, file_names.CLEANED)
        if file_names.is_temporary(name) or is_unfinished or is_done_with:
            fs.unlink(f"{directory}/{name}")
    for base_offset in swapped:
        _finish_swap_at_start(fs, directory, base_offset, entries)
    for name in orphans:
        if int(name[:20]) not in swapped:
            _unlink_if_there(fs, f"{directory}/{name}")  # the old segments of a swap are gone by now
    return fs.list_directory(directory)


_Entries = dict[str, file_names.FileName | None]


def _is_damaged(fs: FileSystem, directory: str, base_offset: int, entries: _Entries) -> bool:
    """Return whether a swap is damaged while the segment that it was to replace is still there. Logs it."""
    if file_names.file_name(base_offset, file_names.LOG) not in entries:
        return False
    _, reason = _end_of(fs, directory, base_offset)
    if reason is not None:
        path = file_names.path_of(directory, base_offset, file_names.LOG) + file_names.SWAP
        logger.error("%s: %s; the segments that it was made from stay", path, reason)
    return reason is not None


def _end_of(fs: FileSystem, directory: str, base_offset: int) -> tuple[int, str | None]:
    """Return the end offset of a swap, and what is wrong with it; None if nothing is."""
    fd = fs.open(file_names.path_of(directory, base_offset, file_names.LOG) + file_names.SWAP, os.O_RDONLY)
    try:
        scan = scan_segment(fd, fs.file_size(fd), base_offset, verify=False)
        return max(scan.next_offset, base_offset + 1), scan.reason
    finally:
        fs.close(fd)


def _finish_swap_at_start(fs: FileSystem, directory: str, base_offset: int, entries: _Entries) -> None:
    """Remove the old segments that the swap covers, then rename its files.

    An index of the swap without the `.swap` suffix was renamed before the crash, and stays.
    """
    end_offset, _ = _end_of(fs, directory, base_offset)
    for name, at in entries.items():
        if at is None or at.step or at.suffix == file_names.SNAPSHOT or not base_offset <= at.base_offset < end_offset:
            continue
        if at.base_offset > base_offset or at.suffix == file_names.LOG or name + file_names.SWAP in entries:
            _unlink_if_there(fs, f"{directory}/{name}")
    fs.sync_directory(directory)
    _drop_swap_suffix(fs, directory, base_offset)


def _rename_if_there(fs: FileSystem, source: str, target: str) -> bool:
    try:
        fs.rename(source, target)
    except FileNotFoundError:
        return False
    return True


def _unlink_if_there(fs: FileSystem, path: str) -> None:
    try:
        fs.unlink(path)
    except FileNotFoundError:
        pass
