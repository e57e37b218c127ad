"""A history of a cluster of three, after which ZooKeeper's tree and the brokers' logs are compared with Kafka's.

Everything that is left to chance is left out: assignments are given, one thing happens at a time, and each step waits
until the cluster is at rest. Producers and groups go on through all of it, with coordinators that move.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from tests.kit.clients.wire import WireClient
from tests.kit.cluster import replicas, tree
from tests.kit.cluster.cluster import Cluster
from tests.kit.kafka.zookeeper import Nodes
from tests.oracle.history_clients import GROUP_OFFSETS, TRANSACTION_STATE, Group, Producer
from tests.oracle.left_logs import Stored, coordinator_epochs, records_left, states_left
from tests.oracle.scenario import KEYS

SETTINGS: dict[str, object] = {
    "auto.leader.rebalance.enable": "false",
    "zookeeper.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 60_000,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
VERSIONS = {
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.PRODUCE: 9,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.END_TXN: 3,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.LEAVE_GROUP: 3,
}
TRANSACTION_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "min.insync.replicas": "2",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}
"""The settings with which brokers make the topic."""
TOPIC, BROKER, SET = 2, 4, 0
TIMEOUT_S = 40.0
RETRIED = {3, 5, 6, 15, 14, 16, 19, 41, 51}
"""What a broker answers that has not heard of the last change yet, or has not ended the last transaction."""


@dataclass
class Left:
    """What a history has left: nodes by their paths, and the log of each partition, which all replicas have."""

    nodes: dict[str, Any]
    logs: dict[str, Sequence[bytes | Stored]]
    coordinator_epochs: dict[str, list[int]]
    """Those of the markers in each log."""


class History:
    """The history of one cluster. Each method is a step."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.plain, self.idempotent, self.transactional = Producer(self), Producer(self), Producer(self, "id")
        self.readers, self.members = Group(self, "readers"), Group(self, "members")
        self.transaction_count = 0

    def run(self) -> Left:
        for step in STEPS:
            step(self)
            self.cluster.await_settled()
        return self.left()

    def ask(self, message: Message, codes: Callable[[Any], Sequence[int]], node_id: int = 0) -> Any:
        """Ask a broker, 0 for the controller, until it is done. Every code must be 0 in the end."""
        api = KEYS[type(message).__name__]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            node = self.cluster.nodes[node_id or self.cluster.controller()]
            with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
                answer = client.call(api, VERSIONS[api], message)
            found = set(codes(answer)) - {0}
            if not found:
                return answer
            assert found <= RETRIED and time.monotonic() < deadline, f"{message}\n{answer}"
            time.sleep(0.05)

    def create(self, name: str, assignment: Sequence[Sequence[int]], configs: dict[str, str] | None = None) -> None:
        R = M.CreateTopicsRequest
        topic = R.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                R.CreatableReplicaAssignment(partition_index=at, broker_ids=list(ids))
                for at, ids in enumerate(assignment)
            ],
            configs=[R.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        self.ask(R(topics=[topic], timeout_ms=30_000), lambda answer: [one.error_code for one in answer.topics])

    def delete(self, name: str) -> None:
        R = M.DeleteTopicsRequest
        asked = R(topics=[R.DeleteTopicState(name=name)], timeout_ms=30_000)
        self.ask(asked, lambda answer: [one.error_code for one in answer.responses])
        deadline = time.monotonic() + TIMEOUT_S
        while f"/brokers/topics/{name}" in self.cluster.tree():
            assert time.monotonic() < deadline, f"{name} is not deleted"
            time.sleep(0.05)

    def set_config(self, kind: int, name: str, key: str, value: str, node_id: int = 2) -> None:
        R = M.IncrementalAlterConfigsRequest
        config = R.AlterableConfig(name=key, config_operation=SET, value=value)
        asked = R(resources=[R.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])])
        self.ask(asked, lambda answer: [one.error_code for one in answer.responses], node_id)

    def reassign(self, topic: str, partition: int, ids: list[int]) -> None:
        R = M.AlterPartitionReassignmentsRequest
        one = R.ReassignablePartition(partition_index=partition, replicas=ids)
        asked = R(timeout_ms=30_000, topics=[R.ReassignableTopic(name=topic, partitions=[one])])
        self.ask(asked, lambda a: [a.error_code, *(p.error_code for each in a.responses for p in each.partitions)])
        deadline = time.monotonic() + TIMEOUT_S
        while json.loads(self.cluster.tree()[f"/brokers/topics/{topic}"].data)["partitions"][str(partition)] != ids:
            assert time.monotonic() < deadline, f"{topic}-{partition} does not move"
            time.sleep(0.05)

    def elect(self, topic: str, partitions: list[int]) -> None:
        R = M.ElectLeadersRequest
        asked = R(election_type=0, topic_partitions=[R.TopicPartitions(topic=topic, partitions=partitions)])
        not_needed = 84
        self.ask(
            asked,
            lambda answer: [
                code
                for one in answer.replica_election_results
                for p in one.partition_result
                if (code := p.error_code) != not_needed
            ],
        )

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of a partition's leader, once that is a broker that runs."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            node = self.cluster.nodes.get(self.cluster.leader(topic, partition))
            if node is not None and node.is_running:
                return node.node_id
            assert time.monotonic() < deadline, f"{topic}-{partition} has no leader"
            time.sleep(0.05)

    def leaders_go_home(self) -> None:
        for topic, partitions in (("three", [0, 1, 2]), (TRANSACTION_STATE, [0]), (GROUP_OFFSETS, [0])):
            self.elect(topic, partitions)
        self.cluster.await_settled()

    def write_everywhere(self, number: int) -> None:
        for one in list(tree.partitions(self.cluster.tree())):
            if not one.topic.startswith("__"):
                self.plain.write(one.topic, one.index, f"{number}")

    # --- the steps ----------------------------------------------------------------------------------------
    def topics_are_made(self) -> None:
        self.create("three", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        self.create("two", [[1, 2], [3, 1]], {"retention.ms": "1000000", "min.insync.replicas": "1"})
        self.create("one", [[2]], {"min.insync.replicas": "1"})
        self.create("gone", [[1, 2, 3]], {"retention.ms": "5"})
        self.create("back", [[3, 2]], {"min.insync.replicas": "1"})
        self.cluster.await_settled()
        self.write_everywhere(1)

    def producers_and_groups_begin(self) -> None:
        self.create(TRANSACTION_STATE, [[1, 2, 3]], TRANSACTION_CONFIGS)
        self.readers.find()
        self.cluster.await_settled()
        self.reassign(GROUP_OFFSETS, 0, [2, 3, 1])
        self.cluster.await_settled()
        self.leaders_go_home()
        self.idempotent.begin(2)
        self.transactional.begin()
        self.transactions()

    def transactions(self) -> None:
        """Write one committed and one aborted transaction, and what is in none; a group without a member, and one."""
        for commit in (True, False):
            self.transaction_count += 1
            offset = 10 * self.transaction_count
            self.idempotent.write("three", 0)
            self.transactional.write("three", 0)
            self.transactional.write("three", 2)
            self.idempotent.write("three", 0)
            self.transactional.write("two", 0)
            self.transactional.commit_offsets("of transactions", "three", offset)
            self.transactional.end(commit=commit)
            self.readers.commit("three", offset + 1)
            self.members.come_and_go("three", offset + 2)

    def topics_grow_and_go(self) -> None:
        R = M.CreatePartitionsRequest
        topic = R.CreatePartitionsTopic(
            name="two", count=3, assignments=[R.CreatePartitionsAssignment(broker_ids=[2, 3])]
        )
        self.ask(R(topics=[topic], timeout_ms=30_000), lambda answer: [one.error_code for one in answer.results])
        self.delete("gone")
        self.delete("back")
        self.create("back", [[1], [2]], {"min.insync.replicas": "1"})
        self.cluster.await_settled()
        self.write_everywhere(2)

    def settings_change(self) -> None:
        self.set_config(TOPIC, "three", "retention.bytes", "123456789", node_id=1)
        self.set_config(TOPIC, "three", "segment.bytes", "1000000", node_id=2)
        self.set_config(BROKER, "", "background.threads", "8", node_id=3)
        self.set_config(BROKER, "2", "max.connections", "900", node_id=2)

    def a_broker_stops_and_comes_back(self) -> None:
        self.cluster.nodes[2].stop()
        self.await_registered(1, 3)
        self.plain.write("three", 1, "3")
        self.transactions()
        self.cluster.start([2])
        self.cluster.await_settled()
        self.write_everywhere(4)
        self.leaders_go_home()
        self.elect("two", [0, 1, 2])

    def a_broker_is_killed_and_comes_back(self) -> None:
        self.cluster.kill(3)
        self.await_registered(1, 2)
        self.plain.write("three", 2, "5")
        self.transactions()
        self.cluster.start([3])
        self.cluster.await_settled()
        self.write_everywhere(6)
        self.leaders_go_home()
        self.elect("two", [0, 1, 2])

    def replicas_move(self) -> None:
        self.reassign("two", 0, [1, 3])
        self.reassign("two", 1, [2, 1])
        self.reassign("one", 0, [3])
        self.cluster.await_settled()
        self.write_everywhere(7)

    def the_controller_is_killed(self) -> None:
        # Once its session has ended: before, a kbroker may be elected that does not know yet that its predecessor is
        # dead, and begins fewer leader epochs.
        self.cluster.nodes[1].pause()
        self.await_registered(2, 3)
        self.cluster.kill(1)
        deadline = time.monotonic() + TIMEOUT_S
        while self.cluster.controller() < 0:
            assert time.monotonic() < deadline, "no other controller"
            time.sleep(0.05)
        self.plain.write("three", 0, "8")
        self.transactions()
        self.cluster.start([1])
        self.cluster.await_settled()
        self.leaders_go_home()
        self.write_everywhere(9)
        self.transactions()

    def await_registered(self, *node_ids: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while tree.brokers(self.cluster.tree()) != set(node_ids):
            assert time.monotonic() < deadline, f"not {node_ids} alone are registered"
            time.sleep(0.05)

    # --- what is left -------------------------------------------------------------------------------------
    def left(self) -> Left:
        """Return what there is now, once all replicas of each partition have the same."""
        nodes = self.cluster.tree()
        left = Left(known_by_name(nodes), {}, {})
        for one in tree.partitions(nodes):
            name = f"{one.topic}-{one.index}"
            folders = {node_id: self.cluster.nodes[node_id].data / name for node_id in one.replicas}
            deadline = time.monotonic() + TIMEOUT_S
            while wrong := replicas.differences(folders, name):
                assert time.monotonic() < deadline, wrong
                time.sleep(0.1)
            stored = [each.data for each in replicas.batches(folders[one.replicas[0]])]
            is_internal = one.topic.startswith("__")
            left.logs[name] = states_left(one.topic, stored) if is_internal else records_left(stored)
            left.coordinator_epochs[name] = coordinator_epochs(stored)
        return left


STEPS = (
    History.topics_are_made,
    History.producers_and_groups_begin,
    History.topics_grow_and_go,
    History.settings_change,
    History.a_broker_stops_and_comes_back,
    History.a_broker_is_killed_and_comes_back,
    History.replicas_move,
    History.the_controller_is_killed,
)
RANDOM = {"topic_id", "timestamp", "kbroker"}
"""Fields that differ between runs, and the one that tells a kbroker."""
PLACED_BY_CHANCE = f"/brokers/topics/{GROUP_OFFSETS}"
"""A topic whose first replicas are left to chance. To move them to where the history wants them takes more or fewer
changes then, which its versions and its leader epoch count."""


def known_by_name(nodes: Nodes) -> dict[str, Any]:
    """Return the nodes' data as values, and their versions, with names in the place of what differs between runs."""
    found: dict[str, Any] = {}
    for path, node in nodes.items():
        try:
            data = json.loads(node.data)
        except ValueError:
            data = node.data.decode()
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if key not in RANDOM}
        if path.startswith("/brokers/ids/"):
            data = json.loads(re.sub(r":\d{4,5}\b", ":0", json.dumps(data | {"port": 0})))
        if path == "/cluster/id":
            data = "<id>"
        if path == "/controller":
            data["brokerid"] = "<one>"
        version = 0 if node.is_ephemeral or path.startswith(PLACED_BY_CHANCE) else node.version
        if path.startswith(PLACED_BY_CHANCE) and path.endswith("/state"):
            data["leader_epoch"] = "<any>"
        found[path] = data, node.is_ephemeral, version
    return found


def left_by(kinds: Sequence[str]) -> Left:
    """Return what the history leaves that happens to brokers of these kinds; the first is the first controller."""
    with Cluster(kinds[:1], SETTINGS) as cluster, cluster.entered():
        for kind in kinds[1:]:
            cluster.add(kind)
        return History(cluster).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kafka,kafka,kafka")
    left = left_by(parser.parse_args().brokers.split(","))
    for path, node in sorted(left.nodes.items()):
        print(path, node)
    for name, stored in sorted(left.logs.items()):
        print(name, *map(repr, stored), sep="\n    ")


if __name__ == "__main__":
    main()
