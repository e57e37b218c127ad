"""Connections inside one machine use Reno where the system's congestion control is BBR.

BBR paces what it sends by timers, even between two programs of one machine: half the throughput and up to four times
the CPU for each GB (measured). Reno does not. The listener has to start with Reno and its remote connections change to
BBR, because a socket stays paced once it has used BBR.
"""

from __future__ import annotations

import contextlib
import socket

NAME_SIZE = 16  # TCP_CA_NAME_MAX
UNPACED = b"reno"  # every kernel has it and everybody may choose it


def stop_pacing(listener: socket.socket) -> bytes:
    """Make `listener`, and the connections it accepts, use Reno if the system's choice is BBR.

    Returns the system's choice for `pace`; empty if nothing was changed.
    """
    with contextlib.suppress(OSError):
        chosen = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_SIZE).rstrip(b"\0")
        if chosen.startswith(b"bbr"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
            return chosen
    return b""


def pace(connection: socket.socket, chosen: bytes) -> None:
    """Give a connection to another machine the congestion control that the system has `chosen`."""
    if chosen and connection.getsockname()[0] != connection.getpeername()[0]:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen)
