"""The clusters that are measured, of three brokers each: kbroker or Kafka 3.9 with a ZooKeeper, or Kafka 4.3 in KRaft.

All brokers are on the loopback address, with the settings that each has by default but for what a cluster of three
needs. One cluster runs at a time: three idle JVMs would cost what is measured.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from perf import machine
from perf.peers import Kafka
from tests.kit.brokers.hosts import LOOPBACK
from tests.kit.brokers.process import ServerProcess, free_port, write_properties
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.cluster.nodes import KafkaNode, KbrokerNode, Node
from tests.kit.kafka.zookeeper import ZooKeeperProcess

NODES = (1, 2, 3)
HEAP = "512m"
SETTLE_TIMEOUT_S = 300.0
SETTINGS: dict[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.delete.delay.ms": 0,
    "auto.create.topics.enable": "false",
}


class BenchKafka39(KafkaNode):
    """Apache Kafka 3.9.1 with both compilers and its own collector, as it is run."""

    def command(self) -> list[str]:
        *_, main_class, properties = super().command()
        logging = self.folder / "log4j.properties"
        options = [f"-Xms{HEAP}", f"-Xmx{HEAP}", f"-Dlog4j.configuration=file:{logging}"]
        return ["java", *options, "-cp", kafka39_classpath(), main_class, properties]


def kafka39_classpath() -> str:
    from perf.peers import Kafka39

    return Kafka39.classpath()


class BenchKafka43(Node):
    """Apache Kafka 4.3.1, broker and controller in one process."""

    kind = "kafka43"

    def command(self) -> list[str]:
        properties = write_properties(self.folder / "server.properties", self.settings)
        machine_ = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", Kafka.classpath()]
        if not (self.data / "meta.properties").exists():
            Kafka.format(properties)
        return [*machine_, "kafka.Kafka", str(properties)]


class ClusterPeer:
    """A cluster of three, as a context manager. `settings` are of all brokers."""

    name = "peer"
    kind: ClassVar[type[Node]]

    def __init__(self, settings: Mapping[str, object] | None = None):
        self.folder = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
        self.settings = {**SETTINGS, **(settings or {})}
        self.nodes: dict[int, Node] = {}
        self.others: list[ServerProcess] = []

    def make(self) -> None:
        """Make the nodes, and start what they need."""
        zookeeper = ZooKeeperProcess(self.folder / "zookeeper")
        self.others.append(zookeeper)
        zookeeper.start()
        for node_id in NODES:
            self.nodes[node_id] = self.new_node(node_id, zookeeper.address, {})

    def new_node(self, node_id: int, zookeeper: str, more: Mapping[str, object]) -> Node:
        folder = self.folder / f"node-{node_id}"
        folder.mkdir()
        settings = {**self.settings, **more}
        return self.kind(node_id, LOOPBACK, folder, zookeeper, settings, folder / "data")

    # --- questions ----------------------------------------------------------------------------------------
    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all brokers that run; ZooKeeper's are not in it."""
        return sum(machine.cpu_seconds(node.pid) for node in self.nodes.values() if node.is_running)

    def resident_mb(self) -> float:
        """Return the resident memory of the largest broker."""
        return max(machine.resident_mb(node.pid) for node in self.nodes.values())

    def metadata(self, topics: Sequence[str] | None = None, node_id: int | None = None) -> Any:
        """Ask a broker, any that runs if None, for its metadata. Raises OSError when it does not answer."""
        running = [node for node in self.nodes.values() if node.is_running]
        node = self.nodes[node_id] if node_id is not None else running[0]
        asked = [M.MetadataRequest.MetadataRequestTopic(name=name) for name in topics or ()]
        try:
            with WireClient("127.0.0.1", node.port, timeout_s=30) as client:
                return client.call(ApiKey.METADATA, 9, M.MetadataRequest(topics=asked if topics is not None else None))
        except ConnectionClosed as error:
            raise OSError(str(error)) from error

    def leaders(self, topic: str, node_id: int | None = None) -> dict[int, int]:
        """Return the leader of each partition, -1 for none."""
        found = self.metadata([topic], node_id).topics[0].partitions
        return {one.partition_index: one.leader_id for one in found}

    def controller(self) -> int:
        return int(self.metadata([]).controller_id)

    # --- topics -------------------------------------------------------------------------------------------
    def create_topic(
        self, topic: str, partitions: int, config: dict[str, str] | None = None, *, led_by: int | None = None
    ) -> None:
        """Create a topic with three replicas each, and wait until all are in sync. `led_by`: who leads them all."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        if led_by is None:
            new = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=config or {})
        else:
            others = [node_id for node_id in NODES if node_id != led_by]
            assigned = [[led_by, *(others if at % 2 else others[::-1])] for at in range(partitions)]
            new = NewTopic(topic, num_partitions=partitions, replica_assignment=assigned, config=config or {})
        admin.create_topics([new], operation_timeout=120, request_timeout=150)[topic].result(180)
        self.await_in_sync(topic, partitions)

    def await_in_sync(self, topic: str, partitions: int) -> None:
        """Wait until each broker says that all replicas of all partitions are in sync."""

        def is_so() -> bool:
            for node_id in self.nodes:
                found = self.metadata([topic], node_id).topics[0]
                whole = [one for one in found.partitions if len(one.isr_nodes) == 3 and one.leader_id >= 0]
                if found.error_code or len(whole) != partitions:
                    return False
            return True

        self.wait(f"replicas of {topic} in sync", is_so)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until its files are gone everywhere."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.delete_topics([topic], operation_timeout=60)[topic].result(120)
        self.wait(f"the files of {topic}", lambda: not any(self.folder.glob(f"node-*/data/{topic}-*")))

    def wait(self, what: str, is_so: Callable[[], bool], pause_s: float = 0.05) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                if is_so():
                    return
            except OSError:
                pass  # a broker is away
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: waited for {what} in vain")
            time.sleep(pause_s)

    # --- life ---------------------------------------------------------------------------------------------
    def start(self, node_id: int) -> None:
        self.nodes[node_id].start()

    def __enter__(self) -> Self:
        try:
            self.make()
            began = [(node, node.begin()) for node in self.nodes.values()]
            for node, started in began:
                node.await_member(started)
            self.wait("all brokers", lambda: all(len(self.metadata([], each).brokers) == 3 for each in self.nodes))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in (*self.nodes.values(), *self.others):
            if process.process is not None and process.process.poll() is None:
                process.kill()
            process._lifeline.cut()
            process._reserved.release()
        shutil.rmtree(self.folder, ignore_errors=True)


class Kbrokers(ClusterPeer):
    name = "kbroker"
    kind = KbrokerNode


class Kafka39s(ClusterPeer):
    name = "Kafka 3.9.1"
    kind = BenchKafka39


class Kafka43s(ClusterPeer):
    name = "Kafka 4.3.1"
    kind = BenchKafka43

    def make(self) -> None:
        controllers = {node_id: free_port() for node_id in NODES}
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in controllers.items())
        for node_id in NODES:
            node = self.nodes[node_id] = self.new_node(node_id, "", {})
            node.settings.pop("zookeeper.connect")
            node.settings.pop("broker.id")
            node.settings |= {
                "process.roles": "broker,controller",
                "node.id": node_id,
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{controllers[node_id]}",
            }

    def controller(self) -> int:
        """Return the active controller: what Metadata names here is any broker."""
        R = M.DescribeQuorumRequest
        topic = R.TopicData(topic_name="__cluster_metadata", partitions=[R.PartitionData(partition_index=0)])
        running = next(node for node in self.nodes.values() if node.is_running)
        with WireClient("127.0.0.1", running.port, timeout_s=30) as client:
            answer = client.call(ApiKey.DESCRIBE_QUORUM, 0, R(topics=[topic]))
        return int(answer.topics[0].partitions[0].leader_id)


KINDS: dict[str, type[ClusterPeer]] = {"kbroker": Kbrokers, "kafka39": Kafka39s, "kafka43": Kafka43s}
