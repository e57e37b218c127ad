"""Why a load does not happen."""

from __future__ import annotations

from kbroker.errors import KbrokerError


class LoadFailed(KbrokerError):
    """What is committed stays; a later load goes on from there."""


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
