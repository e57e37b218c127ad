"""What `min.insync.replicas` means for a partition, by the number of its replicas."""

from __future__ import annotations


def needed_in_sync(replicas: int, min_in_sync: int) -> int:
    """Return how many replicas have to be in sync for acks=all: `min_in_sync`, or all if there are fewer."""
    return min(min_in_sync, replicas)


def replication_warning(replicas: int, min_in_sync: int, brokers: int) -> str | None:
    """Return what a topic with these numbers lacks in a cluster of so many brokers; None if nothing.

    One replica is enough for a broker that is alone. Two are never enough for both: that acks=all goes on while a
    broker is away, and that every acknowledged record is on two.
    """
    if replicas == 1:
        return "with 1 replica, records are lost with its broker" if brokers > 1 else None
    given = f"with {replicas} replicas and min.insync.replicas={min_in_sync}"
    if min_in_sync == 1:
        return f"{given}, a record that acks=all has acknowledged may be on one broker only"
    if min_in_sync >= replicas:
        return f"{given}, acks=all is refused while one of them is not in sync"
    return None


def move_warning(now: int, while_it_moves: int, min_in_sync: int) -> str | None:
    """Return what a topic lacks while replicas are added to those that it has now; None if nothing.

    A replica that is being added counts as one of all replicas before it is in sync.
    """
    needed = needed_in_sync(while_it_moves, min_in_sync)
    if now >= needed:
        return None
    return f"until the new replicas are in sync, acks=all is refused: it needs {needed}, and there {_are(now)}"


def _are(replicas: int) -> str:
    return "is 1" if replicas == 1 else f"are {replicas}"
