"""A file system that remembers every operation and can tell what a power cut at any of them may leave on the disk.

`CrashFileSystem` works on a real directory, so descriptors and maps are real, and keeps a journal. `after_power_cut(at,
seed, target)` builds, in another directory, one of the legal states after the first `at` operations:

* data written since a file's last fdatasync is lost, kept or torn at 512-byte sectors, write by write; a file may have
  its new size with zeros or garbage where the data did not arrive;
* of the names changed in a directory since its last sync, any prefix has arrived (journaling file systems keep the
  order within a directory); different directories are independent;
* what was synced is there.

`after_kill(at, target)` builds what a killed process leaves: everything.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.fs import RealFileSystem

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    file: int


@dataclass(frozen=True, slots=True)
class Link:
    """A name in a directory now means this file or (`file` is None) this directory."""

    path: str
    file: int | None


@dataclass(frozen=True, slots=True)
class Unlink:
    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    path: str


Operation = Write | Truncate | Sync | Link | Unlink | Rename | SyncDirectory
Fault = Callable[[str, object], int]
"""`(name of the call, path or descriptor)` -> errno to fail with, 0 to go on."""


def no_fault(call: str, what: object) -> int:
    return 0


@dataclass
class CrashFileSystem(RealFileSystem):
    """Everything the log does to `root`, remembered."""

    root: Path
    fault: Fault = no_fault
    short_writes: random.Random | None = None
    """Some writes write only a part, as they may."""

    passthrough = False

    def __post_init__(self) -> None:
        self.journal: list[Operation] = []
        self._lock = threading.RLock()
        self._files: dict[str, int] = {}
        self._descriptors: dict[int, int] = {}
        self._next_file = 0
        self._adopt(str(self.root))

    def _adopt(self, directory: str) -> None:
        """What is there already is on the disk."""
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if entry.is_dir():
                self.journal.append(Link(entry.path, None))
                self._adopt(entry.path)
            elif entry.name != ".lock":
                self._next_file += 1
                self._files[entry.path] = self._next_file
                self.journal.append(Link(entry.path, self._next_file))
                self.journal.append(Write(self._next_file, 0, Path(entry.path).read_bytes()))
                self.journal.append(Sync(self._next_file))
        self.journal.append(SyncDirectory(directory))

    @property
    def position(self) -> int:
        """How many operations there were."""
        return len(self.journal)

    def _maybe_fail(self, call: str, what: object) -> None:
        code = self.fault(call, what)
        if code:
            raise OSError(code, os.strerror(code), str(what))

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        with self._lock:
            self._maybe_fail("create" if flags & os.O_CREAT else "open", path)
            is_new = not os.path.exists(path)  # noqa: PTH110
            fd = super().open(path, flags, mode)
            if is_new:
                self._next_file += 1
                self._files[path] = self._next_file
                self.journal.append(Link(path, self._next_file))
            elif flags & os.O_TRUNC:
                self.journal.append(Truncate(self._files[path], 0))
            self._descriptors[fd] = self._files[path]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._descriptors.pop(fd)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        with self._lock:
            self._maybe_fail("pwrite", fd)
            if self.short_writes is not None and len(data) > 1 and self.short_writes.random() < 0.3:
                data = data[: self.short_writes.randrange(1, len(data))]
            written = super().pwrite(fd, data, position)
            self.journal.append(Write(self._descriptors[fd], position, bytes(data[:written])))
            return written

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self._maybe_fail("fdatasync", fd)
            self.journal.append(Sync(self._descriptors[fd]))

    def ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._maybe_fail("ftruncate", fd)
            super().ftruncate(fd, size)
            self.journal.append(Truncate(self._descriptors[fd], size))

    def allocate(self, fd: int, size: int) -> None:
        """Blocks without content: a power cut cannot tell."""
        with self._lock:
            self._maybe_fail("allocate", fd)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._maybe_fail("rename", source)
            super().rename(source, target)
            prefix = source + "/"
            for path in [path for path in self._files if path == source or path.startswith(prefix)]:
                self._files[target + path[len(source) :]] = self._files.pop(path)
            self.journal.append(Rename(source, target))

    def unlink(self, path: str) -> None:
        with self._lock:
            self._maybe_fail("unlink", path)
            super().unlink(path)
            del self._files[path]
            self.journal.append(Unlink(path))

    def mkdir(self, path: str) -> None:
        with self._lock:
            self._maybe_fail("mkdir", path)
            super().mkdir(path)
            self.journal.append(Link(path, None))

    def rmdir(self, path: str) -> None:
        with self._lock:
            self._maybe_fail("rmdir", path)
            super().rmdir(path)
            self.journal.append(Unlink(path))

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._maybe_fail("sync_directory", path)
            self.journal.append(SyncDirectory(path))

    # --- what is left

    def after_power_cut(self, at: int, seed: int, target: Path) -> None:
        """One legal state of the disk, in `target` (made by this)."""
        disk = _Disk(random.Random(f"{at} {seed}"), keep_all=False)
        disk.replay(self.journal[:at])
        disk.build(str(self.root), target)

    def after_kill(self, at: int, target: Path) -> None:
        """The disk when the process is killed and the machine lives on."""
        disk = _Disk(random.Random(0), keep_all=True)
        disk.replay(self.journal[:at])
        disk.build(str(self.root), target)


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)


@dataclass
class _Node:
    """A directory: names that are durable, and changes that may not be. Identity survives a rename of the directory."""

    durable: dict[str, int | _Node] = field(default_factory=dict)
    pending: list[tuple[str, int | _Node | None]] = field(default_factory=list)

    def current(self) -> dict[str, int | _Node]:
        names = dict(self.durable)
        for name, what in self.pending:
            _apply(names, name, what)
        return names


def _apply(names: dict[str, int | _Node], name: str, what: int | _Node | None) -> None:
    # A rename is two changes that arrive together: "source\0target" takes the name away and gives it.
    if "\0" in name:
        source, target = name.split("\0")
        names.pop(source, None)
        assert what is not None
        names[target] = what
    elif what is None:
        names.pop(name, None)
    else:
        names[name] = what


class _Disk:
    def __init__(self, randomness: random.Random, *, keep_all: bool):
        self._random = randomness
        self._keep_all = keep_all
        self._files: dict[int, _File] = {}
        self._root = _Node()

    def _at(self, path: str) -> tuple[_Node, str]:
        """The directory that holds the last name of `path`, by the names in force while the process ran."""
        *parents, name = path.strip("/").split("/")
        node = self._root
        for parent in parents:
            below = node.current().get(parent)
            if not isinstance(below, _Node):
                below = _Node()
                node.durable[parent] = below
            node = below
        return node, name

    def replay(self, journal: list[Operation]) -> None:
        for operation in journal:
            match operation:
                case Write(file) | Truncate(file):
                    self._files.setdefault(file, _File()).pending.append(operation)
                case Sync(file):
                    at = self._files.setdefault(file, _File())
                    at.durable = self._content(at, keep_all=True)
                    at.pending.clear()
                case Link(path, file_or_none):
                    node, name = self._at(path)
                    node.pending.append((name, _Node() if file_or_none is None else file_or_none))
                case Unlink(path):
                    node, name = self._at(path)
                    node.pending.append((name, None))
                case Rename(source, target):
                    node, name = self._at(source)
                    other, new_name = self._at(target)
                    assert node is other, "the log renames within a directory only"
                    node.pending.append((f"{name}\0{new_name}", node.current()[name]))
                case SyncDirectory(path):
                    node, name = self._at(f"{path}/.")
                    node.durable = node.current()
                    node.pending.clear()

    def build(self, root: str, target: Path) -> None:
        node, _ = self._at(f"{root}/.")
        target.mkdir(parents=True)
        self._build(node, target)

    def _build(self, node: _Node, target: Path) -> None:
        names = dict(node.durable)
        count = len(node.pending) if self._keep_all else self._random.choice((0, len(node.pending), None))
        if count is None:
            count = self._random.randint(0, len(node.pending))
        for name, what in node.pending[:count]:
            _apply(names, name, what)
        for name, what in names.items():
            if isinstance(what, _Node):
                (target / name).mkdir()
                self._build(what, target / name)
            else:
                (target / name).write_bytes(self._content(self._files.get(what, _File()), keep_all=self._keep_all))

    def _content(self, file: _File, *, keep_all: bool) -> bytearray:
        content = bytearray(file.durable)
        mood = 1.0 if keep_all else self._random.choice((0.0, 0.5, 0.9, 1.0))
        for operation in file.pending:
            if isinstance(operation, Truncate):
                if self._random.random() < mood or keep_all:
                    _resize(content, operation.size, b"\0")
            elif keep_all or self._random.random() < mood:
                _write(content, operation.position, operation.data)
            elif self._random.random() < 0.5:
                self._tear(content, operation)
        return content

    def _tear(self, content: bytearray, write: Write) -> None:
        """Some sectors arrive; where the others should be is what was there, zeros, or rubbish."""
        end = write.position + len(write.data)
        filler = self._random.choice((b"\0", b"\xa5"))
        size = self._random.choice((end, self._random.randint(write.position, end)))
        if size > len(content):
            _resize(content, size, filler)
        at = write.position
        while at < end:
            sector_end = min(end, (at // SECTOR + 1) * SECTOR)
            if self._random.random() < 0.5 and sector_end <= len(content):
                content[at:sector_end] = write.data[at - write.position : sector_end - write.position]
            at = sector_end


def _resize(content: bytearray, size: int, filler: bytes) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(filler * (size - len(content)))


def _write(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        _resize(content, position, b"\0")
    content[position : position + len(data)] = data


def disk_full(fs_bytes_left: list[int]) -> Fault:
    """ENOSPC once so many calls that need space were made; the test may put more into the list's only element."""

    def fault(call: str, what: object) -> int:
        if call not in ("pwrite", "create", "mkdir"):
            return 0
        if fs_bytes_left[0] <= 0:
            return errno.ENOSPC
        fs_bytes_left[0] -= 1
        return 0

    return fault
