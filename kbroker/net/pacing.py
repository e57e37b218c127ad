"""BBR paces what it sends by timers, also between two programs of one machine: half the throughput and up to four times
the CPU per GB (measured). Where it is the system's choice, connections inside the machine go by Reno, which does not.

The listener has to begin with Reno: a socket that was BBR's once stays paced.
"""

from __future__ import annotations

import contextlib
import socket

NAME_SIZE = 16  # TCP_CA_NAME_MAX
UNPACED = b"reno"  # every kernel has it and everybody may choose it


def stop_pacing(listener: socket.socket) -> bytes:
    """Of all that `listener` accepts. Returns what `pace` needs: the system's choice if that paces, else nothing."""
    with contextlib.suppress(OSError):
        chosen = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_SIZE).rstrip(b"\0")
        if chosen.startswith(b"bbr"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
            return chosen
    return b""


def pace(connection: socket.socket, chosen: bytes) -> None:
    """As the system would have, if the other end is another machine."""
    if chosen and connection.getsockname()[0] != connection.getpeername()[0]:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen)
