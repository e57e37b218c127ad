"""The log directories that a broker has made and locked, and those that the disk refused."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.errors import StorageFailed
from kbroker.fs import FileSystem
from kbroker.storage.directory import (
    DirectoryLock,
    MetaProperties,
    load_meta_properties,
    make_directory,
    reason_of,
)


class LockedDirectories:
    """The log directories of one broker, each either locked or left out."""

    def __init__(self, fs: FileSystem):
        self._fs = fs
        self._locks: dict[str, DirectoryLock] = {}
        self.left_out: dict[str, str] = {}
        """Why the disk refused a directory, by path. Partitions in it are offline until the next start."""

    @property
    def usable(self) -> list[str]:
        """The paths of the directories that were made and locked, in the order in which they were asked for."""
        return list(self._locks)

    def lock(self, paths: Iterable[str]) -> MetaProperties | None:
        """Make and lock the directories before anything in them is read or changed, and read their identity.

        Returns the node id and the cluster id that their meta.properties name; None if no directory has that file. A
        directory that the disk refuses is left out. Raises DirectoryInUse, WrongDirectory; StorageFailed if no
        directory is left.
        """
        found: list[MetaProperties] = []
        try:
            for path in (each.rstrip("/") or "/" for each in paths):
                try:
                    make_directory(self._fs, path)
                    self._locks[path] = DirectoryLock(path)
                    meta = load_meta_properties(self._fs, path)
                except (OSError, StorageFailed) as error:
                    self.leave_out(path, error)
                    continue
                if meta is not None:
                    found.append(meta)
            self.refuse_if_none_is_left()
        except BaseException:
            self.release()
            raise
        if not found:
            return None
        return MetaProperties(
            next((meta.node_id for meta in found if meta.node_id is not None), None),
            next((meta.cluster_id for meta in found if meta.cluster_id), None),
            None,
        )

    def leave_out(self, path: str, error: Exception) -> None:
        """Leave out a directory that the disk refuses."""
        lock = self._locks.pop(path, None)
        if lock is not None:
            lock.release()
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        self.left_out[path] = reason if path in reason else f"log directory {path}: {reason}"

    def refuse_if_none_is_left(self) -> None:
        """Raise StorageFailed, with the reasons, if every directory was left out."""
        if not self._locks:
            raise StorageFailed("; ".join(self.left_out.values()) + "; no log directory can be used")

    def release(self) -> None:
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
