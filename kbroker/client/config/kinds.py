"""The kinds of values that options have: functions that parse what a caller gives.

A kind returns the value, or raises ValueError with a message that says what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.errors import KbrokerError
from kbroker.net.addresses import parse_bootstrap

Kind = Callable[[Any], Any]


@dataclass(frozen=True)
class Whole:
    """A parser of integers from `low` to `high`, which also takes the names in `named`."""

    low: int
    high: int
    named: Mapping[str, int]

    def __call__(self, given: Any) -> int:
        if isinstance(given, str):
            if given in self.named:
                return self.named[given]
            try:
                given = int(given)
            except ValueError:
                pass
        if isinstance(given, bool) or not isinstance(given, int) or not self.low <= given <= self.high:
            raise ValueError(f"an integer {self}")
        return given

    def __str__(self) -> str:
        limits = f"from {self.low} to {self.high}" if self.high < (1 << 63) - 1 else f"of at least {self.low}"
        return f"{limits} or one of {', '.join(self.named)}" if self.named else limits


def whole(low: int, high: int = (1 << 63) - 1, *, named: Mapping[str, int] | None = None) -> Whole:
    return Whole(low, high, named or {})


def flag(given: Any) -> bool:
    """Parse a bool: True, False, "true" or "false"."""
    named = {"true": True, "false": False}
    found = named.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(found, bool):
        raise ValueError("true or false")
    return found


def text(given: Any) -> str:
    """Parse a string."""
    if not isinstance(given, str):
        raise ValueError("a string")
    return given


def filled(given: Any) -> str:
    """Parse a string that is not blank."""
    if not text(given).strip():
        raise ValueError("a string that is not empty")
    return given  # type: ignore[no-any-return]


def path(given: Any) -> str:
    """Parse a file's path, given as a string or os.PathLike."""
    import os

    try:
        return os.fsdecode(given)
    except TypeError:
        raise ValueError("a path") from None


@dataclass(frozen=True)
class OneOf:
    """A parser of one of `words`, in upper or lower case. `also`: names that older clients and other libraries have."""

    words: tuple[str, ...]
    also: Mapping[str, str]

    def __call__(self, given: Any) -> str:
        for word in self.words:
            if isinstance(given, str) and self.also.get(given.lower(), given).lower() == word.lower():
                return word
        raise ValueError(f"one of {', '.join(map(repr, self.words))}")


def one_of(*words: str, also: Mapping[str, str] | None = None) -> OneOf:
    return OneOf(words, also or {})


def texts(given: Any) -> tuple[str, ...]:
    """Parse strings: a list, or one string with commas."""
    if isinstance(given, str):
        given = given.split(",")
    try:
        parts = tuple(text(part).strip() for part in given)
    except TypeError:
        raise ValueError("a list of strings") from None
    return tuple(part for part in parts if part)


def servers(given: Any) -> tuple[tuple[str, int], ...]:
    """Parse addresses, HOST[:PORT]; several as a list or separated by commas."""
    parts = texts(given)
    if not parts:
        raise ValueError("HOST:PORT,...")
    try:
        return tuple(parse_bootstrap(",".join(parts)))
    except KbrokerError as error:
        raise ValueError(f"HOST:PORT,...: {error}") from None


def anything(given: Any) -> Any:
    """Return anything as it is; the code that uses it checks it."""
    return given


def function(given: Any) -> Any:
    """Parse a callable, or None."""
    if given is not None and not callable(given):
        raise ValueError("a callable")
    return given


MS = whole(0, 1 << 40)  #: milliseconds
