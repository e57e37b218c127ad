"""Gives the files of a commit their names. This can be done again from any point where it was cut off."""

from __future__ import annotations

import json
from collections.abc import Callable

from kbroker.spark.loader.commits.commit import Commit
from kbroker.spark.loader.errors import LakeDamaged
from kbroker.spark.loader.hours import hour_folder
from kbroker.spark.loader.lake.storage import STAGING, Storage

MARK = "_SUCCESS"
RUN = "run"
"""A file in the folder of staged files. It exists from before the first task until all files have their names."""


def publish(storage: Storage, commit: Commit, between: Callable[[], None] = lambda: None) -> None:
    """Give a commit's files their names, and mark the hours that it completes.

    Files that they replace are removed first: a row may be missing for a moment, but none is there twice. `between` is
    called before each step. Raises LakeDamaged when a file of the commit is gone.
    """
    new = {file.path for file in commit.files}
    folders = set()
    for path in commit.removed:
        if path not in new:
            between()
            storage.remove([path])
            folders.add(path.rpartition("/")[0])
    storage.sync_folders(folders)  # otherwise a power cut may leave old and new files
    folders = set()
    for file in commit.files:
        between()
        try:
            storage.publish(file.staged, file.path)
        except FileNotFoundError:
            raise LakeDamaged(
                f"{storage.name}: {file.path} of commit {commit.number} is gone, and so is {file.staged}"
            ) from None
        folders.add(file.path.rpartition("/")[0])
    storage.sync_folders(folders)
    for topic, hours in commit.complete_hours.items():
        for hour in hours:
            between()
            mark = json.dumps({"commit": commit.number, "loaded_at_ms": commit.loaded_at_ms}).encode()
            storage.write(f"{hour_folder(topic, hour)}/{MARK}", mark)
    between()
    storage.remove_folder(f"{STAGING}/{commit.staging}")


def is_published(storage: Storage, commit: Commit) -> bool:
    """Return whether `publish` was finished for a commit.

    What a lost attempt of a task still writes into the folder of staged files does not count.
    """
    return RUN not in storage.names(f"{STAGING}/{commit.staging}")
