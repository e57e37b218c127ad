"""The bytes that members of a classic group exchange: subscriptions, assignments, user data of the sticky assignors.

A subscription or assignment is a version (INT16) and a message of that version. Fields that a newer version has added
at the end are ignored (KIP-429, KIP-792, KIP-881).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from kbroker.client.assignors.assignor import NO_GENERATION, Member
from kbroker.errors import BadInput
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M

HIGHEST = 3
VERSION = struct.Struct(">h")
GENERATION = struct.Struct(">i")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, sorted."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition_id in sorted(partitions):
        found[topic].append(partition_id)
    return dict(found)


def encode_subscription(
    topics: Collection[str],
    owned: Collection[TopicPartition],
    generation: int,
    rack: str | None,
    user_data: bytes | None,
) -> bytes:
    row = M.ConsumerProtocolSubscription.TopicPartition
    message = M.ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[row(topic=topic, partitions=ids) for topic, ids in by_topic(owned).items()],
        generation_id=generation,
        rack_id=rack or None,
    )
    return VERSION.pack(HIGHEST) + message.encode(HIGHEST)


def decode_subscription(data: bytes, member_id: str, group_instance_id: str | None) -> Member:
    """Return the Member of a subscription's bytes. Raises BadInput when they do not parse."""
    message = _decode(M.ConsumerProtocolSubscription, data)
    return Member(
        member_id,
        frozenset(message.topics),
        _partitions(message.owned_partitions),
        message.generation_id,
        message.user_data,
        group_instance_id,
        message.rack_id or None,
    )


def encode_assignment(partitions: Collection[TopicPartition]) -> bytes:
    row = M.ConsumerProtocolAssignment.TopicPartition
    rows = [row(topic=topic, partitions=ids) for topic, ids in by_topic(partitions).items()]
    return VERSION.pack(HIGHEST) + M.ConsumerProtocolAssignment(assigned_partitions=rows).encode(HIGHEST)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Return the assigned partitions; none for empty bytes. Raises BadInput when the bytes do not parse."""
    return _partitions(_decode(M.ConsumerProtocolAssignment, data).assigned_partitions) if data else frozenset()


def _decode(kind: Any, data: bytes) -> Any:
    if len(data) < VERSION.size:
        raise BadInput(f"{kind.__name__} of {len(data)} bytes")
    (version,) = VERSION.unpack_from(data)
    if version < 0:
        raise BadInput(f"{kind.__name__} of version {version}")
    return kind.decode_prefix(memoryview(data)[VERSION.size :], min(version, HIGHEST))[0]


def _partitions(rows: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(row.topic, n) for row in rows for n in row.partitions)


# --- what the sticky assignors say ------------------------------------------------------------------------


def encode_generation(generation: int) -> bytes:
    return GENERATION.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """Return the generation in a cooperative sticky member's user data, or NO_GENERATION when there is none."""
    if data is None or len(data) < GENERATION.size:
        return NO_GENERATION
    found: int = GENERATION.unpack_from(data)[0]
    return found


def encode_previous(partitions: Collection[TopicPartition], generation: int) -> bytes:
    """Return the user data of a sticky member: its previous partitions and their generation.

    The partitions have the layout of an assignment of version 0 without its user data.
    """
    rows = M.ConsumerProtocolAssignment.TopicPartition
    message = M.ConsumerProtocolAssignment(
        assigned_partitions=[rows(topic=topic, partitions=ids) for topic, ids in by_topic(partitions).items()],
        user_data=None,
    )
    # The last 4 bytes are cut off: the size, -1, of user data that is null.
    return message.encode(0)[: -GENERATION.size] + GENERATION.pack(generation)


def decode_previous(data: bytes | None) -> tuple[frozenset[TopicPartition], int]:
    """Return the previous partitions and their generation from a sticky member's user data.

    Bytes that do not parse give no partitions and NO_GENERATION: user data only make assignments more stable.
    """
    if not data:
        return frozenset(), NO_GENERATION
    null = GENERATION.pack(-1)
    try:
        message = M.ConsumerProtocolAssignment.decode(data[: -len(null)] + null, 0)
        generation = decode_generation(data[-GENERATION.size :])
    except BadInput:
        try:  # the layout of older clients, without a generation
            message, generation = M.ConsumerProtocolAssignment.decode(data + null, 0), NO_GENERATION
        except BadInput:
            return frozenset(), NO_GENERATION
    return _partitions(message.assigned_partitions), generation
