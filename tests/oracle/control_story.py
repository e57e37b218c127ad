"""What a controller sends to a broker, told by one story that happens to a cluster of either kind.

Two real brokers, 1 and 2, and a `StandIn`, 3, which remembers what it gets. Broker 1 is the controller. `tell` returns
for each step the set of what the controller has told about each partition, and about brokers: how it is cut into
requests, and what it repeats, does not count. `python -m tests.oracle.control_story --brokers kafka,kafka` prints it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.clients.wire import WireClient
from tests.kit.cluster import tree
from tests.kit.cluster.cluster import Cluster
from tests.kit.cluster.stand_in import Received, StandIn

Told = frozenset[str]
"""What was told in one step, one line each."""
STAND_IN = 3
TOPIC = "led"
SETTINGS: dict[str, object] = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "auto.leader.rebalance.enable": "false",
    "zookeeper.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 60_000,
}
TIMEOUT_S = 40.0


def told_by(received: Sequence[Received]) -> Told:
    """Return what the requests say, without what differs between runs: broker epochs, topic ids, ports, times."""
    lines: set[str] = set()
    for one in received:
        lines.update(f"{one.api.label} v{one.version}: {line}" for line in LINES[one.api](one.message))
    return frozenset(lines)


def _leader_and_isr(m: Any) -> list[str]:
    head = f"controller {m.controller_id} epoch {m.controller_epoch} type {m.type} kraft {m.is_kraft_controller}"
    lines = [f"{head}, live leader {one.broker_id}" for one in m.live_leaders]
    return lines + [
        f"{head}, {topic.topic_name}-{p.partition_index}: leader {p.leader} epoch {p.leader_epoch} isr {p.isr} "
        f"partition epoch {p.partition_epoch} replicas {p.replicas} adding {p.adding_replicas} "
        f"removing {p.removing_replicas} new {p.is_new} recovery {p.leader_recovery_state} "
        f"controller epoch {p.controller_epoch}"
        for topic in m.topic_states
        for p in topic.partition_states
    ]


def _update_metadata(m: Any) -> list[str]:
    head = f"controller {m.controller_id} epoch {m.controller_epoch} kraft {m.is_kraft_controller}"
    lines = [
        f"{head}, broker {one.id} rack {one.rack} "
        f"{sorted((each.listener, each.security_protocol) for each in one.endpoints)}"
        for one in m.live_brokers
    ]
    return lines + [
        f"{head}, {topic.topic_name}-{p.partition_index}: leader {p.leader} epoch {p.leader_epoch} isr {p.isr} "
        f"partition epoch {p.zk_version} replicas {p.replicas} offline {p.offline_replicas} "
        f"controller epoch {p.controller_epoch}"
        for topic in m.topic_states
        for p in topic.partition_states
    ]


def _stop_replica(m: Any) -> list[str]:
    head = f"controller {m.controller_id} epoch {m.controller_epoch} kraft {m.is_kraft_controller}"
    return [
        f"{head}, {topic.topic_name}-{p.partition_index}: epoch {p.leader_epoch} delete {p.delete_partition}"
        for topic in m.topic_states
        for p in topic.partition_states
    ]


LINES: dict[ApiKey, Callable[[Any], list[str]]] = {
    ApiKey.LEADER_AND_ISR: _leader_and_isr,
    ApiKey.UPDATE_METADATA: _update_metadata,
    ApiKey.STOP_REPLICA: _stop_replica,
    ApiKey.API_VERSIONS: lambda m: [],
}


class Story:
    """The story of one cluster. Each method of the story is a step; `told` has what the stand-in got in each."""

    def __init__(self, cluster: Cluster, stand_in: StandIn):
        self.cluster, self.stand_in = cluster, stand_in
        self.told: dict[str, Told] = {}

    def tell(self) -> dict[str, Told]:
        for step in STEPS:
            step(self)
            self.told[step.__name__] = told_by(self.stand_in.take())
        return self.told

    def ask(self, message: Any, api: ApiKey, version: int, node_id: int = 1) -> Any:
        node = self.cluster.nodes[node_id]
        with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
            return client.call(api, version, message)

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def state(self, index: int) -> dict[str, Any]:
        found = self.cluster.tree().get(f"/brokers/topics/{TOPIC}/partitions/{index}/state")
        return dict(json.loads(found.data)) if found is not None else {"leader": -2, "isr": []}

    def await_registered(self, *node_ids: int) -> None:
        self.wait(f"brokers {node_ids}", lambda: tree.brokers(self.cluster.tree()) == set(node_ids))

    def alter_partition(self, index: int, isr: list[int]) -> int:
        """Ask, as the leader, for another set of replicas in sync; returns the partition's error code."""
        state = self.state(index)
        version = self.cluster.tree()[f"/brokers/topics/{TOPIC}/partitions/{index}/state"].version
        topic_id = self.topic_id()
        R = M.AlterPartitionRequest
        data = R.PartitionData(
            partition_index=index,
            leader_epoch=state["leader_epoch"],
            new_isr_with_epochs=[R.BrokerState(broker_id=each, broker_epoch=-1) for each in isr],
            partition_epoch=version,
        )
        asked = R(
            broker_id=STAND_IN,
            broker_epoch=self.stand_in.broker_epoch,
            topics=[R.TopicData(topic_id=topic_id, partitions=[data])],
        )
        answer = self.ask(asked, ApiKey.ALTER_PARTITION, 3)
        assert answer.error_code == 0, answer
        return int(answer.topics[0].partitions[0].error_code)

    def topic_id(self) -> bytes:
        node = self.cluster.nodes[1]
        with WireClient(node.host.address, node.port) as client:
            asked = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=TOPIC)])
            return bytes(client.call(ApiKey.METADATA, 12, asked).topics[0].topic_id)

    # --- the steps ----------------------------------------------------------------------------------------
    def a_broker_registers(self) -> None:
        self.stand_in.register()
        self.wait("a request", lambda: bool(self.stand_in.received))

    def a_topic_is_made(self) -> None:
        R = M.CreateTopicsRequest
        assignment = [[STAND_IN, 1], [1, STAND_IN], [2, STAND_IN]]
        topic = R.CreatableTopic(
            name=TOPIC,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                R.CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(assignment)
            ],
        )
        answer = self.ask(R(topics=[topic], timeout_ms=30_000), ApiKey.CREATE_TOPICS, 7)
        assert answer.topics[0].error_code == 0, answer

    def it_grows(self) -> None:
        R = M.CreatePartitionsRequest
        topic = R.CreatePartitionsTopic(
            name=TOPIC, count=4, assignments=[R.CreatePartitionsAssignment(broker_ids=[STAND_IN, 2])]
        )
        answer = self.ask(R(topics=[topic], timeout_ms=30_000), ApiKey.CREATE_PARTITIONS, 3)
        assert answer.results[0].error_code == 0, answer

    def its_leader_drops_a_replica(self) -> None:
        assert self.alter_partition(0, [STAND_IN]) == 0

    def its_leader_lets_a_replica_in(self) -> None:
        assert self.alter_partition(0, [STAND_IN, 1]) == 0

    def a_leader_stops(self) -> None:
        self.cluster.nodes[2].stop()
        self.await_registered(1, STAND_IN)
        self.wait("another leader", lambda: self.state(2)["leader"] == STAND_IN)

    def it_comes_back(self) -> None:
        self.cluster.start([2])
        self.await_registered(1, 2, STAND_IN)

    def it_is_let_in_by_the_leader(self) -> None:
        assert self.alter_partition(2, [STAND_IN, 2]) == 0
        assert self.alter_partition(3, [STAND_IN, 2]) == 0

    def preferred_leaders_are_elected(self) -> None:
        R = M.ElectLeadersRequest
        asked = R(election_type=0, topic_partitions=[R.TopicPartitions(topic=TOPIC, partitions=[0, 1, 2, 3])])
        answer = self.ask(asked, ApiKey.ELECT_LEADERS, 2)
        assert answer.error_code == 0, answer

    def a_leader_is_killed(self) -> None:
        self.cluster.kill(2)
        self.await_registered(1, STAND_IN)
        self.wait("another leader", lambda: self.state(2)["leader"] == STAND_IN)

    def it_is_started_again(self) -> None:
        self.cluster.start([2])
        self.await_registered(1, 2, STAND_IN)

    def a_replica_moves_away(self) -> None:
        R = M.AlterPartitionReassignmentsRequest
        moved = R.ReassignablePartition(partition_index=1, replicas=[1, 2])
        asked = R(timeout_ms=30_000, topics=[R.ReassignableTopic(name=TOPIC, partitions=[moved])])
        answer = self.ask(asked, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0)
        assert answer.error_code == 0 and answer.responses[0].partitions[0].error_code == 0, answer

        def is_moved() -> bool:
            node = json.loads(self.cluster.tree()[f"/brokers/topics/{TOPIC}"].data)
            return bool(node["partitions"]["1"] == [1, 2] and not node.get("removing_replicas", {}).get("1"))

        self.wait("the reassignment", is_moved)

    def the_leader_asks_for_its_shutdown(self) -> None:
        asked = M.ControlledShutdownRequest(broker_id=STAND_IN, broker_epoch=self.stand_in.broker_epoch)
        answer = self.ask(asked, ApiKey.CONTROLLED_SHUTDOWN, 3)
        assert answer.error_code == 0, answer
        left = sorted((one.topic_name, one.partition_index) for one in answer.remaining_partitions)
        self.stand_in_left = left

    def the_broker_goes_and_comes_back(self) -> None:
        self.stand_in.unregister()
        self.await_registered(1, 2)
        time.sleep(0.5)
        self.stand_in.register()
        self.wait("a request", lambda: bool(self.stand_in.received))

    def the_controller_is_killed(self) -> None:
        self.cluster.kill(1)
        self.wait("another controller", lambda: self.cluster.controller() == 2)
        self.wait("a request", lambda: bool(self.stand_in.received))

    def the_old_controller_comes_back(self) -> None:
        self.cluster.start([1])
        self.await_registered(1, 2, STAND_IN)

    def the_topic_is_deleted(self) -> None:
        R = M.DeleteTopicsRequest
        asked = R(topics=[R.DeleteTopicState(name=TOPIC)], timeout_ms=30_000)
        answer = self.ask(asked, ApiKey.DELETE_TOPICS, 6, node_id=2)
        assert answer.responses[0].error_code == 0, answer
        self.wait("the topic's end", lambda: f"/brokers/topics/{TOPIC}" not in self.cluster.tree())


