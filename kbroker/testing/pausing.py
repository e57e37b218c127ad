"""Processes that a test stops for a while, as a machine that hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator


class Pausable(ABC):
    """What a test can pause."""

    @abstractmethod
    def pause(self) -> None:
        """Stop all threads until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Let all threads go on."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context manager: `pause`, and `resume` at the end of the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()


def stop_threads(process: subprocess.Popen[bytes]) -> None:
    """Send SIGSTOP, and return when every thread of the process is stopped, or it has ended."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
