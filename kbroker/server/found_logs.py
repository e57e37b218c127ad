"""The logs that are in the log directories when the coordination store is new: those that Apache Kafka left, say."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from kbroker.cluster.new_topics import METADATA_LOG_TOPIC
from kbroker.cluster.topics import FoundPartition
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import NO_UUID
from kbroker.storage import checkpoints
from kbroker.storage.directory import is_directory, parse_partition_directory
from kbroker.storage.leader_epochs import LeaderEpochs

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
