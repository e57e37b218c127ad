"""Reads from the members' metadata which topics a classic group of consumers is subscribed to."""

from __future__ import annotations

import struct

from kbroker.errors import BadInput
from kbroker.protocol import messages as M
from kbroker.rules.group import Group


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that any member is subscribed to.

    None if that cannot be known: not a group of consumers, no protocol chosen yet, or metadata that cannot be read.
    """
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
    # Every version begins with the fields of version 0; the fields that newer versions append are ignored.
    (version,) = struct.unpack_from(">h", metadata)
    if version < 0:
        raise BadInput(f"a subscription of version {version}")
    return M.ConsumerProtocolSubscription.decode_prefix(memoryview(metadata)[2:], 0)[0].topics
