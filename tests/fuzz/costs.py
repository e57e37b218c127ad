"""What an input costs the broker that is in this process: an answer, time or memory out of proportion is a finding.

Answers are counted in bytes. Time is what the broker's threads have run for, memory the highest resident size: neither
depends on what else the machine does, but an interpreter has its days. So an input that is over a bound is fed again,
and is a finding only if it is each time: what is amplified is so whenever it is tried.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kbroker._core.base import build_info
from tests.kit.clients.wire import WireClient

MIB = 1 << 20
TRIES = 3
SLOWER = {"release": 1, "debug": 4}.get(build_info.BUILD, 50)
"""Sanitizers and coverage make it so."""
HELD_BACK = 0 if build_info.BUILD in ("release", "debug") else 512 * MIB
"""Freed memory that the address sanitizer keeps, and what it notes of the rest."""


class Bound(NamedTuple):
    constant: int
    factor: int
    """For each byte that was sent."""


ANSWER = Bound(MIB // 4, 64)
TIME_NS = Bound(150_000_000 * SLOWER, 5_000 * SLOWER)
MEMORY = Bound(32 * MIB + HELD_BACK, 64)
TASKS, STATUS, RESET = Path("/proc/self/task"), Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Traffic:
    """Bytes of all connections of an input."""

    sent: int = 0
    received: int = 0


class CountingClient(WireClient):
    """Counts what goes to the broker and what comes from there."""

    def __init__(self, traffic: Traffic, port: int, client_id: str):
        super().__init__("127.0.0.1", port, client_id=client_id)
        self.traffic = traffic

    def send_raw(self, data: bytes) -> None:
        self.traffic.sent += len(data)
        super().send_raw(data)

    def read_frame(self) -> bytes:
        frame = super().read_frame()
        self.traffic.received += 4 + len(frame)
        return frame


def others_ran_ns() -> int:
    """That the threads of this process have run for, without the one that asks."""
    found = 0
    for task in TASKS.iterdir():
        with contextlib.suppress(OSError):
            if int(task.name) != os.getpid():
                found += int((task / "schedstat").read_bytes().split()[0])
    return found


def highest_resident() -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")) * 1024


def check_costs(feed: Callable[[], Traffic]) -> None:
    """Feed an input; AssertionError if it costs the broker more than its bytes allow, again and again."""
    over: list[str] = []
    for _ in range(TRIES):
        RESET.write_text("5")
        ran, resident = others_ran_ns(), highest_resident()
        traffic = feed()
        over = excess(traffic, others_ran_ns() - ran, highest_resident() - resident)
        if not over:
            return
    raise AssertionError(f"{over[0]} for {traffic.sent:,} bytes sent")


def excess(traffic: Traffic, ran_ns: int, memory: int) -> list[str]:
    """A line for each figure that is over its bound. What was received is held by who asked as well, twice at most."""
    figures = (
        ("bytes of answers", traffic.received, ANSWER),
        ("ns of the broker's threads", ran_ns, TIME_NS),
        ("bytes of memory", memory - 3 * traffic.received, MEMORY),
    )
    return [
        f"{figure:,} {what}, where {bound.constant + bound.factor * traffic.sent:,} are allowed"
        for what, figure, bound in figures
        if figure > bound.constant + bound.factor * traffic.sent
    ]
