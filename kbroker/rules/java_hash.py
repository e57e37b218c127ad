"""Java's `String.hashCode`, from which the partition of a group or a transactional id is computed."""

from __future__ import annotations

from functools import lru_cache

LONGEST_REMEMBERED = 100
MOST_REMEMBERED = 4096
"""How many hashes are kept: the same group and transactional ids come with every request."""


def java_string_hash(text: str) -> int:
    """Return `abs(text.hashCode())` as in Java, but 0 for -2**31, whose absolute value does not fit into an int."""
    return _remembered(text) if len(text) <= LONGEST_REMEMBERED else _computed(text)


def _computed(text: str) -> int:
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return value & 0x7FFFFFFF


_remembered = lru_cache(MOST_REMEMBERED)(_computed)
