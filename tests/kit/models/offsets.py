"""A slow and obvious model of committed offsets: they are computed anew from all events.

Written from KIP-98 and KIP-447, not from kbroker's code: events in the order of the log, read from the beginning.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kbroker.model import TopicPartition

Place: TypeAlias = tuple[str, TopicPartition]
"""A group and a partition."""


class Commit(NamedTuple):
    """Committed offsets. Without a producer they count at once, else from its commit marker on."""

    offsets: dict[Place, int]
    producer_id: int | None = None


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    commit: bool


class Removal(NamedTuple):
    """The removal of committed offsets."""

    places: frozenset[Place]


class Known(NamedTuple):
    """The committed offsets, and the places where a transaction is undecided."""

    committed: dict[Place, int]
    unstable: frozenset[Place]


def known_after(events: list[Commit | Marker | Removal]) -> Known:
    """Return what is known after all these events."""
    committed: dict[Place, tuple[int, int]] = {}
    open_transactions: dict[int, dict[Place, tuple[int, int]]] = {}
    for number, event in enumerate(events):
        if isinstance(event, Removal):
            for place in event.places:
                committed.pop(place, None)
                for written in open_transactions.values():
                    written.pop(place, None)
        elif isinstance(event, Marker):
            for place, (at, offset) in open_transactions.pop(event.producer_id, {}).items():
                if event.commit and (place not in committed or committed[place][0] < at):
                    committed[place] = (at, offset)
        elif event.producer_id is None:
            committed.update({place: (number, offset) for place, offset in event.offsets.items()})
        else:
            written = open_transactions.setdefault(event.producer_id, {})
            written.update({place: (number, offset) for place, offset in event.offsets.items()})
    unstable = {place for written in open_transactions.values() for place in written}
    return Known({place: offset for place, (_, offset) in committed.items()}, frozenset(unstable))
