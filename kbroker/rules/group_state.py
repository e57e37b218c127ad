"""Where a group stands, of either protocol."""

from __future__ import annotations

from enum import StrEnum

NEVER = 1 << 62
"""A deadline that does not come."""


class GroupState(StrEnum):
    """Where a group stands, by the names that DescribeGroups gives."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    """These two are of the newer protocol only (`consumer_group.py`)."""
    DEAD = "Dead"
