"""What a broker does with a role for a replica that lacks committed records: values in, a verdict out.

Recovery may have cut below the last high watermark, a batch may be damaged, or the disk may be a new one. Everybody
takes a member of the ISR for one that has all committed records. So where somebody leads, such a replica declines its
role until the controller has taken it out of the ISR. Then it follows as any replica that has been away, and its leader
lets it in when it has everything again. It leads only if nobody else is in the ISR, and not at the first time that it
is asked: the controller, which knows then that this replica has declined, may put others back into the ISR.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

NEVER = -2
"""Below every leader epoch."""


class Declined(NamedTuple):
    """What a broker remembers of the roles that it has declined for one replica."""

    led_alone: int = NEVER
    """The last leader epoch in which the replica was to lead as the only member of the ISR."""
    has_asked: bool = False
    """Whether the broker has asked for its roles since. What it was told before may be older than its answers."""


class Verdict(Enum):
    DECLINE = auto()
    """Answer KAFKA_STORAGE_ERROR: the controller takes the replica out of the ISR, and elects another one if it can."""
    TAKE_ANEW = auto()
    """Take the role. Nobody relies on this replica: what is damaged is cut off, what is missing comes from the leader.
    """
    TAKE_AS_IT_IS = auto()
    """Take the role, and cut nothing off: no other replica is known to have more."""


def verdict(
    node_id: int,
    leader: int,
    leader_epoch: int,
    isr: Collection[int],
    replicas: Collection[int],
    declined: Declined = Declined(),  # noqa: B008 - it is immutable
) -> Verdict:
    """Return what to do with a role of an incomplete replica."""
    if all(each == node_id for each in replicas):
        return Verdict.TAKE_AS_IT_IS
    if leader < 0:
        # Whoever takes this role is elected. After it has declined to lead, the controller has to know that first.
        may_be_elected = declined.has_asked or declined.led_alone == NEVER
        return Verdict.TAKE_AS_IT_IS if may_be_elected else Verdict.DECLINE
    if node_id not in isr:
        return Verdict.TAKE_ANEW
    if any(each != node_id for each in isr):
        return Verdict.DECLINE
    is_known = declined.has_asked and NEVER < declined.led_alone < leader_epoch
    return Verdict.TAKE_AS_IT_IS if is_known else Verdict.DECLINE
