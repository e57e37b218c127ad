"""The interface of a coordination store: a tree of nodes with versions, sessions, ephemeral nodes and one-shot watches.

The semantics are ZooKeeper's, reduced to what brokers need, so that a ZooKeeper ensemble can be behind the same calls.
All calls are synchronous and thread-safe, and a change is durable when its call returns. Do not call them from a
processor's thread: they wait for a disk or a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from kbroker.errors import BadInput, ErrorCode, KbrokerError, NotNow

ANY_VERSION = -1
"""An expected version that every version of a node matches."""


class StoreError(KbrokerError):
    """The tree as it is now does not allow the call; nothing was changed. `path` is the node that is the reason."""

    def __init__(self, path: str, what: str):
        super().__init__(f"{path}: {what}")
        self.path = path


class NoNode(StoreError):
    """The node, or the parent of a node to create, does not exist."""

    def __init__(self, path: str):
        super().__init__(path, "no such node")


class NodeExists(StoreError):
    """A node to create exists already."""

    def __init__(self, path: str):
        super().__init__(path, "the node exists")


class BadVersion(StoreError):
    """The node does not have the expected version: it was changed since the caller has read it."""

    def __init__(self, path: str, expected: int, found: int | None = None):
        super().__init__(path, f"version {expected} expected, {'another' if found is None else found} found")
        self.expected = expected
        self.found = found
        """The node's version; None if the store does not say."""


class NotEmpty(StoreError):
    """A node with children cannot be deleted."""

    def __init__(self, path: str):
        super().__init__(path, "the node has children")


class NoChildrenForEphemerals(StoreError):
    """An ephemeral node cannot have children."""

    def __init__(self, path: str):
        super().__init__(path, "an ephemeral node has no children")


class SessionExpired(StoreError, NotNow):
    """The session has ended; its ephemeral nodes are gone."""

    def __init__(self) -> None:
        super().__init__("/", "the session has ended")


class StoreUnavailable(NotNow):
    """The store cannot be reached or cannot write. The message says whether the change may have been made."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class AnswerLost(StoreUnavailable):
    """The connection was lost before the answer to a change: the change may have been made."""


class InvalidPath(StoreError, BadInput):
    """A path is not of the form /name/name/..., or has characters that are not allowed."""


class Stat(NamedTuple):
    """The metadata of a node. Creation and modification ids grow with every change of the tree and never repeat."""

    version: int
    """0 when the node is created, one more with every set."""
    creation_id: int
    modification_id: int
    owner: int
    """The id of an ephemeral node's session; 0 for a persistent node."""


class EventKind(Enum):
    """The kind of change that a watch reports."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    """One change of one node. The node may have changed again since, so read it."""

    kind: EventKind
    path: str


Watcher = Callable[[WatchEvent], None]
"""Called once, on the store's event thread, in the order of the changes. It may call the store. It must not block for
long: other watchers wait for it."""


class Create(NamedTuple):
    """Create `path`. To the name of a sequential node a ten-digit number is appended that no sibling has ever had."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Replace the data of `path` if it has `version`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete `path` if it has `version` and no children."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Refuse the transaction unless `path` exists and has `version`."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
Result = str | Stat | None
"""The result of an operation: the created path for Create, the new stat for SetData, None for the others."""
Outcome = list[Result] | StoreError
"""The outcome of a transaction: the results of its operations, or the error of the first one that cannot be done."""


class Store(Protocol):
    """One session with a coordination store."""

    @property
    def session_id(self) -> int:
        """The session's id, which is not 0; the `owner` of its ephemeral nodes."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path. Raises NoNode (no parent), NodeExists or NoChildrenForEphemerals."""
        ...

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        """Data and stat of a node. Raises NoNode. `watch` is called for the next change or deletion."""
        ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Set a node's data and return its new stat. Raises NoNode or BadVersion."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises NoNode, BadVersion or NotEmpty."""
        ...

    def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        """The stat of a node, or None. `watch` is called for the node's creation, next change or deletion."""
        ...

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """The sorted names of a node's children. Raises NoNode.

        `watch` is called for the next child that is created or deleted, or for the node's deletion.
        """
        ...

    def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[tuple[bytes, Stat] | None]:
        """Data and stat of each node, None for one that does not exist. They may be of different moments.

        `watch` is called for the next change or deletion of each node that exists.
        """
        ...

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """Carry out all operations or none. Raises the error of the first one that cannot be done."""
        ...

    def multi_many(self, transactions: Sequence[Sequence[Operation]]) -> list[Outcome]:
        """Carry out each transaction as `multi` does, in their order, without waiting for one before the next is sent.

        Returns an outcome for each: its results, or the error for which nothing of it was done. Others go on after an
        error. Raises StoreUnavailable or SessionExpired if one or more have no outcome, because the connection, the
        session or the disk went: any of the transactions may have been made then. Raises InvalidPath if a path is
        malformed, and StoreUnavailable if a transaction is too large; then none was made.
        """
        ...

    @property
    def may_have_ended(self) -> bool:
        """Whether the session has ended, or nothing was heard of the store for so long that it may have."""
        ...

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on the event thread, when this session expires (not when it is closed)."""
        ...

    def close(self) -> None:
        """End the session: its ephemeral nodes are deleted and its watches dropped. Idempotent."""
        ...


_IN_NO_PATH = "[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\U0010ffff]"
"""Characters that ZooKeeper does not allow: controls, private use, specials, and those of two units in UTF-16."""


def check_path(path: str) -> None:
    """Raise InvalidPath unless `path` is / or /name/name/... with allowed characters, without '', '.' or '..' names."""
    if path == "/":
        return
    if not path.startswith("/"):
        raise InvalidPath(path, "a path begins with /")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise InvalidPath(path, "a path has no empty, '.' or '..' names")
    if not (path.isascii() and path.isprintable()) and re.search(_IN_NO_PATH, path):
        raise InvalidPath(path, "a path has no control, private or special characters")


def check_paths(operations: Sequence[Operation]) -> None:
    """Raise InvalidPath unless `check_path` takes the path of each operation."""
    for each in operations:
        # The given name of a sequential node may be empty: a number follows it.
        sequential = isinstance(each, Create) and each.sequential
        check_path(each.path + "0" if sequential else each.path)


def parent_of(path: str) -> str:
    """The path of the parent node; / for /a."""
    return path[: path.rindex("/")] or "/"
