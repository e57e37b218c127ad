"""Setting the wall clock of a broker's process back and forth while it runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class SetClock:
    """The wall clock of the processes that are started within `preloaded`."""

    def __init__(self, folder: Path):
        self._library = folder / "set_clock.so"
        self._file = folder / "set_clock"
        self.set_by(0)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)

    def set_by(self, seconds: float) -> None:
        """Set the clock of all these processes off by `seconds` from now on."""
        data = int(seconds * 10**9).to_bytes(8, "little", signed=True)
        if not self._file.exists():
            self._file.write_bytes(data)
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), data, 0)

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        given = {"LD_PRELOAD": str(self._library), "SET_CLOCK_FILE": str(self._file)}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
