"""In which order a commit's files get their names, and others lose theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kbroker.spark.loader.commits.commit import Commit, LakeFile, Part
from kbroker.spark.loader.commits.publish import publish
from kbroker.spark.loader.lake.storage import Directory

OLD = "topic=t/date=2023-11-14/hour=22/part-0-0-9.parquet"
NEW = "topic=t/date=2023-11-14/hour=23/part-0-0-19.parquet"


class Watched(Directory):
    """Remembers what was done, and to what."""

    def __init__(self, root: str):
        super().__init__(root)
        self.done: list[tuple[str, str]] = []

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.done.append(("removed", path))
            super().remove([path])

    def publish(self, staged: str, path: str) -> None:
        self.done.append(("published", path))
        super().publish(staged, path)

    def sync_folders(self, folders: Iterable[str]) -> None:
        for folder in sorted(folders):
            self.done.append(("synced", folder))
            super().sync_folders([folder])


def test_what_goes_is_gone_durably_before_what_comes_in_its_place(tmp_path: Path) -> None:
    """A power cut could leave both, and rows were there twice until the next load."""
    lake = Watched(str(tmp_path))
    lake.write(OLD, b"old")
    lake.write("staged", b"new")
    file = LakeFile(NEW, "staged", "t", 472223, 20, 3, 5, 5, (Part(0, 0, 19, 20),))
    publish(lake, Commit(2, "run", 1, {}, {}, {}, files=(file,), removed=(OLD,)))
    hour_22, hour_23 = (path.rpartition("/")[0] for path in (OLD, NEW))
    assert lake.done == [("removed", OLD), ("synced", hour_22), ("published", NEW), ("synced", hour_23)]
    assert not (tmp_path / OLD).exists() and (tmp_path / NEW).read_bytes() == b"new"
