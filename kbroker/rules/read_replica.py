"""Which replica a consumer is to fetch from (KIP-392). Pure: values in, a value out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NO_REPLICA = -1


class ReadReplica(NamedTuple):
    """A replica that a consumer could fetch from: it is in the ISR and has the offset. The leader is none of them."""

    node_id: int
    rack: str | None
    log_end_offset: int
    last_caught_up_ms: int


def nearest_in_rack(rack: str, leader_rack: str | None, others: Iterable[ReadReplica]) -> int:
    """Return the node of the consumer's rack that has most of the log; NO_REPLICA: the leader.

    The leader is the answer if it is in the rack itself, and if nobody is. Of two that have the same, the one that
    caught up last is preferred, then the one with the higher id.
    """
    if not rack or rack == leader_rack:
        return NO_REPLICA
    near = [each for each in others if each.rack == rack]
    best = max(near, key=lambda each: (each.log_end_offset, each.last_caught_up_ms, each.node_id), default=None)
    return NO_REPLICA if best is None else best.node_id
