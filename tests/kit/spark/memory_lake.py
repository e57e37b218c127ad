"""A lake's files in memory. Tests count its calls, cut them off, and make other calls in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class MemoryLake:
    """The part of kbroker.spark.loader.lake.storage.Storage that commits need.

    `before` is called with each call and its subject.
    """

    name = "memory"

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.before: Callable[[str, str], None] = lambda call, path: None
        self._left: int | None = None

    def copy(self) -> MemoryLake:
        found = MemoryLake()
        found.contents = dict(self.contents)
        return found

    def cut_off_after(self, changes: int | None) -> None:
        """Let `changes` more writes and removals happen; all later ones raise InterruptedError."""
        self._left = changes

    def _called(self, call: str, path: str, *, changes: bool = False) -> None:
        self.calls.append(call)
        self.before(call, path)
        if changes and self._left is not None:
            if self._left == 0:
                raise InterruptedError
            self._left -= 1

    def read(self, path: str) -> bytes:
        self._called("read", path)
        try:
            return self.contents[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: str, data: bytes) -> None:
        self._called("write", path, changes=True)
        self.contents[path] = data

    def create(self, path: str, data: bytes) -> bool:
        self._called("create", path, changes=True)
        return self.contents.setdefault(path, data) is data

    def names(self, folder: str) -> list[str]:
        self._called("names", folder)
        return [path.rpartition("/")[2] for path in list(self.contents) if path.rpartition("/")[0] == folder]

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._called("remove", path, changes=True)
            self.contents.pop(path, None)
