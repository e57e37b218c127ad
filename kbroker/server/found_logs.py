"""Looks for the coordination store and for logs (Apache Kafka's too) in the log directories, before the broker runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kbroker.cluster.new_topics import METADATA_LOG_TOPIC
from kbroker.cluster.topics import FoundPartition
from kbroker.coordination.embedded import FILE_NAME as STORE_FILE
from kbroker.coordination.embedded import store_path
from kbroker.errors import ConfigError, StorageFailed
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import NO_UUID
from kbroker.rules.topic_names import listed
from kbroker.storage import checkpoints, directory, file_names
from kbroker.storage.directory import WrongDirectory, is_directory, parse_partition_directory
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_manager import LogManager

LOG = logging.getLogger(__name__)

_NOBODYS = frozenset({"lost+found", directory.LOCK})
"""Names in a directory that nobody has used yet: the file system's own, and the lock of a start that got no further."""
_OF_BROKERS = frozenset({
    STORE_FILE, directory.META_PROPERTIES, directory.CLEAN_MARK, checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANER_OFFSETS,
})  # fmt: skip
CARRIED = ".carried"
"""The end of the name of a store whose contents are in a ZooKeeper."""
_MOST_NAMES = 3
"""How many foreign files the error message names."""


def refuse_foreign(log_dirs: Iterable[str | Path]) -> None:
    """Check, before anything is written, that no log directory belongs to somebody else.

    Raises WrongDirectory for one that has files of others and none that a broker makes. A directory that cannot be
    listed is skipped: `LogManager.lock_directories` reports it.
    """
    for log_dir in log_dirs:
        try:
            found = os.listdir(log_dir)  # noqa: PTH208
        except OSError:
            continue
        foreign = sorted(name for name in found if name not in _NOBODYS and not _is_of_a_partition(name))
        if foreign and not _OF_BROKERS.intersection(found):
            raise WrongDirectory(
                f"log directory {log_dir} has files that are no broker's ({listed(foreign, _MOST_NAMES)}): choose an "
                f"empty or a new one, such as {Path(log_dir) / 'kbroker'}"
            )


def _is_of_a_partition(name: str) -> bool:
    return parse_partition_directory(name) is not None or name.endswith(
        (file_names.DIRECTORY_DELETE, file_names.DIRECTORY_STRAY, file_names.DIRECTORY_FUTURE)
    )


def found_partitions(log_dirs: Iterable[str | Path], fs: FileSystem | None = None) -> Iterator[FoundPartition]:
    """Each partition found in the directories, with topic id and latest leader epoch from the files beside its log."""
    fs = fs or RealFileSystem()
    for log_dir in log_dirs:
        for name in sorted(fs.list_directory(str(log_dir))):
            topic_partition = parse_partition_directory(name)
            if topic_partition is None or topic_partition.topic == METADATA_LOG_TOPIC:
                continue
            path = f"{log_dir}/{name}"
            if not is_directory(fs, path):
                LOG.warning("%s is left alone: it is a file with the name of a partition", path)
                continue
            topic_id = checkpoints.load_topic_id(fs, f"{path}/{checkpoints.PARTITION_METADATA}")
            epochs = LeaderEpochs(fs, path)
            epochs.load()
            yield FoundPartition(topic_partition, None if topic_id == NO_UUID else topic_id, epochs.latest)


def find_store(logs: LogManager) -> str:
    """The path of the coordination store: the one found in a log directory, else a new one in the first directory.

    Raises WrongDirectory if there are two. Raises StorageFailed if none is found and a directory cannot be used: the
    store may be in that one, and without it no topic is known.
    """
    paths = [store_path(directory) for directory in logs.usable_directories]
    there = [path for path in paths if Path(path).exists()]
    if len(there) > 1:
        raise WrongDirectory(f"{' and '.join(there)}: a broker has one of them; move away what is not this broker's")
    if there:
        return there[0]
    if logs.left_out:
        raise StorageFailed(
            f"{'; '.join(logs.left_out)}; the store of topics ({STORE_FILE}) is in no other one and may be there"
        )
    return paths[0]


def refuse_carried(log_dirs: Iterable[Path]) -> None:
    """Raise ConfigError if this broker was a member of a cluster, and its topics have not been carried back."""
    directories = list(log_dirs)
    if any((each / STORE_FILE).exists() for each in directories):
        return
    for each in directories:
        if (each / f"{STORE_FILE}{CARRIED}").exists():
            raise ConfigError(
                f"{each} is that of a member of a cluster: set zookeeper.connect, or carry its topics back with "
                f"`kbroker cluster import --zookeeper HOST:PORT --data {each}`"
            )
