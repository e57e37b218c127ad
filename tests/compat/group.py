"""The scenario `group` of tests/compat/README.md, for the drivers in Python whose members read in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


class Member(threading.Thread):
    """One member of a group; `run` reads and commits until it is `stopping`."""

    def __init__(self, a: Json, distinct: set[tuple[int, int]]):
        super().__init__(daemon=True)
        self.a, self.distinct, self.read, self.stopping = a, distinct, 0, False


def group(a: Json, kind: type[Member], committed: Callable[[Json], int]) -> Json:
    distinct: set[tuple[int, int]] = set()
    first, second = kind(a, distinct), kind(a, distinct)
    deadline = time.monotonic() + a["timeout_s"]

    def wait(enough: Callable[[], Any]) -> None:
        while not enough() and time.monotonic() < deadline:
            time.sleep(0.005)

    first.start()
    wait(lambda: len(distinct) >= a["count"] // 10)
    second.start()
    wait(lambda: second.read and len(distinct) >= a["count"] // 2)
    first.stopping = True
    first.join(20)
    wait(lambda: len(distinct) >= a["count"])
    time.sleep(0.3)
    second.stopping = True
    second.join(20)
    return {"members": [first.read, second.read], "distinct": len(distinct), "committed": committed(a)}
