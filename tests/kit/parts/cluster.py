"""A cluster of one broker on a real store, whose logs are directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from kbroker.cluster.new_topics import NewTopic, TopicDefaults
from kbroker.cluster.topics import FoundPartition, Topics
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.store import Operation, Store, StoreUnavailable
from kbroker.model import Endpoint, TopicPartition
from tests.kit.parts.folder_host import FolderHost

NODE_ID = 1
INTERNAL = {"__consumer_offsets": NewTopic("__consumer_offsets", 5, 3, configs={"cleanup.policy": "compact"})}


class FullDisk:
    """A session of a store that can be told that its disk is full: reads work, and changes fail."""

    def __init__(self, session: EmbeddedSession):
        self._session = session
        self.is_full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def multi(self, operations: Sequence[Operation]) -> Any:
        if self.is_full:
            raise StoreUnavailable("the disk is full; nothing was changed")
        return self._session.multi(operations)


class Cluster:
    """Opens and reopens `Topics` on one store and one host."""

    def __init__(self, folder: Path, found: Iterable[FoundPartition] = ()):
        self.folder = folder
        self.found = found
        self.host = FolderHost(folder / "logs")
        self.open()

    def open(self, *, new_leader_epochs: bool = False) -> Topics:
        self.load()
        self.topics.register([Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)])
        self.topics.start(self.host, new_leader_epochs=new_leader_epochs)
        self._put_aside()
        return self.topics

    def _put_aside(self) -> None:
        """Remove logs of partitions that their topic does not have, as a broker's start does after a crash."""
        for name in self.host.names():
            topic, _, partition_id = name.rpartition("-")
            is_known = topic in self.topics.image.topics
            if is_known and self.topics.owner_of(TopicPartition(topic, int(partition_id))) is None:
                self.host.remove(name)

    def load(self) -> Topics:
        self.store = EmbeddedStore(str(self.folder / "store"))
        self.session: EmbeddedSession = self.store.connect()
        self.disk = FullDisk(self.session)
        self.topics = Topics(
            cast(Store, self.disk),
            NODE_ID,
            defaults=TopicDefaults(partition_count=2),
            internal_topics=INTERNAL,
            found_partitions=lambda: self.found,
        )
        return self.topics

    def close(self) -> None:
        self.store.stop()

    def reopen(self, *, new_leader_epochs: bool = False) -> Topics:
        self.close()
        return self.open(new_leader_epochs=new_leader_epochs)
