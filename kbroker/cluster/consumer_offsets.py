"""The offsets that consumers of before Kafka 0.9 commit: nodes of the coordination store, as they were ZooKeeper's.

They have nothing in common with the offsets of `__consumer_offsets`: a group of one kind does not see those of the
other. Only the offset is stored, without metadata; it never expires and outlives its topic. Whether a partition exists
is the caller's to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbroker.coordination import paths
from kbroker.coordination.store import (
    Create,
    InvalidPath,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    check_path,
    parent_of,
)
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition

MOST_NAMES = 16
LONGEST_GROUP_ID = 1024
"""A group's name is in the path of each of its nodes, and each name between slashes is a node: without these limits a
small request would make a store of hundreds of megabytes."""


class ConsumerOffsets:
    """Thread-safe; keeps nothing itself. Waits for the store: not for a processor's thread."""

    def __init__(self, store: Store):
        self._store = store

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """All of them or none, durable on return. INVALID_GROUP_ID for a name that no path can have, or is too long."""
        data = {_path(group_id, at): paths.encode_consumer_offset(offset) for at, offset in offsets.items()}
        while True:
            try:
                self._store.multi(list(self._operations(data)))
                return
            except NodeExists:
                continue  # somebody else has committed for the group meanwhile; nodes stay once they are there

    def _operations(self, data: Mapping[str, bytes]) -> Iterator[Operation]:
        """The nodes that are missing, from the root on, and those that change."""
        wanted = dict.fromkeys(above for path in data for above in _from_root(path))
        found = self._store.get_many(list(wanted))
        missing = {path for path, node in zip(wanted, found, strict=True) if node is None}
        for path in wanted:
            if path in missing:
                yield Create(path, data.get(path, b""))
            elif path in data:
                yield SetData(path, data[path])

    def fetch(self, group_id: str, partition: TopicPartition) -> int | None:
        """What was committed; None for nothing. INVALID_GROUP_ID, and StoreCorrupt for what is no offset."""
        path = _path(group_id, partition)
        try:
            data, _ = self._store.get(path)
        except NoNode:
            return None
        # A node without data is on the way to another group's: groups can have slashes in their names.
        return paths.decode_consumer_offset(path, data) if data else None


def _path(group_id: str, at: TopicPartition) -> str:
    path = paths.consumer_offset_path(group_id, at.topic, at.partition_id)
    if len(group_id) > LONGEST_GROUP_ID or group_id.count("/") >= MOST_NAMES:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID, "a group id that is too long for a path")
    try:
        check_path(path)
    except InvalidPath as error:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID, str(error)) from None
    return path


def _from_root(path: str) -> list[str]:
    """The nodes on the way to `path` that are below /consumers, itself included."""
    way = []
    while path != paths.CONSUMERS:
        way.append(path)
        path = parent_of(path)
    return way[::-1]
