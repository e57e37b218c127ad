"""A lake's files in memory: calls are counted, cut off, and met by others."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class MemoryLake:
    """Of kbroker.spark.loader.lake.Storage what commits need. `before` is told of each call, and of what."""

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
        """That many writes and removals happen, and then none: InterruptedError."""
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
