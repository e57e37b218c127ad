"""A file system that remembers every operation and can tell what a power cut at any of them may leave on the disk.

`CrashFileSystem` works on a real directory, so descriptors and maps are real, and keeps a journal. `after_power_cut(at,
seed, target)` builds, in another directory, one of the legal states after the first `at` operations:

* data written since a file's last fdatasync is lost, kept or torn at 512-byte sectors, write by write; a file may have
  its new size with zeros or garbage where the data did not arrive;
* of the names changed in a directory since its last sync, any prefix has arrived, as on journaling file systems, or,
  with `reorder`, any of them, as POSIX allows; a rename arrives whole; different directories are independent;
* what was synced is there.

`after_kill(at, target)` builds what a killed process leaves: everything. Cuts are cheapest in ascending order.
"""

from __future__ import annotations

import errno
import os
import random
import re
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


@dataclass(frozen=True, slots=True)
class Mark:
    """A journal entry without a change on the disk.

    It says what the process was doing, and dates what is stored elsewhere.
    """

    text: str


Operation = Write | Truncate | Sync | Link | Unlink | Rename | SyncDirectory | Mark
Fault = Callable[[str, object], int]
"""`(name of the call, path or descriptor)` -> errno to fail with, 0 to go on."""


def no_fault(call: str, what: object) -> int:
    return 0


def nobody_else(path: str) -> None:
    pass


@dataclass
class CrashFileSystem(RealFileSystem):
    """A real file system that keeps a journal of all operations below `root`."""

    root: Path
    fault: Fault = no_fault
    short_writes: random.Random | None = None
    """If set, some writes write only a part of their data, as POSIX allows."""
    reorder: bool = False
    """Whether names changed in a directory may arrive in any order."""
    after_rename: Callable[[str], None] = nobody_else
    """Called with each new name after a rename, to do what other threads do at that moment."""

    passthrough = False

    def __post_init__(self) -> None:
        self.journal: list[Operation] = []
        self._lock = threading.RLock()
        self._files: dict[str, int] = {}
        self._descriptors: dict[int, int] = {}
        self._next_file = 0
        self._disk: _Disk | None = None
        self._adopt(str(self.root))

    def _adopt(self, directory: str) -> None:
        """Note everything that is in a directory already as synced."""
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
        """The number of operations in the journal."""
        return len(self.journal)

    def mark(self, text: str) -> None:
        with self._lock:
            self.journal.append(Mark(text))

    def around(self, at: int) -> str:
        """A text for people: what the process was doing at an operation."""
        marks = [each.text for each in self.journal[:at] if isinstance(each, Mark)]
        last = [each for each in self.journal[:at] if not isinstance(each, Mark)][-1:]
        after = re.sub(r"'[^' ]*/([^/]+/[^/]+/[^/]+)'", r"\1", str(last[0]))[:100] if last else "nothing"
        return f"in {marks[-1] if marks else 'nothing'}, after {after}"

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

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
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
        """Allocate blocks. They have no content, so the journal does not note them."""
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
        self.after_rename(target)

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

    def list_directory(self, path: str) -> list[str]:
        return sorted(super().list_directory(path))

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._maybe_fail("sync_directory", path)
            self.journal.append(SyncDirectory(path))

    # --- what is left

    def after_power_cut(self, at: int, seed: int, target: Path) -> None:
        """Make the directory `target` with one legal state of the disk after a power cut at operation `at`."""
        chance = random.Random(f"{at} {seed}")
        self._disk_at(at).build(str(self.root), target, _Losses(chance, self.reorder))

    def after_kill(self, at: int, target: Path) -> None:
        """Make the directory `target` with what the disk has after the process was killed at operation `at`."""
        self._disk_at(at).build(str(self.root), target, None)

    def _disk_at(self, at: int) -> _Disk:
        if self._disk is None or self._disk.position > at:
            self._disk = _Disk()
        self._disk.replay(self.journal[self._disk.position : at])
        return self._disk


Change = tuple[tuple[str, "int | _Node | None"], ...]
"""Names that change together, and what each of them means afterwards."""


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)


