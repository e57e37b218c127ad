"""Which topics the members of a consumer group are subscribed to, read from their metadata."""

from __future__ import annotations

import struct

from kbroker.errors import BadInput
from kbroker.protocol import messages as M
from kbroker.rules.group import Group


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics of all members; None when it cannot be known (no consumer group, no protocol, metadata unreadable)."""
    if not group.is_consumer_group:
        return None
    if group.members and group.protocol_name is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        metadata = group.metadata_of(member)
        try:
            topics.update(_topics(metadata))
        except (BadInput, struct.error):
            return None
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str]:
    # Every version begins with the fields of version 0; what newer ones add behind them is not looked at.
    (version,) = struct.unpack_from(">h", metadata)
    if version < 0:
        raise BadInput(f"a subscription of version {version}")
    return M.ConsumerProtocolSubscription.decode_prefix(memoryview(metadata)[2:], 0)[0].topics
