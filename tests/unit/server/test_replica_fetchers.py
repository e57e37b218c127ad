"""The fetchers of a member: their threads, and what its settings make them ask."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from kbroker.cluster.peers import Peers
from kbroker.config.broker_config import load_config
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.server.replica_fetchers import ReplicaFetchers
from tests.kit.brokers.scripted import Peer, ScriptedBroker
from tests.kit.logs.home import LogHome
from tests.kit.parts.processors import wait_until


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


def test_a_follower_asks_for_what_the_settings_of_its_broker_say(tmp_path: Path) -> None:
    """A leader that does not answer is given up after the time that they say, and asked again."""
    given = {
        "replica.fetch.max.bytes": 5001,
        "replica.fetch.response.max.bytes": 70_001,
        "replica.fetch.min.bytes": 3,
        "replica.fetch.wait.max.ms": 41,
        "replica.fetch.backoff.ms": 1,
        "replica.socket.timeout.ms": 50,
    }
    asked: list[M.FetchRequest] = []

    def never_answer(peer: Peer) -> None:
        request = peer.serve_versions()
        assert request.api_key == ApiKey.FETCH and isinstance(request.message, M.FetchRequest)
        asked.append(request.message)
        peer.wait_for_end()

    home = LogHome(tmp_path, topic_partition=TopicPartition("orders", 0))
    log = home.create()
    log.follow(3)
    config = load_config(None, [f"{name}={value}" for name, value in given.items()], tmp_path, environment={})
    with ScriptedBroker(never_answer) as leader:
        fetchers = ReplicaFetchers(1, config, cast("Peers", None))
        try:
            fetchers.set_brokers({2: Endpoint("INSIDE", "PLAINTEXT", "127.0.0.1", leader.port)})
            fetchers.fetchers.start(home.topic_partition, log, 2, 3)
            wait_until(lambda: len(asked) == 2, "a second fetch")
            assert fetchers.failed
        finally:
            fetchers.close()
            home.abandon()
    for fetch in asked:
        (partition,) = fetch.topics[0].partitions
        assert partition.partition_max_bytes == 5001
        assert (fetch.max_bytes, fetch.min_bytes, fetch.max_wait_ms) == (70_001, 3, 41)
