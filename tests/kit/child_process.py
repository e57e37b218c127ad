"""A process that a test starts and that does not outlive the test."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any, Self


class ChildProcess:
    """A child process as a context manager. It is killed at the end of the context."""

    process: subprocess.Popen[Any]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
