"""What is answered to elections and reassignments that somebody asks for, also by a broker that is alone."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.rules.controller.values import NO_LEADER, Assignment

NOT_NEEDED = "The partition has the leader that an election would give it."
NOT_MOVED = "The replicas of the partition are not being changed."


class ElectionOutcome(NamedTuple):
    """The new leader of a partition, or why there is none (-1)."""

    error: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


def target_problem(assignment: Assignment, target: tuple[int, ...], live: Collection[int]) -> str | None:
    """Return what is wrong with the replicas that a partition is to have; None if nothing is. `live`: broker ids."""
    if not target:
        return "Empty replica list specified in partition reassignment."
    # Sorted, not in a set: a client may choose numbers that collide in a table.
    if any(each == following for each, following in pairwise(sorted(target))):
        return f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
    if min(target) < 0:
        return f"Invalid broker id in replica list: {list(target)}"
    adding = [each for each in target if each not in assignment.original]
    if not all(each in live for each in adding):
        return (
            f"Replica assignment has brokers that are not alive. Replica list: {adding}, "
            f"live broker list: {sorted(live)}"
        )
    return None
