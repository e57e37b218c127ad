"""What fetches from leaders on a member of a cluster: its threads and their start and end in one place."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from kbroker._core.replica.fetcher import ReplicaFetcher
from kbroker.cluster.peers import Peers
from kbroker.config.broker_config import BrokerConfig
from kbroker.model import Endpoint
from kbroker.replication.fetcher_threads import FetcherThread, FetchOptions
from kbroker.replication.fetchers import FetcherOptions, Fetchers
from kbroker.server.replication_throttle import FOLLOWER_RATE, replication_throttle
from kbroker.server.thread_names import name_thread

WORKERS = 2
"""Threads that truncate logs and let them begin anew."""


class ReplicaFetchers:
    """The fetchers of this broker. `fetchers` is what the partitions tell whom to follow."""

    def __init__(
        self, node_id: int, config: BrokerConfig, peers: Peers, network_options: Mapping[str, Any] | None = None
    ):
        """`network_options` are those of a client, for the inter-broker listener."""
        self._node_id = node_id
        self._network_options = network_options or {}
        self._options = options = FetchOptions(
            max_partition_bytes=config["replica.fetch.max.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            min_bytes=config["replica.fetch.min.bytes"],
            max_wait_ms=config["replica.fetch.wait.max.ms"],
            backoff_ms=config["replica.fetch.backoff.ms"],
            request_timeout_ms=config["replica.socket.timeout.ms"],
        )
        self._throttle = replication_throttle(config, FOLLOWER_RATE)
        self._lock = threading.Lock()  # guards the next four; taken under that of `fetchers`
        self._threads: list[FetcherThread] = []
        self._is_closed = False
        self._brokers: Mapping[int, Endpoint] = {}
        self._broker_epoch = -1
        self.fetchers = Fetchers(
            node_id,
            self._make_engine,
            peers,
            FetcherOptions(options.backoff_ms, options.request_timeout_ms, config["num.replica.fetchers"]),
        )
        self._workers = [
            threading.Thread(target=self.fetchers.run, name=f"replica-truncation-{number}", daemon=True)
            for number in range(WORKERS)
        ]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        """Replace the addresses of the leaders: the inter-broker endpoints of the brokers that are alive."""
        with self._lock:
            self._brokers = brokers
            for thread in self._threads:
                thread.set_address(brokers.get(thread.leader_id))

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """Set the epoch of this broker's registration."""
        with self._lock:
            self._broker_epoch = broker_epoch
            for thread in self._threads:
                thread.engine.set_broker_epoch(broker_epoch)

    def take_config(self, config: BrokerConfig) -> None:
        """Use the throttle that is in force after a dynamic change."""
        rate = config[FOLLOWER_RATE]
        if rate != self._throttle.rate:
            self._throttle.rate = rate
            for thread in self._made():
                thread.engine.awaken()

    def close(self) -> None:
        """End all threads. Nothing is appended afterwards. Idempotent."""
        self.fetchers.end()
        with self._lock:
            self._is_closed = True
        for thread in self._made():
            thread.close()
        for worker in self._workers:
            if worker.ident is not None:
                worker.join()

    def _make_engine(self, leader_id: int, number: int) -> ReplicaFetcher:
        thread = FetcherThread(self._node_id, leader_id, number, self._options, self._network_options, self._throttle)
        name_thread(thread.native_id, thread.name)
        with self._lock:
            self._threads.append(thread)
            thread.set_address(self._brokers.get(leader_id))
            thread.engine.set_broker_epoch(self._broker_epoch)
            is_closed = self._is_closed
        if is_closed:
            thread.close()
        return thread.engine

    def _made(self) -> list[FetcherThread]:
        with self._lock:
            return list(self._threads)

    # --- counters, for metrics

    @property
    def bytes_in(self) -> int:
        """Bytes of records that were appended here because a leader sent them."""
        return sum(thread.engine.bytes_in for thread in self._made())

    @property
    def failed(self) -> int:
        """Fetches without an answer, or with an error of the whole."""
        return sum(thread.engine.failed for thread in self._made())

    @property
    def damaged(self) -> int:
        """Answers for one partition with a batch that was damaged or did not belong there."""
        return sum(thread.engine.damaged for thread in self._made())
