"""Subprocesses that the kernel kills when this process has ended, however it has ended."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from typing import Any


class Lifeline:
    """A pipe between this process and a subprocess. When it breaks, the subprocess gets SIGKILL."""

    def __init__(self) -> None:
        self._held = -1

    def start(self, command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        """Start a subprocess as subprocess.Popen does. One that was started before is killed."""
        self.cut()
        broken, self._held = os.pipe()
        with os.fdopen(broken, "rb") as pipe:
            process = subprocess.Popen(command, pass_fds=[broken], **how)
            fcntl.fcntl(pipe, fcntl.F_SETOWN, process.pid)
            fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
        return process

    def cut(self) -> None:
        """Break the pipe: the subprocess is killed if it runs."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
