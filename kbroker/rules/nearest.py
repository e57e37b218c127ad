"""Finds the known name that a misspelt name probably means."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, without regard to case; None if none is like it."""
    import difflib

    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=CUTOFF)
    return by_lower[found[0]] if found else None
