"""Makes the names in a request unique, so that each is answered once.

Else a small request that repeats a name could have a very large answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

Name = TypeVar("Name")

SORTED_AT_ONCE = 4096
"""How many names are sorted at a time; other threads can run only between two such sorts."""


def each_once(names: Iterable[Name]) -> dict[Name, None]:
    """The names, each once, in their order.

    The loop is in Python so that other threads can run: a loop in C over a million names would keep them waiting.
    """
    return dict.fromkeys(name for name in names)


def in_order(names: Iterable[str]) -> list[str]:
    """The names, each once, sorted. Other threads can run meanwhile."""
    left = iter(each_once(names))
    runs = []
    while run := list(islice(left, SORTED_AT_ONCE)):
        runs.append(sorted(run))
    return runs[0] if len(runs) == 1 else [name for name in heapq.merge(*runs)]  # noqa: C416 (lets others run)
