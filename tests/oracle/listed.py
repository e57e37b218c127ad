"""Two trees that are the same but for what is listed: files or nodes, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.oracle.deviations import matches

T = TypeVar("T")


@dataclass(frozen=True)
class Listed(Generic[T]):
    """A way of differing on purpose: at which paths, how, and which of `other_deviations.OTHERS` says why."""

    path: str
    differs: Callable[[T | None, T | None], bool]
    subject: str
    ends: tuple[str, ...] = ()
    """After which ends of the brokers only; empty: after all."""

    def is_about(self, path: str, kafka: T | None, ours: T | None) -> bool:
        return matches(self.path, path) and self.differs(kafka, ours)


def not_there(kafka: object, ours: object) -> bool:
    """Kafka has it, kbroker does not."""
    return kafka is not None and ours is None


def assert_same_but_for(listed: Iterable[Listed[T]], kafka: Mapping[str, T], ours: Mapping[str, T]) -> None:
    """What differs is listed, and what is listed differs."""
    listed = list(listed)
    paths = sorted(kafka.keys() | ours.keys())
    found = {path: (kafka.get(path), ours.get(path)) for path in paths if kafka.get(path) != ours.get(path)}
    unlisted = {path: pair for path, pair in found.items() if not any(one.is_about(path, *pair) for one in listed)}
    assert not unlisted, "\n".join(
        f"{path}\n    Kafka   {pair[0]!r:.300}\n    kbroker {pair[1]!r:.300}" for path, pair in unlisted.items()
    )
    gone = [one for one in listed if not any(one.is_about(path, *pair) for path, pair in found.items())]
    assert not gone, f"listed, but not there any more: {gone}"
