"""A process that a test has begun and that does not outlive it."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any, Self


class ChildProcess:
    """A context manager, at whose end it is killed."""

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
