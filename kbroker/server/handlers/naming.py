"""What a request names, each once: whoever names something again and again hears of it once.

A small request could have an answer of any size else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Name = TypeVar("Name")


def each_once(names: Iterable[Name]) -> dict[Name, None]:
    """In their order. Other threads run meanwhile: over a million names a loop in C would keep them waiting."""
    return dict.fromkeys(name for name in names)
