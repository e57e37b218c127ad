"""A process that the system kills when this one is gone, however that has ended."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from typing import Any


class Lifeline:
    """A pipe whose one end is here, and whose other end is its process's: when it breaks the process gets SIGKILL."""

    def __init__(self) -> None:
        self._held = -1

    def start(self, command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        """As subprocess.Popen. What was started before is cut off."""
        self.cut()
        broken, self._held = os.pipe()
        with os.fdopen(broken, "rb") as pipe:
            process = subprocess.Popen(command, pass_fds=[broken], **how)
            fcntl.fcntl(pipe, fcntl.F_SETOWN, process.pid)
            fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
        return process

    def cut(self) -> None:
        """The process ends, if it runs."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
