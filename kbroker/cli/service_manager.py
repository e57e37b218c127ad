"""Notifications to the service manager that started the broker, as with systemd's sd_notify(3).

Each is a datagram to the socket in the environment variable `NOTIFY_SOCKET`; without the variable nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
import time

LOG = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """The service manager, if there is one. A notification that cannot be sent is logged; nothing is raised."""

    def __init__(self) -> None:
        self._address = os.environ.get(VARIABLE, "")

    def ready(self, status: str) -> None:
        """Tell that clients can connect, or that reloading has ended."""
        self._notify("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Tell that settings are being read again."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._notify("STOPPING=1", "STATUS=stopping")

    def _notify(self, *lines: str) -> None:
        address = self._address
        if not address:
            return
        # An @ stands for the null byte at the start of an abstract socket's name.
        target = "\0" + address[1:] if address.startswith("@") else address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
                told.connect(target)
                told.sendall("\n".join(lines).encode())
        except OSError as error:
            LOG.warning("%s=%s is not told %s: %s", VARIABLE, address, lines[0], error.strerror or error)
