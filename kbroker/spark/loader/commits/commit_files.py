"""The files of commits: `commits/N.json` for each new one, and bundles of old ones.

A lake that is loaded each minute has half a million commits after a year. A load lists only the commits that have files
of their own, and reads the last. A bundle has BUNDLE commits, one a line, and is named by the number of the last one.
A bundle is first written whole; then the files of its commits, which nobody reads any more, are removed. All of that
can be cut off anywhere, be done again, and be done by several loaders at once.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kbroker.spark.loader.commits.commit import Commit, LakeFile, decode_commit
from kbroker.spark.loader.errors import LakeDamaged, LakeTaken
from kbroker.spark.loader.lake.storage import BUNDLES, COMMITS, PREPARED, Directory, Storage

COMMIT_NAME = re.compile(r"(\d{10})\.json")
BUNDLE_NAME = re.compile(r"(\d{10})\.jsonl\.gz")

BUNDLE = 100
"""How many commits a bundle has. On disk. Do not change: bundles of all lakes have so many."""

AT_ONCE = 16  #: files at a time: an object store takes its time for each

T = TypeVar("T")
R = TypeVar("R")


class FileCommits:
    """The commits of a lake that is a directory."""

    def __init__(self, storage: Directory):
        self._storage = storage

    def last(self) -> Commit | None:
        numbers = commit_numbers(self._storage)
        return read_commit(self._storage, numbers[-1]) if numbers else None

    def add(self, commit: Commit) -> None:
        path = commit_path(commit.number)
        if self._storage.create(path, commit.encode()):
            if bundle_of(commit.number) not in _bundles(self._storage):
                return
            self._storage.remove([path])  # this number was committed long ago, and is in a bundle
        raise LakeTaken(
            f"{self._storage.name}: another loader has committed {commit.number} meanwhile; "
            "what this one has read is given up, and nothing is lost"
        )

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def commit_path(number: int) -> str:
    return f"{COMMITS}/{number:010}.json"


def prepared_path(commit: Commit) -> str:
    """Return where a commit is kept before a record of a topic makes it one (topic_commits.py)."""
    return f"{PREPARED}/{commit.staging}.json"


def commit_numbers(storage: Storage) -> list[int]:
    """Return the numbers of commits that have files of their own, ascending. The last commit always has one."""
    return sorted(_numbers(storage.names(COMMITS), COMMIT_NAME))


def read_commit(storage: Storage, number: int) -> Commit:
    path = commit_path(number)
    return decode_commit(storage.read(path), f"{storage.name}/{path}")


def all_commits(storage: Storage, after: int = 0) -> Iterator[Commit]:
    """Yield the commits with numbers above `after`, the oldest first. Raises LakeDamaged when one is gone."""
    numbers = commit_numbers(storage)
    bundles = _bundles(storage)  # listed after them: a commit that had no file of its own is in one
    start, end = after + 1, numbers[-1] + 1 if numbers else 0
    while start < end:
        bundle = bundle_of(start)
        wanted = range(start, min(bundle + 1, end))
        if bundle in bundles:
            found = _read_bundle(storage, bundle)
        else:
            try:
                found = _read_own(storage, wanted)
            except FileNotFoundError:
                found = _read_bundle(storage, bundle)
        yield from (commit for commit in found if commit.number in wanted)
        start = wanted.stop


def replaced_by(storage: Storage, commit: Commit) -> list[LakeFile]:
    """Return the files of the lake that the commit's files replace."""
    found: dict[str, LakeFile] = {}
    if commit.removed:
        for before in all_commits(storage):
            if before.number < commit.number:
                found |= {file.path: file for file in before.files}
    return [found[path] for path in commit.removed]


def files_now(storage: Storage) -> dict[str, LakeFile]:
    """Return the files that the lake has after all its commits, by path."""
    found: dict[str, LakeFile] = {}
    for commit in all_commits(storage):
        change(found, commit)
    return found


def change(files: dict[str, LakeFile], commit: Commit) -> None:
    """Change `files`, the lake's files by path before a commit, into those after the commit."""
    for path in commit.removed:
        files.pop(path, None)
    files |= {file.path: file for file in commit.files}


# --- bundles ------------------------------------------------------------------------------------------------


def bundle_of(number: int) -> int:
    """Return the number of the last commit in the bundle to which commit `number` belongs."""
    return -(-number // BUNDLE) * BUNDLE


def bundle_path(last: int) -> str:
    return f"{BUNDLES}/{last:010}.jsonl.gz"


def fold(storage: Storage) -> None:
    """Put commits into bundles once 2 * BUNDLE of them have files of their own: at least half of them."""
    numbers = commit_numbers(storage)
    if len(numbers) < 2 * BUNDLE:
        return
    until = bundle_of(numbers[-1] + 1) - 2 * BUNDLE
    prepared = [name for name in storage.names(PREPARED) if name[:10].isdigit() and int(name[:10]) <= until]
    _remove(storage, (f"{PREPARED}/{name}" for name in prepared))  # a lake's topic names a newer one
    there = _bundles(storage)
    old = [number for number in numbers if number <= until]
    for last in sorted({bundle_of(number) for number in old}):
        if last not in there:
            try:
                commits = _read_own(storage, range(last - BUNDLE + 1, last + 1))
            except FileNotFoundError:  # another loader is at it
                return
            data = b"".join(commit.encode() + b"\n" for commit in commits)
            storage.write(bundle_path(last), gzip.compress(data, mtime=0))
        _remove(storage, (commit_path(number) for number in old if bundle_of(number) == last))


def _remove(storage: Storage, paths: Iterable[str]) -> None:
    _at_once(lambda path: storage.remove([path]), paths)


def _bundles(storage: Storage) -> set[int]:
    return _numbers(storage.names(BUNDLES), BUNDLE_NAME)


def _read_bundle(storage: Storage, last: int) -> list[Commit]:
    path = bundle_path(last)
    named = f"{storage.name}/{path}"
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise LakeDamaged(
            f"{storage.name}: not all commits up to {last} are in {COMMITS}, and there is no {path}"
        ) from None
    try:
        lines = gzip.decompress(data).splitlines()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise LakeDamaged(f"{named} is no bundle of commits: {error}") from None
    commits = [decode_commit(line, named) for line in lines]
    if [commit.number for commit in commits] != list(range(last - BUNDLE + 1, last + 1)):
        raise LakeDamaged(f"{named} has other commits than {last - BUNDLE + 1} to {last}")
    return commits


def _read_own(storage: Storage, numbers: Iterable[int]) -> list[Commit]:
    return _at_once(lambda number: read_commit(storage, number), numbers)


def _numbers(names: Iterable[str], pattern: re.Pattern[str]) -> set[int]:
    return {int(found[1]) for name in names if (found := pattern.fullmatch(name))}


def _at_once(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(AT_ONCE, "kbroker-commits") as pool:
        return list(pool.map(function, items))
