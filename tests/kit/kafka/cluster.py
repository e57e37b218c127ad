"""A cluster of three Apache Kafkas (KRaft, each broker and controller), which can be killed and paused one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from kbroker.client import AdminClient, ClientError
from tests.kit.brokers.process import free_port
from tests.kit.kafka.process import KafkaProcess

NODES = (1, 2, 3)
SETTLE_TIMEOUT_S = 120.0
REPLICATED: dict[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class Kafka4Node(KafkaProcess):
    version = "4.3.1"
    heap = "256m"
    start_timeout_s = 240.0


class KafkaCluster:
    """The cluster, as a context manager. `nodes` maps ids to nodes; node n is in rack `r<n>`."""

    def __init__(self) -> None:
        controllers = {node_id: free_port() for node_id in NODES}
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in controllers.items())
        self.nodes: dict[int, Kafka4Node] = {}
        for node_id in NODES:
            node = self.nodes[node_id] = Kafka4Node(REPLICATED)
            node.overrides |= {
                "node.id": node_id,
                "broker.rack": f"r{node_id}",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{controllers[node_id]}",
            }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def create_topic(self, name: str, partitions: int) -> None:
        with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
            admin.create_topic(name, partitions=partitions, replication_factor=3)
        self.await_in_sync(name)

    # --- what happens to brokers, by the names of kbroker.testing.Cluster ----------------------------------
    def kill(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.nodes[node_id].kill()

    def stop(self, node_id: int) -> None:
        self.nodes[node_id].stop()

    def start(self, *node_ids: int) -> None:
        """Start brokers, and wait until all replicas are in sync."""
        for node_id in node_ids:
            self.nodes[node_id].start()
        self.await_in_sync()

    @contextlib.contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """Stop a node for the block, as a machine that hangs. After some seconds its partitions get other leaders."""
        os.kill(self.nodes[node_id].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.nodes[node_id].pid, signal.SIGCONT)

    # --- questions ----------------------------------------------------------------------------------------
    def controller(self) -> int:
        """Return the id of a broker that takes requests for the controller."""
        with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
            return admin.describe_cluster().controller_id

    def leader(self, topic: str, partition: int = 0) -> int:
        with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
            return admin.describe_topics([topic])[topic].partitions[partition].leader

    def await_in_sync(self, *topics: str) -> None:
        """Wait until all replicas of the topics, or of all topics, are in sync."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
            while True:
                try:
                    found = admin.describe_topics(topics or tuple(admin.list_topics(internal=True)))
                    if all(len(each.in_sync) == 3 for topic in found.values() for each in topic.partitions):
                        return
                except ClientError:
                    pass
                if time.monotonic() > deadline:
                    raise TimeoutError(f"replicas of {topics or 'some topics'} are not in sync")
                time.sleep(0.2)

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(self.nodes)) as pool:  # no node serves before a majority is there
            list(pool.map(lambda node: node.start(), self.nodes.values()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.kill()  # the last ones would wait for a controller that is gone
            node.__exit__(kind, error, trace)
