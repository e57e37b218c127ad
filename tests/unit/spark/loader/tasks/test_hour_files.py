"""Rows into files of hours."""

from __future__ import annotations

from pathlib import Path

import pyarrow

from kbroker.spark.loader.lake.storage import Directory
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.tasks.hour_files import HourFiles

HOUR = 472_222


def packed(folder: Path, *partitions: int) -> str:
    """The name of the file that has two rows of each."""
    files = HourFiles(Directory(str(folder)), "attempt", Settings(str(folder), {}), {})
    stamps = pyarrow.array([HOUR * 3_600_000] * 2, pyarrow.timestamp("ms"))
    rows = pyarrow.record_batch({"offset": [3, 4], "value": [b"v", b"w"], "timestamp": stamps})
    for partition in partitions:
        files.add("t", partition, HOUR, rows)
    (file,) = files.close()
    return file.path.rpartition("/")[2]


def test_files_of_other_rows_have_other_names(tmp_path: Path) -> None:
    """A reload that packed partitions otherwise had rows in its own file and, for a moment, in that of old."""
    assert packed(tmp_path / "one", 0) == "part-0-3-4.parquet"
    names = {packed(tmp_path / str(other), 0, other, 4) for other in range(1, 4)}
    assert len(names) == 3
    assert all(name.startswith("part-0-3-4-and-2-more-") for name in names)
    assert packed(tmp_path / "again", 0, 1, 4) in names
