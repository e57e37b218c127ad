"""What a request names, each once: whoever names something again and again hears of it once.

A small request could have an answer of any size else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

Name = TypeVar("Name")

SORTED_AT_ONCE = 4096
"""Names that are sorted without letting other threads run."""


def each_once(names: Iterable[Name]) -> dict[Name, None]:
    """In their order. Other threads run meanwhile: over a million names a loop in C would keep them waiting."""
    return dict.fromkeys(name for name in names)


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, each once. Other threads run meanwhile."""
    left = iter(each_once(names))
    runs = []
    while run := list(islice(left, SORTED_AT_ONCE)):
        runs.append(sorted(run))
    return runs[0] if len(runs) == 1 else [name for name in heapq.merge(*runs)]  # noqa: C416 (lets others run)
