"""A broker's disk: it outlives processes, loses what was not synced when the power goes, may fill up or be replaced."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

from tests.kit.crash.fs import CrashFileSystem
from tests.simulation.stored import HEADER, SUFFIX, batch_positions

GROWING = frozenset({"pwrite", "create", "mkdir", "allocate"})
"""The calls that a full disk refuses."""

CHECKED_FROM = 21
"""From this byte on a batch's CRC covers it."""


class Disk:
    """One log directory. `fs` is what the kernel knows of it: a killed process leaves it as it is."""

    def __init__(self, home: Path):
        self._home = home
        self._generation = 0
        self.is_full = False
        (home / "0").mkdir(parents=True)
        self.fs = CrashFileSystem(home / "0", fault=self._fault)

    @property
    def path(self) -> str:
        return str(self.fs.root)

    def _fault(self, call: str, what: object) -> int:
        return errno.ENOSPC if self.is_full and call in GROWING else 0

    def lose_power(self, seed: int) -> None:
        """Leave one of the states that a power cut at this moment may leave; the seed says which."""
        target = self._next()
        self.fs.after_power_cut(self.fs.position, seed, target)
        self._replace(target)

    def empty(self) -> None:
        """Put a new disk in the place of the old one."""
        target = self._next()
        target.mkdir()
        self._replace(target)

    def damage(self, chance: random.Random) -> str:
        """Flip a bit in a batch of some log's newest segment. Return which; "" if there is none."""
        newest = {}
        for path in sorted(Path(self.path).glob(f"*-*/*{SUFFIX}")):
            newest[path.parent] = path
        paths = [path for path in newest.values() if path.stat().st_size]
        if not paths:
            return ""
        path = chance.choice(paths)
        data = path.read_bytes()
        at = chance.choice(list(batch_positions(data)))
        at += chance.randrange(CHECKED_FROM, HEADER.size)
        fd = self.fs.open(str(path), os.O_WRONLY)
        try:
            self.fs.pwrite(fd, bytes([data[at] ^ 1 << chance.randrange(8)]), at)
        finally:
            self.fs.close(fd)
        return f"{path.parent.name}/{path.name} at {at}"

    def _next(self) -> Path:
        self._generation += 1
        return self._home / str(self._generation)

    def _replace(self, target: Path) -> None:
        shutil.rmtree(self.fs.root)
        self.fs = CrashFileSystem(target, fault=self._fault)
