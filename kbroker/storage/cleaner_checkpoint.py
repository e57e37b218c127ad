"""`cleaner-offset-checkpoint`: up to which offset each compacted log of a directory was cleaned. In Kafka's format."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from kbroker.errors import DiskDamaged
from kbroker.fs import FileSystem
from kbroker.model import TopicPartition
from kbroker.storage.checkpoints import CLEANER_OFFSETS, load_offsets, store_offsets

logger = logging.getLogger("kbroker.storage")


class CleanerCheckpoint:
    """The cleaner's checkpoint of one log directory.

    A log that is not in it is cleaned from its start: that costs more work and loses nothing.
    """

    def __init__(self, fs: FileSystem, directory: str):
        self._fs = fs
        self._path = f"{directory}/{CLEANER_OFFSETS}"
        self._lock = threading.Lock()
        self._offsets: dict[TopicPartition, int] = {}

    def load(self, entries: set[str]) -> None:
        """Read the checkpoint, or write an empty one if `entries`, the names in the directory, do not include it.

        A damaged file is logged and counts as empty. Raises OSError.
        """
        try:
            if CLEANER_OFFSETS in entries:
                self._offsets = load_offsets(self._fs, self._path)
            else:
                # As in Kafka, the file exists from the first start on.
                store_offsets(self._fs, self._path, {})
        except DiskDamaged as damage:
            logger.error("%s; compacted logs are cleaned from their start", damage)

    def known(self) -> set[TopicPartition]:
        with self._lock:
            return set(self._offsets)

    def get(self, topic_partition: TopicPartition) -> int | None:
        return self._offsets.get(topic_partition)

    def store(self, topic_partition: TopicPartition, offset: int) -> None:
        """Record, durably, that everything below `offset` was cleaned. Raises OSError."""
        with self._lock:
            self._offsets[topic_partition] = offset
            store_offsets(self._fs, self._path, self._offsets)

    def keep_only(self, known: Iterable[TopicPartition]) -> None:
        """Forget logs that are not in `known`: a new log of the same name must not inherit an entry. Raises OSError."""
        known = set(known)
        with self._lock:
            if self._offsets.keys() - known:
                self._offsets = {at: offset for at, offset in self._offsets.items() if at in known}
                store_offsets(self._fs, self._path, self._offsets)
