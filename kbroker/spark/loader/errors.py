"""Errors that say why a load failed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.errors import KbrokerError


class LoadFailed(KbrokerError):
    """A load failed. What is committed stays; a later load goes on from there."""


class NotALake(LoadFailed):
    """The directory belongs to something else, or to a lake that was made in another way."""


class LakeTaken(LoadFailed):
    """Another loader is at work on the same lake, or has committed first."""


class LakeDamaged(LoadFailed):
    """Files of the lake are not what its commits say."""


class SparkGone(LoadFailed):
    """Spark itself has ended."""


class RecordsLost(LoadFailed):
    """The brokers no longer have what was to be loaded next."""

    def __init__(self, what: str):
        super().__init__(f"{what}; with --data-loss continue the load goes on from what is there")


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Raise LoadFailed, with the lake's `name`, in place of an OSError of the lake's file system."""
    try:
        yield
    except OSError as error:
        if isinstance(error, KbrokerError):
            raise
        raise LoadFailed(f"{name}: {(os.strerror(error.errno) if error.errno else str(error)).lower()}") from error