@dataclass(slots=True)
class _Node:
    """A directory: names that are durable, and changes that may not be. Identity survives a rename of the directory."""

    durable: dict[str, int | _Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    now: dict[str, int | _Node] = field(default_factory=dict)
    """The directory as the process sees it."""

    def change(self, change: Change) -> None:
        self.pending.append(change)
        _apply(self.now, change)

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.pending.clear()


def _apply(names: dict[str, int | _Node], change: Change) -> None:
    for name, what in change:
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


@dataclass(slots=True)
class _Losses:
    """Decides what a power cut takes of the changes that were not synced."""

    chance: random.Random
    reorder: bool

    def names(self, pending: list[Change]) -> list[Change]:
        """Choose the changes of names that have arrived on the disk."""
        mood = self.chance.choice(("none", "all", "some", "any" if self.reorder else "some"))
        if mood == "none":
            return []
        if mood == "some":
            return pending[: self.chance.randint(0, len(pending))]
        return pending if mood == "all" else [change for change in pending if self.chance.random() < 0.5]

    def content(self, file: _File) -> bytearray:
        content = bytearray(file.durable)
        mood = self.chance.choice((0.0, 0.5, 0.9, 1.0))
        for operation in file.pending:
            if isinstance(operation, Truncate):
                if self.chance.random() < mood:
                    _resize(content, operation.size, b"\0")
            elif self.chance.random() < mood:
                _write(content, operation.position, operation.data)
            elif self.chance.random() < 0.5:
                self._tear(content, operation)
        return content

    def _tear(self, content: bytearray, write: Write) -> None:
        """Apply a write of which only some sectors have arrived. The others keep what was there, zeros or garbage."""
        end = write.position + len(write.data)
        filler = self.chance.choice((b"\0", b"\xa5"))
        size = self.chance.choice((end, self.chance.randint(write.position, end)))
        if size > len(content):
            # A sector that holds something was whole when it was written: zeros behind that, no rubbish.
            _resize(content, min(size, -(-len(content) // SECTOR) * SECTOR), b"\0")
            _resize(content, max(size, len(content)), filler)
        at = write.position
        while at < end:
            sector_end = min(end, (at // SECTOR + 1) * SECTOR)
            if self.chance.random() < 0.5 and sector_end <= len(content):
                content[at:sector_end] = write.data[at - write.position : sector_end - write.position]
            at = sector_end


class _Disk:
    """The state of a journal's replay: what is on the device, and what is on its way there."""

    def __init__(self) -> None:
        self.position = 0
        self._files: dict[int, _File] = {}
        self._root = _Node()

    def _at(self, path: str) -> tuple[_Node, str]:
        """The directory that holds the last name of `path`, by the names in force while the process ran."""
        *parents, name = path.strip("/").split("/")
        node = self._root
        for parent in parents:
            below = node.now.get(parent)
            if not isinstance(below, _Node):
                below = _Node()
                node.durable[parent] = node.now[parent] = below
            node = below
        return node, name

    def replay(self, operations: list[Operation]) -> None:
        self.position += len(operations)
        for operation in operations:
            match operation:
                case Write(file) | Truncate(file):
                    self._files.setdefault(file, _File()).pending.append(operation)
                case Sync(file):
                    at = self._files.setdefault(file, _File())
                    _write_down(at.durable, at.pending)
                    at.pending.clear()
                case Link(path, file_or_none):
                    node, name = self._at(path)
                    node.change(((name, _Node() if file_or_none is None else file_or_none),))
                case Unlink(path):
                    node, name = self._at(path)
                    node.change(((name, None),))
                case Rename(source, target):
                    node, name = self._at(source)
                    other, new_name = self._at(target)
                    assert node is other, "the log renames within a directory only"
                    node.change(((name, None), (new_name, node.now[name])))
                case SyncDirectory(path):
                    self._at(f"{path}/.")[0].sync()

    def build(self, root: str, target: Path, losses: _Losses | None) -> None:
        target.mkdir(parents=True)
        self._build(self._at(f"{root}/.")[0], str(target), losses)

    def _build(self, node: _Node, target: str, losses: _Losses | None) -> None:
        names = node.now
        if losses is not None:
            names = dict(node.durable)
            for change in losses.names(node.pending):
                _apply(names, change)
        for name, what in names.items():
            path = f"{target}/{name}"
            if isinstance(what, _Node):
                os.mkdir(path)  # noqa: PTH102 (thousands of them)
                self._build(what, path, losses)
                continue
            file = self._files.get(what) or _File()
            if losses is not None:
                content = losses.content(file)
            else:
                content = bytearray(file.durable)
                _write_down(content, file.pending)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(fd, content)
            os.close(fd)


def _write_down(content: bytearray, operations: list[Write | Truncate]) -> None:
    for operation in operations:
        if isinstance(operation, Truncate):
            _resize(content, operation.size, b"\0")
        else:
            _write(content, operation.position, operation.data)


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
    """Raise ENOSPC after as many calls that need space as the list's only element says.

    The test may raise the number.
    """

    def fault(call: str, what: object) -> int:
        if call not in ("pwrite", "create", "mkdir"):
            return 0
        if fs_bytes_left[0] <= 0:
            return errno.ENOSPC
        fs_bytes_left[0] -= 1
        return 0

    return fault
