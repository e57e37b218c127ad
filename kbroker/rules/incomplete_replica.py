"""What a broker does with a role for a replica that lacks committed records: values in, a verdict out.

Recovery may have cut below the last high watermark, a batch may be damaged, or the disk may be a new one. Everybody
takes a member of the ISR for one that has all committed records. So such a replica declines its role until the
controller has taken it out of the ISR. Then it follows as any replica that has been away, and its leader lets it in
when it has everything again. It leads only if nobody else is in the ISR, and not at the first time that it is asked:
the ISR may have others when the controller knows that this replica has declined.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

NEVER_DECLINED = -2
"""Below every leader epoch."""


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
    declined_epoch: int = NEVER_DECLINED,
) -> Verdict:
    """Return what to do with a role of an incomplete replica.

    `declined_epoch`: the leader epoch in which this broker has declined to lead as the only member of the ISR.
    """
    if node_id not in isr:
        return Verdict.TAKE_ANEW if leader >= 0 else Verdict.TAKE_AS_IT_IS
    if any(each != node_id for each in isr):
        return Verdict.DECLINE
    has_declined_before = NEVER_DECLINED < declined_epoch < leader_epoch
    if leader == node_id and not has_declined_before and any(each != node_id for each in replicas):
        return Verdict.DECLINE
    return Verdict.TAKE_AS_IT_IS
