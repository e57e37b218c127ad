"""A slow and obvious model of a coordination store: a dict, without sessions and threads."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    SetData,
)


@dataclass
class ModelNode:
    data: bytes
    version: int = 0
    owner: int = 0
    next_sequence: int = 0


@dataclass
class CoordinationModel:
    """A tree of nodes. `multi` returns the changes in order as (kind, path): what watches must have seen.

    `numbers_every_child`: a sequential node's number counts all creations of its siblings, as in ZooKeeper.
    """

    numbers_every_child: bool = False

    nodes: dict[str, ModelNode] = field(default_factory=lambda: {"/": ModelNode(b"")})

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted(
            other[len(prefix) :]
            for other in self.nodes
            if other != "/" and other.startswith(prefix) and "/" not in other[len(prefix) :]
        )

    def multi(self, owner: int, operations: list[Operation]) -> list[tuple[EventKind, str]]:
        before = {path: ModelNode(**vars(node)) for path, node in self.nodes.items()}
        try:
            return [seen for operation in operations for seen in self._one(owner, operation)]
        except Exception:
            self.nodes = before
            raise

    def _one(self, owner: int, operation: Operation) -> list[tuple[EventKind, str]]:
        if isinstance(operation, Create):
            parent_path = operation.path.rpartition("/")[0] or "/"
            parent = self.nodes.get(parent_path)
            if parent is None:
                raise NoNode(parent_path)
            if parent.owner:
                raise NoChildrenForEphemerals(parent_path)
            path = operation.path
            if operation.sequential:
                path += f"{parent.next_sequence:010d}"
            if path in self.nodes:
                raise NodeExists(path)
            parent.next_sequence += operation.sequential or self.numbers_every_child
            self.nodes[path] = ModelNode(operation.data, owner=owner if operation.ephemeral else 0)
            return [(EventKind.CREATED, path)]
        node = self.nodes.get(operation.path)
        if node is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(operation.path, operation.version, node.version)
        if isinstance(operation, SetData):
            node.data, node.version = operation.data, node.version + 1
            return [(EventKind.CHANGED, operation.path)]
        if isinstance(operation, Delete):
            if operation.path == "/" or self.children(operation.path):
                raise NotEmpty(operation.path)
            del self.nodes[operation.path]
            return [(EventKind.DELETED, operation.path)]
        return []

    def end_session(self, owner: int) -> list[tuple[EventKind, str]]:
        gone = sorted(path for path, node in self.nodes.items() if node.owner == owner)
        for path in gone:
            del self.nodes[path]
        return [(EventKind.DELETED, path) for path in gone]
