"""Offsets that are committed as before Kafka 0.9: in nodes of the coordination store, not in a topic.

Kafka kept them in the same nodes of ZooKeeper. They are separate from the offsets in `__consumer_offsets`: a group of
one kind does not see the offsets of the other. Only the offset is stored, without metadata. It stays when its topic is
deleted, and expires when its group has not committed for some time. The caller checks whether a partition exists.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from kbroker.clock import Clock, SystemClock
from kbroker.coordination import paths
from kbroker.coordination.store import (
    ANY_VERSION,
    BadVersion,
    Create,
    Delete,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    Store,
    check_path,
    parent_of,
)
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition
from kbroker.room import Room

MOST_NAMES = 8
LONGEST_GROUP_ID = 255
"""Bytes in UTF-8. The group id is in the path of each of its nodes, and each of its parts between slashes is a node.

Without this limit and MOST_NAMES a small request could add many times its size to the store."""

OFFSETS = "offsets"


class ConsumerOffsets:
    """Commits, fetches and expires such offsets. Thread-safe. Calls wait for the store, so not on a processor's thread.

    There are at most `most_nodes` nodes below /consumers, and clients of one host make at most half of them. A group's
    nodes are removed when it has not committed for `retention_ms`, counted from the broker's start at the earliest.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        most_nodes: int = 100_000,
        retention_ms: int = 7 * 24 * 3_600_000,
    ):
        self._store = store
        self._clock = clock or SystemClock()
        self._retention_ms = retention_ms
        self._lock = threading.Lock()
        """Guards the next three attributes. Held over the one walk that counts the nodes, and no other store call."""
        self._node_count = -1
        """The number of nodes below /consumers, those being created included; -1: not counted yet."""
        self._committed_at: dict[str, float] = {}
        """Monotonic time (s) of a group's last commit, by the path of its `offsets` node."""
        self._made_by: dict[str, Counter[str]] = {}
        """How many nodes the clients of each host have made for a group, by the path of its `offsets` node."""
        self._room = Room("kbroker.zookeeper.offsets.max.nodes", most_nodes, lambda: self._node_count, self._clock)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], client_host: str = "") -> None:
        """Store all offsets or none; they are durable on return.

        Raises ProtocolError: INVALID_GROUP_ID if the group id is too long or cannot be in a path,
        INVALID_COMMIT_OFFSET_SIZE if there is no room for more nodes.
        """
        data = {_path(group_id, at): paths.encode_consumer_offset(offset) for at, offset in offsets.items()}
        above = {parent_of(parent_of(path)) for path in data}  # one path: the group's `offsets` node
        while True:
            operations = list(self._operations(data))
            made = sum(isinstance(operation, Create) for operation in operations)
            self._reserve(made, client_host, above)
            try:
                self._store.multi(operations)
                break
            except (NodeExists, NoNode):
                # Another commit for the group came first, or its offsets have just expired: look again.
                self._give_back(made, client_host)
            except BaseException:
                self._give_back(made, client_host)
                raise
        with self._lock:
            for path in above:
                self._committed_at[path] = self._clock.monotonic()
                self._made_by.setdefault(path, Counter())[client_host] += made

    def _reserve(self, count: int, host: str, groups: Iterable[str]) -> None:
        with self._lock:
            self._count_nodes()
            if count and not self._room.has_room(host, count):
                raise ProtocolError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "there is no room for more offsets")
            self._node_count += count
            self._room.made(host, count)
            for path in groups:
                if path in self._committed_at:  # set before the commit, since `expire` may be removing the group now
                    self._committed_at[path] = self._clock.monotonic()

    def _give_back(self, count: int, host: str) -> None:
        with self._lock:
            self._node_count -= count
            self._room.gone(host, count)

    def _count_nodes(self) -> None:
        """Count the nodes, unless that is done already. The caller holds the lock."""
        if self._node_count >= 0:
            return
        count, now, left = 0, self._clock.monotonic(), [paths.CONSUMERS]
        while left:
            path = left.pop()
            try:
                names = self._store.children(path)
            except NoNode:
                continue
            count += len(names)
            left += (f"{path}/{name}" for name in names)
            if path.endswith(f"/{OFFSETS}"):
                self._committed_at.setdefault(path, now)
        self._node_count = count

    def expire(self) -> None:
        """Remove the offsets of groups that have not committed for `retention_ms`."""
        with self._lock:
            self._count_nodes()
            latest = self._clock.monotonic() - self._retention_ms / 1000
            due = [path for path, at in self._committed_at.items() if at <= latest]
        for path in due:
            gone = self._remove_offsets(path, latest)
            with self._lock:
                self._node_count -= gone
                if self._committed_at[path] > latest:
                    continue
                del self._committed_at[path]
                for host, count in self._made_by.pop(path, Counter()).items():
                    self._room.gone(host, count)

    def _remove_offsets(self, above: str, latest: float) -> int:
        """Remove the offsets below a group's `offsets` node, then this node and empty ones above.

        Returns how many nodes were removed. Stops if the group commits after `latest`.
        """
        removed = 0
        for topic in self._children(above):
            for partition_id in self._children(f"{above}/{topic}"):
                path = f"{above}/{topic}/{partition_id}"
                found = self._store.exists(path)
                with self._lock:
                    if self._committed_at[above] > latest:
                        return removed
                # A commit from here on changes the node's version, or finds the node gone.
                removed += found is not None and self._remove(path, found.version)
            removed += self._remove(f"{above}/{topic}")
        while above != paths.CONSUMERS and self._remove(above):
            removed += 1
            above = parent_of(above)
        return removed

    def _children(self, path: str) -> list[str]:
        try:
            return self._store.children(path)
        except NoNode:
            return []

    def _remove(self, path: str, version: int = ANY_VERSION) -> bool:
        """Remove a node. Returns False if it is gone, or has another version, or has children.

        Its children belong to another group, whose id begins like this group's.
        """
        try:
            self._store.multi([Delete(path, version)])
            return True
        except (BadVersion, NotEmpty, NoNode):
            return False

    def _operations(self, data: Mapping[str, bytes]) -> Iterator[Operation]:
        """The operations that create the missing nodes, parents first, and set the existing ones."""
        wanted = dict.fromkeys(above for path in data for above in _from_root(path))
        found = self._store.get_many(list(wanted))
        missing = {path for path, node in zip(wanted, found, strict=True) if node is None}
        for path in wanted:
            if path in missing:
                yield Create(path, data.get(path, b""))
            elif path in data:
                yield SetData(path, data[path])

    def fetch(self, group_id: str, partition: TopicPartition) -> int | None:
        """The committed offset, or None.

        Raises ProtocolError (INVALID_GROUP_ID) if the group id cannot be in a path, StoreCorrupt if the node's data is
        not an offset.
        """
        path = _path(group_id, partition)
        try:
            data, _ = self._store.get(path)
        except NoNode:
            return None
        # A node without data is on the path of another group: group ids can have slashes.
        return paths.decode_consumer_offset(path, data) if data else None


def _path(group_id: str, at: TopicPartition) -> str:
    path = paths.consumer_offset_path(group_id, at.topic, at.partition_id)
    if len(group_id.encode()) > LONGEST_GROUP_ID or group_id.count("/") >= MOST_NAMES:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID, "a group id that is too long for a path")
    try:
        check_path(path)
    except InvalidPath as error:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID, str(error)) from None
    return path


def _from_root(path: str) -> list[str]:
    """The paths from below /consumers down to `path`, which is the last."""
    way = []
    while path != paths.CONSUMERS:
        way.append(path)
        path = parent_of(path)
    return way[::-1]
