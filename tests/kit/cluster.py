"""A cluster of one broker on a real store, whose logs are directories."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kbroker.cluster.new_topics import NewTopic, TopicDefaults
from kbroker.cluster.topics import FoundPartition, Topics
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.model import Endpoint
from tests.kit.folder_host import FolderHost

NODE_ID = 1
INTERNAL = {"__consumer_offsets": NewTopic("__consumer_offsets", 5, 3, configs={"cleanup.policy": "compact"})}


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
        return self.topics

    def load(self) -> Topics:
        self.store = EmbeddedStore(str(self.folder / "store"))
        self.session: EmbeddedSession = self.store.connect()
        self.topics = Topics(
            self.session,
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
