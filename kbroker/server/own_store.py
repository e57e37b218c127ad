"""The coordination store of a broker that was alone and becomes a member of a cluster.

Only one place may hold the truth about a broker's topics: `coordination.sqlite` in its log directories, or a ZooKeeper.
`kbroker cluster export` carries the store into a ZooKeeper, and then puts the file aside. A start as a member is
refused while the file is there, since whatever it has would be lost. A broker that is alone refuses directories whose
file was put aside (`found_logs.refuse_carried`) until `kbroker cluster import` has made a new store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from kbroker.cluster.joining import CannotJoin
from kbroker.coordination.embedded import FILE_NAME
from kbroker.server.found_logs import CARRIED

LOG = logging.getLogger(__name__)

_BESIDE = ("", "-wal", "-shm")


def put_aside(path: str) -> str:
    """Rename a store that was carried into a ZooKeeper and is closed. Returns its new path."""
    for suffix in _BESIDE:
        beside = Path(path + suffix)
        if beside.exists():
            beside.replace(path + CARRIED + suffix)
    return path + CARRIED


def refuse_own_store(log_dirs: Sequence[Path], address: str) -> None:
    """Raise CannotJoin if a log directory has a store: what this broker has done alone is in no ZooKeeper."""
    for directory in log_dirs:
        path = directory / FILE_NAME
        if path.exists():
            data = " ".join(f"--data {each}" for each in log_dirs)
            raise CannotJoin(
                f"zookeeper.connect={address}: {path} has topics and settings of this broker alone, which would be "
                f"lost: carry them there first, with `kbroker cluster export --zookeeper {address} {data}`, start "
                "without zookeeper.connect, or move the file away if nothing of it is needed"
            )


def mark_as_members(log_dirs: Iterable[Path], address: str) -> None:
    """Leave a file in log directories by which `refuse_carried` knows that they are those of a member of a cluster.

    A broker that has forgotten its zookeeper.connect would append, alone, to what others have replicas of.
    """
    for directory in log_dirs:
        try:
            with (directory / f"{FILE_NAME}{CARRIED}").open("x") as file:
                file.write(f"These are the log directories of a member of the cluster in ZooKeeper {address}.\n")
        except FileExistsError:
            pass
        except OSError as error:
            LOG.warning("%s is not marked as that of a member of a cluster: %s", directory, error)
