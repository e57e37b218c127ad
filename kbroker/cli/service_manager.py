"""What the broker tells the service manager that started it, as systemd's sd_notify(3) does: a datagram to the socket
that `NOTIFY_SOCKET` names. Without the variable nobody is told."""

from __future__ import annotations

import logging
import os
import socket
import time

LOG = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """Reached, or not there. Telling it never fails: a line in the log says what was in the way."""

    def __init__(self) -> None:
        self._address = os.environ.get(VARIABLE, "")

    def ready(self, status: str) -> None:
        """Clients can connect; also the end of `reloading`."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Settings are being read again."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1", "STATUS=stopping")

    def _tell(self, *lines: str) -> None:
        address = self._address
        if not address:
            return
        # An @ stands for the null byte in front of a name that is in no file system.
        target = "\0" + address[1:] if address.startswith("@") else address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
                told.connect(target)
                told.sendall("\n".join(lines).encode())
        except OSError as error:
            LOG.warning("%s=%s is not told %s: %s", VARIABLE, address, lines[0], error.strerror or error)
