"""File systems to be filled up, or to become read-only. Tests are skipped without the permission to mount."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE = "24m"


def mount(*arguments: str) -> None:
    """Mount something. The test is skipped where this process may mount nothing."""
    if refusal := why_no_disk():
        pytest.skip(refusal)
    subprocess.run(["mount", *arguments], check=True)


def why_no_disk() -> str:
    """Return why this process may not mount a file system; "" if it may."""
    with tempfile.TemporaryDirectory() as path:
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"no leave to mount: {done.stderr.strip()}"
        subprocess.run(["umount", path], check=True)
        return ""


@contextmanager
def disk(path: Path, size: str = SIZE) -> Iterator[Path]:
    """Mount a small file system at a new path for as long as the context lasts."""
    path.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    try:
        yield path
    finally:
        while subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False).returncode == 0:
            pass


def fill(directory: Path) -> Path:
    """Fill the file system up to its last byte."""
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                size //= 2
    return filler


def becomes_read_only(directory: Path) -> None:
    """Let nobody open a file for writing in a directory any more. What is open stays writable."""
    mount("--bind", str(directory), str(directory))
    mount("-o", "remount,bind,ro", str(directory))


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Make a directory read-only for as long as the context lasts."""
    becomes_read_only(directory)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
