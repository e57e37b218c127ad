"""Splits many operations into transactions that are small enough for ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbroker.coordination.store import Create, Operation, SetData

MAX_OPERATIONS = 100
MAX_SIZE = 400_000
"""Bytes; ZooKeeper takes a megabyte (jute.maxbuffer)."""


def size_of(operation: Operation) -> int:
    """An upper bound of the operation's bytes in a request."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path.encode()) + len(data) + 100


def parcels(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """The operations in their order, in lists for one transaction each.

    If a caller is cut short between two of them, it does all of them again.
    """
    parcel: list[Operation] = []
    size = 0
    for each in operations:
        cost = size_of(each)
        if parcel and (len(parcel) == MAX_OPERATIONS or size + cost > MAX_SIZE):
            yield parcel
            parcel, size = [], 0
        parcel.append(each)
        size += cost
    if parcel:
        yield parcel
