"""The states that groups of both protocols have."""

from __future__ import annotations

from enum import StrEnum

NEVER = 1 << 62
"""A deadline that never comes."""


class GroupState(StrEnum):
    """The state of a group, by the name in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    """Assigning and Reconciling exist only in the consumer protocol (`consumer_group.py`)."""
    DEAD = "Dead"