STEPS: tuple[Callable[[Story], None], ...] = (
    Story.a_broker_registers,
    Story.a_topic_is_made,
    Story.it_grows,
    Story.its_leader_drops_a_replica,
    Story.its_leader_lets_a_replica_in,
    Story.a_leader_stops,
    Story.it_comes_back,
    Story.it_is_let_in_by_the_leader,
    Story.preferred_leaders_are_elected,
    Story.a_leader_is_killed,
    Story.it_is_started_again,
    Story.a_replica_moves_away,
    Story.the_leader_asks_for_its_shutdown,
    Story.the_broker_goes_and_comes_back,
    Story.the_controller_is_killed,
    Story.the_old_controller_comes_back,
    Story.the_topic_is_deleted,
)


def tell(kinds: Sequence[str]) -> dict[str, Told]:
    """Let the story happen to two brokers of these kinds, and return what was told in each step."""
    with Cluster(kinds[:1], SETTINGS) as cluster, cluster.entered():
        # The second broker comes later: who is first is the controller.
        cluster.add(kinds[1])
        assert cluster.controller() == 1
        host = cluster.network.add_host("stand-in")
        with StandIn(STAND_IN, host, cluster.zookeeper.address) as stand_in:
            return Story(cluster, stand_in).tell()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kafka,kafka")
    for step, lines in tell(parser.parse_args().brokers.split(",")).items():
        print("\n".join([step, *(f"    {line}" for line in sorted(lines))]))


if __name__ == "__main__":
    main()
