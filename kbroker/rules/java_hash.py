"""Java's `String.hashCode`, which decides the partition of a group or a transactional id."""

from __future__ import annotations

from functools import lru_cache

LONGEST_REMEMBERED = 100
MOST_REMEMBERED = 4096
"""Names of groups and transactional ids, which come again with every request."""


def java_string_hash(text: str) -> int:
    """`abs(text.hashCode())`, and 0 for the one hash whose absolute value does not fit."""
    return _remembered(text) if len(text) <= LONGEST_REMEMBERED else _computed(text)


def _computed(text: str) -> int:
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return value & 0x7FFFFFFF


_remembered = lru_cache(MOST_REMEMBERED)(_computed)
