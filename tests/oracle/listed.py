"""Two trees, of files or nodes by their paths, that are the same except for listed differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.oracle.deviations import matches

T = TypeVar("T")


@dataclass(frozen=True)
class Listed(Generic[T]):
    """A difference on purpose: its paths, how it shows, and the entry of `other_deviations.OTHERS` that says why."""

    path: str
    differs: Callable[[T | None, T | None], bool]
    subject: str
    ends: tuple[str, ...] = ()
    """The ends of the brokers after which it shows; empty: after all."""

    def is_about(self, path: str, kafka: T | None, ours: T | None) -> bool:
        return matches(self.path, path) and self.differs(kafka, ours)


def not_there(kafka: object, ours: object) -> bool:
    """Return whether Kafka has the path and kbroker does not."""
    return kafka is not None and ours is None


def assert_same_but_for(listed: Iterable[Listed[T]], kafka: Mapping[str, T], ours: Mapping[str, T]) -> None:
    """Assert that every difference is listed, and that every listed difference is there."""
    listed = list(listed)
    paths = sorted(kafka.keys() | ours.keys())
    found = {path: (kafka.get(path), ours.get(path)) for path in paths if kafka.get(path) != ours.get(path)}
    unlisted = {path: pair for path, pair in found.items() if not any(one.is_about(path, *pair) for one in listed)}
    assert not unlisted, "\n".join(
        f"{path}\n    Kafka   {pair[0]!r:.300}\n    kbroker {pair[1]!r:.300}" for path, pair in unlisted.items()
    )
    gone = [one for one in listed if not any(one.is_about(path, *pair) for path, pair in found.items())]
    assert not gone, f"listed, but not there any more: {gone}"
