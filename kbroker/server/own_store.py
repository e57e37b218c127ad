"""The coordination store of a broker that was alone and becomes a member of a cluster.

`kbroker cluster export` carries its contents into a ZooKeeper. The first start as a member finds them there, and puts
the file aside, so that it is not taken for the truth later. A broker that is alone again refuses such a directory
(`found_logs.refuse_carried`) until `kbroker cluster import` has made a new store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from kbroker.cluster.joining import CannotJoin
from kbroker.coordination import paths
from kbroker.coordination.embedded import FILE_NAME, EmbeddedStore
from kbroker.coordination.store import Store
from kbroker.rules.topic_names import listed
from kbroker.server.found_logs import CARRIED

LOG = logging.getLogger(__name__)

_BESIDE = ("", "-wal", "-shm")
MOST_NAMES = 5


def put_aside(log_dirs: Iterable[Path], tree: Store, address: str) -> None:
    """Put the store in the log directories aside, if the tree has all of its topics. No-op if there is none.

    Raises CannotJoin if the tree lacks a topic; then nothing is changed.
    """
    for directory in log_dirs:
        path = directory / FILE_NAME
        if not path.exists():
            continue
        missing = _missing(path, tree)
        if missing is not None:
            raise CannotJoin(
                f"zookeeper.connect={address}: {path} has topics of this broker, which was alone, that are not there"
                f"{f' ({missing})' if missing else ''}: carry them with `kbroker cluster export --zookeeper {address} "
                f"--data {directory}`, or move the file away"
            )
        for suffix in _BESIDE:
            beside = Path(f"{path}{suffix}")
            if beside.exists():
                beside.replace(f"{path}{CARRIED}{suffix}")
        LOG.info("%s was carried into ZooKeeper %s, and is kept as %s%s", path, address, FILE_NAME, CARRIED)


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


def _missing(path: Path, tree: Store) -> str | None:
    """The names of topics that are in the store and not in the tree; "" for another cluster, None if nothing is."""
    store = EmbeddedStore(str(path))
    try:
        session = store.connect()
        if session.exists(paths.CLUSTER_ID) is None:
            return None
        cluster_ids = [each.get_many([paths.CLUSTER_ID])[0] for each in (session, tree)]
        ours, theirs = (
            None if found is None else paths.decode_cluster_id(paths.CLUSTER_ID, found[0]) for found in cluster_ids
        )
        if ours != theirs:
            return ""
        names = session.children(paths.TOPICS)
        topic_paths = [paths.topic_path(name) for name in names]
        lacking = [
            name
            for name, path_of, here, there in zip(
                names, topic_paths, session.get_many(topic_paths), tree.get_many(topic_paths), strict=True
            )
            if here is not None
            and (
                there is None
                or paths.decode_topic(path_of, here[0]).topic_id != paths.decode_topic(path_of, there[0]).topic_id
            )
        ]
        return listed(lacking, MOST_NAMES) if lacking else None
    finally:
        store.stop()
