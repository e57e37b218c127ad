"""Reads and writes the files of a lake: in a directory, or where pyarrow's file systems reach.

Paths are relative to the lake, with slashes. Methods raise OSError as the os module does.

    _kbload/lake.json                 what makes this a lake (identity.py)
    _kbload/plans/N-RUN.json          what a run was about to do
    _kbload/staging/N-RUN/...         files that no commit has yet, or that are about to get their names
    _kbload/commits/N.json            commits: what is in the lake
    _kbload/bundles/N.jsonl.gz        old commits
    _kbload/prepared/N-RUN.json       commits that count only if a topic names them
    topic=T/date=D/hour=H/*.parquet   the rows, and _SUCCESS
    _quarantine/topic=T/...           what could not be decoded
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.fs import RealFileSystem
from kbroker.spark.loader.errors import NotALake
from kbroker.spark.loader.settings import Settings

if TYPE_CHECKING:
    import pyarrow.fs

HOME = "_kbload"
IDENTITY = f"{HOME}/lake.json"
PLANS = f"{HOME}/plans"
STAGING = f"{HOME}/staging"
COMMITS = f"{HOME}/commits"
BUNDLES = f"{HOME}/bundles"
PREPARED = f"{HOME}/prepared"
QUARANTINE = "_quarantine"


WITHOUT_FOLDERS = {"s3", "gcs", "abfs"}  #: type names of pyarrow's file systems that need no folders


class Storage(Protocol):
    """The operations that a load needs on the files of a lake."""

    name: str
    held_per_file: int
    """The most bytes of an open output that are in memory; fewer as long as fewer were written."""

    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, durably, in place of one that is there."""

    def names(self, folder: str) -> list[str]:
        """Return the names of what is directly in a folder; an empty list if there is no such folder."""

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the path and size of all files below a folder."""

    def open_output(self, path: str) -> Any:
        """Return a new file to which pyarrow can write. Folders are made."""

    def open_input(self, path: str) -> Any: ...
    def start_writeback(self, sink: Any, position: int) -> None:
        """Let the disk begin with what was written to an open output from `position` on, so that `sync` waits less."""

    def sync(self, path: str) -> None:
        """Make sure that a closed file outlives a crash of the machine, and its name too."""

    def publish(self, staged: str, path: str) -> None:
        """Give a staged file the name `path`, in place of one that has it. Do nothing if that has been done."""

    def sync_folders(self, folders: Iterable[str]) -> None: ...
    def remove(self, paths: Iterable[str]) -> None:
        """Remove those files that exist."""

    def remove_folder(self, folder: str) -> None: ...


class Directory:
    """A lake in a local or mounted file system."""

    held_per_file = 0

    def __init__(self, root: str):
        self.name = root
        self._root = Path(root)
        self._fs = RealFileSystem()

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        made = self._written(path, data)
        made.replace(self._root / path)
        self._sync_folder(made.parent)

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file, durably, unless it exists. Of several who try at once only one gets True."""
        made = self._written(path, data)
        try:
            os.link(made, self._root / path)
        except FileExistsError:
            return False
        finally:
            made.unlink()
        self._sync_folder(made.parent)
        return True

    def _written(self, path: str, data: bytes) -> Path:
        target = self._root / path
        self._make_folder(target.parent)
        made = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with made.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            made.unlink(missing_ok=True)
            raise
        return made

    def names(self, folder: str) -> list[str]:
        try:
            return [each.name for each in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        for here, _, names in os.walk(self._root / folder):
            for name in names:
                found = Path(here, name)
                with contextlib.suppress(FileNotFoundError):
                    yield str(found.relative_to(self._root)), found.stat().st_size

    def open_output(self, path: str) -> Any:
        import pyarrow

        target = self._root / path
        self._make_folder(target.parent)
        return pyarrow.OSFile(str(target), "wb")

    def open_input(self, path: str) -> Any:
        import pyarrow

        return pyarrow.OSFile(str(self._root / path), "rb")

    def start_writeback(self, sink: Any, position: int) -> None:
        self._fs.start_writeback(sink.fileno(), sink.tell() - position, position)

    def sync(self, path: str) -> None:
        fd = os.open(self._root / path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._sync_folder((self._root / path).parent)

    def publish(self, staged: str, path: str) -> None:
        target = self._root / path
        self._make_folder(target.parent)
        try:
            (self._root / staged).rename(target)
        except FileNotFoundError:
            if not target.exists():
                raise

    def sync_folders(self, folders: Iterable[str]) -> None:
        for folder in sorted(set(folders)):
            if (self._root / folder).is_dir():
                self._sync_folder(self._root / folder)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        # A task that nobody waits for any more may still write there.
        shutil.rmtree(self._root / folder, ignore_errors=True)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, durably."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        self._sync_folder(folder.parent)

    def _sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class ObjectStore:
    """A lake in a pyarrow.fs.FileSystem, which need not be able to rename files or to create them on a condition.

    A file exists only once it is whole.
    """

    held_per_file = 11 << 20  #: a part of an upload

    def __init__(self, filesystem: pyarrow.fs.FileSystem, root: str):
        self._fs = without_backlog(filesystem)
        self._root = root.rstrip("/")
        self.name = f"{filesystem.type_name}:{self._root}"

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def read(self, path: str) -> bytes:
        with self._fs.open_input_stream(self._full(path)) as stream:
            return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        with self.open_output(path) as stream:
            stream.write(data)

    def names(self, folder: str) -> list[str]:
        return [each.base_name for each in self._found(folder, recursive=False)]

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        for each in self._found(folder, recursive=True):
            if each.is_file:
                yield each.path.removeprefix(f"{self._root}/"), each.size

    def _found(self, folder: str, *, recursive: bool) -> list[pyarrow.fs.FileInfo]:
        from pyarrow.fs import FileSelector

        found: list[pyarrow.fs.FileInfo] = self._fs.get_file_info(
            FileSelector(self._full(folder), recursive=recursive, allow_not_found=True)
        )
        return found

    def open_output(self, path: str) -> Any:
        full = self._full(path)
        self._make_folder(full)
        return self._fs.open_output_stream(full)

    def _make_folder(self, full: str) -> None:
        if self._fs.type_name not in WITHOUT_FOLDERS:
            self._fs.create_dir(full.rpartition("/")[0], recursive=True)

    def open_input(self, path: str) -> Any:
        return self._fs.open_input_file(self._full(path))

    def start_writeback(self, sink: Any, position: int) -> None:
        """Do nothing: a part of an upload leaves when it is full."""

    def sync(self, path: str) -> None:
        """Free memory only: a file is durable once it exists."""
        import pyarrow

        pyarrow.default_memory_pool().release_unused()  # the buffers of the upload's parts, which are large

    def publish(self, staged: str, path: str) -> None:
        source, target = self._full(staged), self._full(path)
        if self._is_published(source, target):
            return
        try:
            self._make_folder(target)
            self._fs.copy_file(source, target)
            self._fs.delete_file(source)
        except OSError:
            if not self._is_published(source, target):  # another loader may have done it at the same time
                raise

    def _is_published(self, source: str, target: str) -> bool:
        """Return whether `source` is gone and `target` exists. Raises FileNotFoundError when neither exists."""
        there, done = self._fs.get_file_info([source, target])
        if not there.is_file and not done.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        return not there.is_file

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Do nothing: there are no folders to sync."""

    def remove(self, paths: Iterable[str]) -> None:
        full = [self._full(path) for path in paths]
        for each in self._fs.get_file_info(full) if full else ():
            if each.is_file:
                self._fs.delete_file(each.path)

    def remove_folder(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            self._fs.delete_dir(self._full(folder))


def without_backlog(filesystem: pyarrow.fs.FileSystem) -> pyarrow.fs.FileSystem:
    """Return a file system whose writes wait for a slow store: pyarrow's S3 takes writes ahead without a limit."""
    if filesystem.type_name != "s3":
        return filesystem
    make, (options,) = filesystem.__reduce__()
    return make({**options, "background_writes": False})


def storage_of(settings: Settings) -> Directory | ObjectStore:
    """Return the Storage of the lake. Raises NotALake when `settings.lake` is not a place that can be reached."""
    if settings.filesystem is not None:
        return ObjectStore(settings.filesystem, settings.lake)
    if "://" not in settings.lake:
        return Directory(settings.lake)
    from pyarrow.fs import FileSystem, LocalFileSystem

    try:
        filesystem, root = FileSystem.from_uri(settings.lake)
    except (ValueError, OSError) as error:
        raise NotALake(f"{settings.lake}: {error}") from None
    return Directory(root) if isinstance(filesystem, LocalFileSystem) else ObjectStore(filesystem, root)
