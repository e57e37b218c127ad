"""The nodes of the embedded store in memory: the committed tree, and drafts of changes on top of it."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import NamedTuple

from kbroker.coordination.store import (
    ANY_VERSION,
    BadVersion,
    Create,
    Delete,
    EventKind,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SetData,
    Stat,
    WatchEvent,
    parent_of,
)

# On disk, before a node's data: version, creation id, modification id, next sequence, owner (on disk always 0). A row
# is one value, kept in memory as it is: with 5,000 topics, making objects of separate columns took three times as long.
HEADER = struct.Struct(">qqqqq")


class Node(NamedTuple):
    """One node. The tree keeps nodes encoded; they are decoded to be changed."""

    data: bytes
    version: int
    creation_id: int
    modification_id: int
    next_sequence: int
    owner: int = 0

    @classmethod
    def decode(cls, value: bytes) -> Node:
        return cls(value[HEADER.size :], *HEADER.unpack_from(value))

    @staticmethod
    def split(value: bytes) -> tuple[bytes, Stat]:
        """Data and stat of an encoded node."""
        version, creation_id, modification_id, _, owner = HEADER.unpack_from(value)
        return value[HEADER.size :], Stat(version, creation_id, modification_id, owner)

    def encode(self) -> bytes:
        return HEADER.pack(*self[1:]) + self.data

    def stat(self) -> Stat:
        return Stat(self.version, self.creation_id, self.modification_id, self.owner)


class Tree:
    """The committed nodes: `values` are the encoded nodes by path."""

    __slots__ = ("children", "ephemerals", "values")

    def __init__(self, values: dict[str, bytes]):
        self.values = values
        self.children: defaultdict[str, set[str]] = defaultdict(set)
        self.ephemerals: defaultdict[int, set[str]] = defaultdict(set)
        for path in values:
            parent, _, name = path.rpartition("/")
            self.children[parent].add(name)
        # The loop takes the root for its own child, and files the root's children under "".
        self.children["/"] = self.children.pop("", set()) - {""}

    def node(self, path: str) -> Node | None:
        value = self.values.get(path)
        return None if value is None else Node.decode(value)

    def child_count(self, path: str) -> int:
        return len(self.children.get(path, ()))

    def merge(self, draft: Draft) -> None:
        """Apply the changes of `draft`, which was begun on top of this tree."""
        for path, node in draft.nodes.items():
            before = self.node(path)
            if before is not None and before.owner:
                self.ephemerals[before.owner].discard(path)
                if not self.ephemerals[before.owner]:
                    del self.ephemerals[before.owner]
            parent, _, name = path.rpartition("/")
            if node is None:
                if before is not None:
                    del self.values[path]
                    self.children[parent or "/"].discard(name)
                    self.children.pop(path, None)
                continue
            self.values[path] = node.encode()
            if path != "/":
                self.children[parent or "/"].add(name)
            if node.owner:
                self.ephemerals[node.owner].add(path)


class Draft:
    """Changes on top of a tree or of another draft, not yet part of it."""

    __slots__ = ("_below", "_child_delta", "events", "nodes")

    def __init__(self, below: Tree | Draft):
        self._below = below
        self.nodes: dict[str, Node | None] = {}
        self._child_delta: dict[str, int] = {}
        self.events: list[WatchEvent] = []

    def node(self, path: str) -> Node | None:
        return self.nodes[path] if path in self.nodes else self._below.node(path)

    def child_count(self, path: str) -> int:
        return self._below.child_count(path) + self._child_delta.get(path, 0)

    def merge(self, draft: Draft) -> None:
        """Take over the changes of `draft`, which was begun on top of this draft."""
        self.nodes.update(draft.nodes)
        for path, delta in draft._child_delta.items():
            self._child_delta[path] = self._child_delta.get(path, 0) + delta
        self.events += draft.events

    def apply(self, operation: Operation, session_id: int, change_id: int) -> Result:
        """Carry out one operation in this draft. Raises StoreError if it cannot be done; drop the draft then."""
        if isinstance(operation, Create):
            return self._create(operation, session_id, change_id)
        node = self.node(operation.path)
        if node is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(operation.path, operation.version, node.version)
        if isinstance(operation, SetData):
            changed = node._replace(data=operation.data, version=node.version + 1, modification_id=change_id)
            self.nodes[operation.path] = changed
            self.events.append(WatchEvent(EventKind.CHANGED, operation.path))
            return changed.stat()
        if isinstance(operation, Delete):
            self._delete(operation.path)
        return None

    def _create(self, operation: Create, session_id: int, change_id: int) -> str:
        path, parent_path = operation.path, parent_of(operation.path)
        parent = self.node(parent_path)
        if parent is None:
            raise NoNode(parent_path)
        if parent.owner:
            raise NoChildrenForEphemerals(parent_path)
        if operation.sequential:
            path = f"{path}{parent.next_sequence:010d}"
            self.nodes[parent_path] = parent._replace(next_sequence=parent.next_sequence + 1)
        if self.node(path) is not None:
            raise NodeExists(path)
        owner = session_id if operation.ephemeral else 0
        self.nodes[path] = Node(operation.data, 0, change_id, change_id, 0, owner)
        self._child_delta[parent_path] = self._child_delta.get(parent_path, 0) + 1
        self.events.append(WatchEvent(EventKind.CREATED, path))
        return path

    def _delete(self, path: str) -> None:
        if path == "/" or self.child_count(path):
            raise NotEmpty(path)
        self.nodes[path] = None
        parent_path = parent_of(path)
        self._child_delta[parent_path] = self._child_delta.get(parent_path, 0) - 1
        self.events.append(WatchEvent(EventKind.DELETED, path))
