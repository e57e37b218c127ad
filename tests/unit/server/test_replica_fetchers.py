"""The fetchers of a member: their threads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from kbroker.cluster.peers import Peers
from kbroker.config.broker_config import load_config
from kbroker.model import TopicPartition
from kbroker.server.replica_fetchers import ReplicaFetchers
from tests.kit.logs.home import LogHome


def test_a_fetcher_that_starts_later_has_a_name_of_its_own_in_the_system(tmp_path: Path) -> None:
    home = LogHome(tmp_path, topic_partition=TopicPartition("orders", 0))
    log = home.create()
    log.follow(3)
    fetchers = ReplicaFetchers(1, load_config(), cast("Peers", None))
    try:
        fetchers.fetchers.start(home.topic_partition, log, 2, 3)
        names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
        assert names.count("fetcher-2-0") == 1
    finally:
        fetchers.close()
        home.abandon()
