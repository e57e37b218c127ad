"""What fetches from leaders on a member of a cluster: its threads and their start and end in one place."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from kbroker.cluster.peers import Peers
from kbroker.config.broker_config import BrokerConfig
from kbroker.model import Endpoint
from kbroker.replication.fetcher_threads import FetcherThread, FetchOptions
from kbroker.replication.fetchers import FetcherOptions, Fetchers
from kbroker.server.replication_throttle import FOLLOWER_RATE, replication_throttle

WORKERS = 2
"""Threads that truncate logs and let them begin anew."""


class ReplicaFetchers:
    """The fetchers of this broker. `fetchers` is what the partitions tell whom to follow."""

    def __init__(
        self, node_id: int, config: BrokerConfig, peers: Peers, network_options: Mapping[str, Any] | None = None
    ):
        """`network_options` are those of a client, for the inter-broker listener."""
        options = FetchOptions(
            max_partition_bytes=config["replica.fetch.max.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            min_bytes=config["replica.fetch.min.bytes"],
            max_wait_ms=config["replica.fetch.wait.max.ms"],
            backoff_ms=config["replica.fetch.backoff.ms"],
            request_timeout_ms=config["replica.socket.timeout.ms"],
        )
        self._throttle = replication_throttle(config, FOLLOWER_RATE)
        self._threads: list[FetcherThread] = []
        try:
            for number in range(config["num.replica.fetchers"]):
                self._threads.append(FetcherThread(node_id, number, options, network_options or {}, self._throttle))
        except BaseException:
            self._close_threads()
            raise
        self.fetchers = Fetchers(
            node_id,
            [thread.engine for thread in self._threads],
            peers,
            FetcherOptions(options.backoff_ms, options.request_timeout_ms),
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
        for thread in self._threads:
            thread.set_brokers(brokers)

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """Set the epoch of this broker's registration."""
        for thread in self._threads:
            thread.engine.set_broker_epoch(broker_epoch)

    def take_config(self, config: BrokerConfig) -> None:
        """Use the throttle that is in force after a dynamic change."""
        rate = config[FOLLOWER_RATE]
        if rate != self._throttle.rate:
            self._throttle.rate = rate
            for thread in self._threads:
                thread.engine.awaken()

    def close(self) -> None:
        """End all threads. Nothing is appended afterwards. Idempotent."""
        self.fetchers.end()
        self._close_threads()
        for worker in self._workers:
            if worker.ident is not None:
                worker.join()

    def _close_threads(self) -> None:
        for thread in self._threads:
            thread.close()

    # --- counters, for metrics

    @property
    def bytes_in(self) -> int:
        """Bytes of records that were appended here because a leader sent them."""
        return sum(thread.engine.bytes_in for thread in self._threads)

    @property
    def requests(self) -> int:
        return sum(thread.engine.requests for thread in self._threads)

    @property
    def failed(self) -> int:
        """Fetches without an answer, or with an error of the whole."""
        return sum(thread.engine.failed for thread in self._threads)

    @property
    def damaged(self) -> int:
        """Answers for one partition with a batch that was damaged or did not belong there."""
        return sum(thread.engine.damaged for thread in self._threads)
