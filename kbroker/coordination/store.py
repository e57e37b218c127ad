"""The interface of a coordination store: a tree of nodes with versions, sessions, ephemeral nodes and one-shot watches.

The semantics are ZooKeeper's, cut down to what brokers need, so that a ZooKeeper ensemble can stand behind the same
calls. All calls are synchronous and thread-safe; whatever changes the tree has been made durable when the call returns.
Do not call them from a processor's thread: they wait for a disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from kbroker.errors import BadInput, ErrorCode, KbrokerError, NotNow

ANY_VERSION = -1
"""As an expected version: whichever the node has."""


class StoreError(KbrokerError):
    """A call that the tree does not allow as it is now; nothing was changed. `path` is the node in the way."""

    def __init__(self, path: str, what: str):
        super().__init__(f"{path}: {what}")
        self.path = path


class NoNode(StoreError):
    """The node, or the parent of a node to create, is not there."""

    def __init__(self, path: str):
        super().__init__(path, "no such node")


class NodeExists(StoreError):
    """A node to create is there already."""

    def __init__(self, path: str):
        super().__init__(path, "the node exists")


class BadVersion(StoreError):
    """Somebody else has changed the node since the caller looked."""

    def __init__(self, path: str, expected: int, found: int | None = None):
        super().__init__(path, f"version {expected} expected, {'another' if found is None else found} found")
        self.expected = expected
        self.found = found
        """None where the store does not say."""


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
    """The store cannot be reached or cannot write; whether the change was made is told by the message."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class InvalidPath(StoreError, BadInput):
    """A path is not /name/name/..."""


class Stat(NamedTuple):
    """What is known of a node besides its data. Ids grow with every change of the tree and never repeat."""

    version: int
    """0 when created, one more with every set."""
    creation_id: int
    modification_id: int
    owner: int
    """Session of an ephemeral node, 0 for a persistent one."""


class EventKind(Enum):
    """What a watch has seen."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    """One thing that happened to one node. The node may have changed again since: read it."""

    kind: EventKind
    path: str


Watcher = Callable[[WatchEvent], None]
"""Called once, on the store's event thread, in the order in which things happened. It may call the store. It must not
block for long: other watchers wait behind it."""


class Create(NamedTuple):
    """Create `path`. A sequential node gets a ten-digit number behind its name that no sibling ever had."""

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
    """Go on only if `path` is there with `version`."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
Result = str | Stat | None
"""Of a Create: the path it got. Of a SetData: the new stat. Otherwise None."""


class Store(Protocol):
    """One session with a coordination store."""

    @property
    def session_id(self) -> int:
        """Not 0; the owner of this session's ephemeral nodes."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """The path created. NoNode without a parent, NodeExists, NoChildrenForEphemerals."""
        ...

    def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        """Data and stat, or NoNode. `watch` hears of the next change or deletion."""
        ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """The new stat. NoNode, BadVersion."""
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """NoNode, BadVersion, NotEmpty."""
        ...

    def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        """None for no node. `watch` hears of its creation, next change or deletion."""
        ...

    def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """Sorted names, or NoNode. `watch` hears of the next child that comes or goes, and of the node's deletion."""
        ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Data and stat of each, None for no node. Not one moment's picture."""
        ...

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """All of them or none. The error raised is that of the first operation that cannot be done."""
        ...

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call once, on the event thread, when this session expires (not when it is closed)."""
        ...

    def close(self) -> None:
        """End the session: its ephemeral nodes go, its watches are dropped. Idempotent."""
        ...


_IN_NO_PATH = "[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\U0010ffff]"
"""What ZooKeeper allows in no name: controls, private use, specials, and what has two units in UTF-16."""


def check_path(path: str) -> None:
    """InvalidPath unless `path` is / or /name/name/..., without empty, '.' or '..' names and what no path may have."""
    if path == "/":
        return
    if not path.startswith("/"):
        raise InvalidPath(path, "a path begins with /")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise InvalidPath(path, "a path has no empty, '.' or '..' names")
    if not (path.isascii() and path.isprintable()) and re.search(_IN_NO_PATH, path):
        raise InvalidPath(path, "a path has no control, private or special characters")


def parent_of(path: str) -> str:
    """The path of the node above; of /a it is /."""
    return path[: path.rindex("/")] or "/"
