"""What is in the log directories before a broker runs: its coordination store, and logs that Apache Kafka left, say."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from kbroker.cluster.new_topics import METADATA_LOG_TOPIC
from kbroker.cluster.topics import FoundPartition
from kbroker.coordination.embedded import FILE_NAME as STORE_FILE
from kbroker.coordination.embedded import store_path
from kbroker.errors import StorageFailed
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import NO_UUID
from kbroker.storage import checkpoints
from kbroker.storage.directory import WrongDirectory, is_directory, parse_partition_directory
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_manager import LogManager

LOG = logging.getLogger(__name__)


def found_partitions(log_dirs: Iterable[str | Path], fs: FileSystem | None = None) -> Iterator[FoundPartition]:
    """Each partition in any of the directories, with what Kafka wrote down beside its log."""
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
    """Where the coordination store is: in the log directory that has one; a new one in the first.

    Raises StorageFailed when it may be in a directory that the disk refuses: without it no topic is known.
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
