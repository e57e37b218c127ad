"""How a broker of a cluster answers to requests between brokers, above all to wrong ones.

Two real brokers of one kind, 1 (the controller) and 2, and a `StandIn`, 3, in whose name the requests are made. Each
`case` asks one thing; `ask_all` returns for each case the answers, as trees that can be compared.
`python -m tests.oracle.control_answers --brokers kafka,kafka` prints them.
"""

from __future__ import annotations

import argparse
import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.cluster.cluster import Cluster
from tests.kit.cluster.stand_in import StandIn
from tests.oracle.answers import Names, Tree, tree_of
from tests.oracle.control_story import SETTINGS, STAND_IN

TOPIC, GHOST = "led", "ghost"
GHOST_ID = bytes(range(16))
TIMEOUT_S = 30.0
KEYS = {f"{key.label}Request": key for key in ApiKey}
VERSIONS = {
    ApiKey.LEADER_AND_ISR: 7,
    ApiKey.STOP_REPLICA: 4,
    ApiKey.UPDATE_METADATA: 8,
    ApiKey.CONTROLLED_SHUTDOWN: 3,
    ApiKey.ALTER_PARTITION: 3,
    ApiKey.ALLOCATE_PRODUCER_IDS: 0,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 4,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
}
"""The versions that a 3.9 at inter.broker.protocol.version 3.9 uses; Fetch 12 goes by names."""
CASES: dict[str, Callable[[Talk], None]] = {}


def case(run: Callable[[Talk], None]) -> Callable[[Talk], None]:
    CASES[run.__name__] = run
    return run


class Talk:
    """Asks for one case, and keeps what is answered."""

    def __init__(self, cluster: Cluster, stand_in: StandIn, names: Names):
        self.cluster, self.stand_in, self.names = cluster, stand_in, names
        self.answers: list[Tree] = []
        nodes = cluster.tree()
        self.controller_epoch = int(nodes["/controller_epoch"].data)
        self.states = {
            index: json.loads(nodes[f"/brokers/topics/{TOPIC}/partitions/{index}/state"].data) for index in range(3)
        }
        self.versions = {
            index: nodes[f"/brokers/topics/{TOPIC}/partitions/{index}/state"].version for index in range(3)
        }
        self.broker_epochs = {
            node_id: stand_in.zookeeper.exists(f"/brokers/ids/{node_id}").czxid for node_id in cluster.nodes
        }
        topic = json.loads(nodes[f"/brokers/topics/{TOPIC}"].data)
        self.topic_id = from_base64(topic["topic_id"])

    def ask(self, message: Message, node_id: int = 2, version: int | None = None) -> Any:
        """Ask a broker, and keep the answer; a connection that is closed without one is an answer too."""
        api = KEYS[type(message).__name__]
        version = VERSIONS[api] if version is None else version
        node = self.cluster.nodes[node_id]
        with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
            try:
                answer = client.call(api, version, message)
            except ConnectionClosed:
                self.answers.append("closed")
                return None
        self.answers.append(without_configs(tree_of(answer, version, self.names)))
        return answer

    # --- requests that are right but for what a case changes ----------------------------------------------
    def leader_and_isr(
        self, node_id: int = 2, topic_id: bytes = GHOST_ID, topic: str = GHOST, **changed: Any
    ) -> Message:
        R = M.LeaderAndIsrRequest
        partition: dict[str, Any] = {
            "partition_index": 0,
            "controller_epoch": self.controller_epoch,
            "leader": node_id,
            "leader_epoch": 3,
            "isr": [node_id],
            "partition_epoch": 0,
            "replicas": [node_id],
            "is_new": True,
        }
        request: dict[str, Any] = {
            "controller_id": 1,
            "controller_epoch": self.controller_epoch,
            "broker_epoch": self.broker_epochs[node_id],
        }
        for name, value in changed.items():
            (request if name in ("broker_epoch", "controller_id") or name == "old_controller" else partition)[name] = (
                value
            )
        if "old_controller" in request:
            request["controller_epoch"] = request.pop("old_controller")
        live = [
            R.LeaderAndIsrLiveLeader(broker_id=each, host_name=node.host.address, port=node.port)
            for each, node in self.cluster.nodes.items()
        ]
        state = R.LeaderAndIsrTopicState(
            topic_name=topic, topic_id=topic_id, partition_states=[R.LeaderAndIsrPartitionState(**partition)]
        )
        return R(topic_states=[state], live_leaders=live, **request)

    def stop_replica(self, leader_epoch: int, delete: bool, topic: str = GHOST, **changed: Any) -> Message:
        R = M.StopReplicaRequest
        request: dict[str, Any] = {
            "controller_id": 1,
            "controller_epoch": self.controller_epoch,
            "broker_epoch": self.broker_epochs[2],
            **changed,
        }
        partition = R.StopReplicaPartitionState(partition_index=0, leader_epoch=leader_epoch, delete_partition=delete)
        return R(topic_states=[R.StopReplicaTopicState(topic_name=topic, partition_states=[partition])], **request)

    def update_metadata(self, node_id: int = 2, **changed: Any) -> Message:
        """Metadata in which nothing changes."""
        R = M.UpdateMetadataRequest
        brokers = [
            R.UpdateMetadataBroker(
                id=each,
                rack=f"r{each}",
                endpoints=[R.UpdateMetadataEndpoint(port=port, host=host, listener="PLAINTEXT", security_protocol=0)],
            )
            for each, host, port in [
                *((each, node.host.address, node.port) for each, node in self.cluster.nodes.items()),
                (STAND_IN, self.stand_in.host.address, self.stand_in.port),
            ]
        ]
        request: dict[str, Any] = {
            "controller_id": 1,
            "controller_epoch": self.controller_epoch,
            "broker_epoch": self.broker_epochs[node_id],
            **changed,
        }
        return R(live_brokers=brokers, **request)

    def alter_partition(self, index: int = 0, isr: Sequence[int] = (STAND_IN, 1), **changed: Any) -> Message:
        R = M.AlterPartitionRequest
        partition: dict[str, Any] = {
            "partition_index": index,
            "leader_epoch": self.states[0]["leader_epoch"],
            "new_isr_with_epochs": [R.BrokerState(broker_id=each, broker_epoch=-1) for each in isr],
            "partition_epoch": self.versions[0],
        }
        request: dict[str, Any] = {"broker_id": STAND_IN, "broker_epoch": self.stand_in.broker_epoch}
        topic_id = changed.pop("topic_id", self.topic_id)
        for name, value in changed.items():
            (request if name in request else partition)[name] = value
        return R(topics=[R.TopicData(topic_id=topic_id, partitions=[R.PartitionData(**partition)])], **request)

    def fetch(self, partition: int, replica_id: int = STAND_IN, **changed: Any) -> Message:
        R = M.FetchRequest
        asked: dict[str, Any] = {
            "partition": partition, "fetch_offset": 0, "partition_max_bytes": 1000, "last_fetched_epoch": -1,
            "current_leader_epoch": -1, "log_start_offset": -1, **changed,
        }  # fmt: skip
        topic = R.FetchTopic(topic=TOPIC, partitions=[R.FetchPartition(**asked)])
        return R(replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=10_000, topics=[topic])

    def epoch_end(self, partition: int, current: int, epoch: int, replica_id: int = STAND_IN) -> Message:
        R = M.OffsetForLeaderEpochRequest
        asked = R.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        return R(replica_id=replica_id, topics=[R.OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])])


def without_configs(answer: Tree) -> Tree:
    """Return a tree without a topic's settings, which other tests compare."""
    if not isinstance(answer, dict):
        return answer
    return {name: without_configs(value) for name, value in answer.items() if name != "configs"}


def from_base64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


# --- what a controller asks -----------------------------------------------------------------------------


@case
def leader_and_isr_of_an_old_controller(t: Talk) -> None:
    t.ask(t.leader_and_isr(old_controller=0))


@case
def leader_and_isr_for_an_earlier_life_of_the_broker(t: Talk) -> None:
    t.ask(t.leader_and_isr(broker_epoch=t.broker_epochs[2] - 1))


@case
def leader_and_isr_for_a_later_life_of_the_broker(t: Talk) -> None:
    t.ask(t.leader_and_isr(broker_epoch=t.broker_epochs[2] + 1000))


@case
def leader_and_isr_without_the_broker_among_the_replicas(t: Talk) -> None:
    t.ask(t.leader_and_isr(topic="elsewhere", topic_id=bytes(range(1, 17)), replicas=[1, 3], isr=[1], leader=1))


@case
def leader_and_isr_of_a_topic_that_zookeeper_does_not_have(t: Talk) -> None:
    t.ask(t.leader_and_isr())


@case
def leader_and_isr_with_the_same_or_an_older_leader_epoch(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=3))
    t.ask(t.leader_and_isr(leader_epoch=2))


@case
def leader_and_isr_with_another_topic_id(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=4, topic_id=bytes(range(2, 18))))


@case
def leader_and_isr_with_an_unknown_leader(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=5, leader=77, replicas=[77, 2], isr=[77]))


@case
def leader_and_isr_of_many_versions(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=6), version=5)
    t.ask(t.leader_and_isr(leader_epoch=7), version=6)


@case
def leader_and_isr_without_a_leader(t: Talk) -> None:
    t.ask(t.leader_and_isr(leader_epoch=8, leader=-1))


@case
def stop_replica_of_an_old_controller(t: Talk) -> None:
    t.ask(t.stop_replica(9, False, controller_epoch=0))


@case
def stop_replica_for_an_earlier_life_of_the_broker(t: Talk) -> None:
    t.ask(t.stop_replica(9, False, broker_epoch=t.broker_epochs[2] - 1))


@case
def stop_replica_with_an_older_leader_epoch(t: Talk) -> None:
    t.ask(t.stop_replica(7, True))


@case
def stop_replica_of_an_unknown_partition(t: Talk) -> None:
    t.ask(t.stop_replica(1, False, topic="nowhere"))
    t.ask(t.stop_replica(-2, True, topic="nowhere"))


@case
def stop_replica_with_the_same_leader_epoch_and_again(t: Talk) -> None:
    t.ask(t.stop_replica(8, False))
    t.ask(t.stop_replica(8, True))
    t.ask(t.stop_replica(8, True))


@case
def update_metadata_of_an_old_controller(t: Talk) -> None:
    t.ask(t.update_metadata(controller_epoch=0))


@case
def update_metadata_for_another_life_of_the_broker(t: Talk) -> None:
    t.ask(t.update_metadata(broker_epoch=t.broker_epochs[2] - 1))
    t.ask(t.update_metadata(broker_epoch=t.broker_epochs[2] + 1000))


@case
def update_metadata_that_changes_nothing(t: Talk) -> None:
    t.ask(t.update_metadata())
    t.ask(t.update_metadata(), version=7)


# --- what a controller is asked -------------------------------------------------------------------------


@case
def controlled_shutdown_elsewhere_and_of_nobody(t: Talk) -> None:
    R = M.ControlledShutdownRequest
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=2)
    t.ask(R(broker_id=77, broker_epoch=-1), node_id=1)
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch - 1), node_id=1)


@case
def alter_partition_elsewhere(t: Talk) -> None:
    t.ask(t.alter_partition(), node_id=2)


@case
def alter_partition_of_another_life_or_broker(t: Talk) -> None:
    t.ask(t.alter_partition(broker_epoch=t.stand_in.broker_epoch - 1), node_id=1)
    t.ask(t.alter_partition(broker_epoch=t.stand_in.broker_epoch + 1000), node_id=1)
    t.ask(t.alter_partition(broker_id=77), node_id=1)


@case
def alter_partition_of_what_is_not_there(t: Talk) -> None:
    t.ask(t.alter_partition(topic_id=GHOST_ID), node_id=1)
    t.ask(t.alter_partition(index=9), node_id=1)


@case
def alter_partition_of_other_epochs(t: Talk) -> None:
    for name in ("leader_epoch", "partition_epoch"):
        now = t.states[0]["leader_epoch"] if name == "leader_epoch" else t.versions[0]
        t.ask(t.alter_partition(**{name: now - 1}), node_id=1)
        t.ask(t.alter_partition(**{name: now + 1}), node_id=1)


@case
def alter_partition_with_replicas_that_cannot_be_in_sync(t: Talk) -> None:
    t.ask(t.alter_partition(isr=[STAND_IN, 1, 2]), node_id=1)
    t.ask(t.alter_partition(isr=[STAND_IN, 77]), node_id=1)
    t.ask(t.alter_partition(isr=[]), node_id=1)


@case
def alter_partition_of_one_that_another_broker_leads(t: Talk) -> None:
    t.ask(
        t.alter_partition(index=1, leader_epoch=t.states[1]["leader_epoch"], partition_epoch=t.versions[1]), node_id=1
    )


@case
def alter_partition_that_changes_nothing_and_is_asked_twice(t: Talk) -> None:
    now = t.stand_in.zookeeper.get(f"/brokers/topics/{TOPIC}/partitions/0/state")
    version = now[1].version
    t.ask(t.alter_partition(isr=json.loads(now[0])["isr"], partition_epoch=version), node_id=1)
    t.ask(t.alter_partition(isr=[STAND_IN], partition_epoch=version), node_id=1)
    t.ask(t.alter_partition(isr=[STAND_IN], partition_epoch=version), node_id=1)


@case
def alter_partition_in_older_versions(t: Talk) -> None:
    now = t.stand_in.zookeeper.get(f"/brokers/topics/{TOPIC}/partitions/0/state")
    R = M.AlterPartitionRequest
    data = R.PartitionData(
        partition_index=0, leader_epoch=t.states[0]["leader_epoch"], new_isr=[STAND_IN], partition_epoch=now[1].version
    )
    topic = R.TopicData(topic_name=TOPIC, topic_id=t.topic_id, partitions=[data])
    for version in (0, 1, 2):
        t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch, topics=[topic]), node_id=1, version=version)


@case
def allocate_producer_ids_elsewhere_and_of_another_life(t: Talk) -> None:
    R = M.AllocateProducerIdsRequest
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=2)
    t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch - 1), node_id=1)
    t.ask(R(broker_id=77, broker_epoch=t.stand_in.broker_epoch), node_id=1)


@case
def allocate_producer_ids(t: Talk) -> None:
    answer = t.ask(M.AllocateProducerIdsRequest(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=1)
    t.answers[-1]["producer_id_start"] = answer.producer_id_start % 1000


# --- what only a controller does for clients ------------------------------------------------------------


@case
def topics_are_made_grown_and_deleted_by_the_controller_only(t: Talk) -> None:
    C = M.CreateTopicsRequest
    t.ask(C(topics=[C.CreatableTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=5000))
    P = M.CreatePartitionsRequest
    t.ask(P(topics=[P.CreatePartitionsTopic(name=TOPIC, count=9, assignments=None)], timeout_ms=5000))
    D = M.DeleteTopicsRequest
    t.ask(D(topics=[D.DeleteTopicState(name=TOPIC)], timeout_ms=5000))


def ask_for_topic(t: Talk, name: str, replicas: list[list[int]], *, validate_only: bool = False) -> None:
    C = M.CreateTopicsRequest
    made = [C.CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(replicas)]
    topic = C.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=made)
    t.ask(C(topics=[topic], timeout_ms=5000, validate_only=validate_only), node_id=1)


@case
def topics_with_repeated_brokers_or_uneven_assignments(t: Talk) -> None:
    ask_for_topic(t, "twice", [[1, 1]])
    ask_for_topic(t, "uneven", [[1], [1, 2]])


@case
def topics_with_unknown_brokers_or_without_replicas(t: Talk) -> None:
    ask_for_topic(t, "unknown", [[1, 77]], validate_only=True)  # Kafka would make both
    ask_for_topic(t, "none", [[]], validate_only=True)


@case
def topics_with_more_replicas_than_brokers(t: Talk) -> None:
    C = M.CreateTopicsRequest
    t.ask(C(topics=[C.CreatableTopic(name="many", num_partitions=1, replication_factor=9)], timeout_ms=5000), node_id=1)


@case
def partitions_with_assignments_that_cannot_be(t: Talk) -> None:
    R = M.CreatePartitionsRequest
    for replicas in ([1, 77], [1, 1], [], [1]):
        made = [R.CreatePartitionsAssignment(broker_ids=replicas)]
        topic = R.CreatePartitionsTopic(name=TOPIC, count=4, assignments=made)
        t.ask(R(topics=[topic], timeout_ms=5000), node_id=1)


@case
def leaders_are_elected_by_the_controller_only(t: Talk) -> None:
    R = M.ElectLeadersRequest
    asked = R(election_type=0, topic_partitions=[R.TopicPartitions(topic=TOPIC, partitions=[0])], timeout_ms=5000)
    t.ask(asked, node_id=2)
    t.ask(asked, node_id=1)
    other = [R.TopicPartitions(topic=TOPIC, partitions=[9]), R.TopicPartitions(topic="nowhere", partitions=[0])]
    t.ask(R(election_type=0, topic_partitions=other, timeout_ms=5000), node_id=1)
    t.ask(
        R(election_type=1, topic_partitions=[R.TopicPartitions(topic=TOPIC, partitions=[1])], timeout_ms=5000),
        node_id=1,
    )


@case
def reassignments_that_cannot_be(t: Talk) -> None:
    R = M.AlterPartitionReassignmentsRequest

    def moved(replicas: list[int] | None, topic: str = TOPIC, partition: int = 2, node_id: int = 1) -> None:
        one = R.ReassignablePartition(partition_index=partition, replicas=replicas)
        t.ask(R(timeout_ms=5000, topics=[R.ReassignableTopic(name=topic, partitions=[one])]), node_id=node_id)

    moved([1, 2], node_id=2)
    moved([1, 77])
    moved([1, 1])
    moved([])
    moved([-1])
    moved(None)
    moved([1], topic="nowhere")
    moved([1], partition=9)


@case
def reassignments_are_listed_by_the_controller_only(t: Talk) -> None:
    R = M.ListPartitionReassignmentsRequest
    t.ask(R(timeout_ms=5000, topics=None), node_id=2)
    t.ask(R(timeout_ms=5000, topics=None), node_id=1)
    t.ask(
        R(timeout_ms=5000, topics=[R.ListPartitionReassignmentsTopics(name="nowhere", partition_indexes=[0])]),
        node_id=1,
    )


# --- what replicas ask ----------------------------------------------------------------------------------


@case
def fetches_of_a_broker_that_is_no_replica(t: Talk) -> None:
    t.ask(t.fetch(1, replica_id=77), node_id=1)
    t.ask(t.fetch(2, replica_id=STAND_IN), node_id=2)


@case
def fetches_of_a_replica_with_epochs(t: Talk) -> None:
    epoch = t.states[1]["leader_epoch"]
    t.ask(t.fetch(1, current_leader_epoch=epoch), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch + 1), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch, last_fetched_epoch=epoch + 5, fetch_offset=9), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch, fetch_offset=9), node_id=1)
    t.ask(t.fetch(1, current_leader_epoch=epoch, fetch_offset=9, last_fetched_epoch=epoch), node_id=1)


@case
def fetches_of_replicas_and_of_consumers_at_a_follower(t: Talk) -> None:
    t.ask(t.fetch(2, replica_id=STAND_IN), node_id=1)
    t.ask(t.fetch(2, replica_id=-1), node_id=1)
    t.ask(t.fetch(2, replica_id=-1), node_id=1, version=10)
    t.ask(t.fetch(0, replica_id=-1), node_id=2)


@case
def ends_of_epochs(t: Talk) -> None:
    epoch = t.states[1]["leader_epoch"]
    t.ask(t.epoch_end(1, epoch, epoch), node_id=1)
    t.ask(t.epoch_end(1, epoch + 1, epoch), node_id=1)
    t.ask(t.epoch_end(1, -1, epoch + 9), node_id=1)
    t.ask(t.epoch_end(1, -1, -1), node_id=1)
    t.ask(t.epoch_end(2, -1, 0), node_id=1)
    t.ask(t.epoch_end(2, -1, 0, replica_id=-1), node_id=1)
    t.ask(t.epoch_end(9, -1, 0), node_id=1)


@case
def offsets_that_replicas_ask_for(t: Talk) -> None:
    R = M.ListOffsetsRequest
    for partition, replica_id, epoch in (
        (1, STAND_IN, -1),
        (1, 77, -1),
        (1, STAND_IN, 9),
        (2, STAND_IN, -1),
        (2, -1, -1),
    ):
        for timestamp in (-1, -2):
            asked = R.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
            topic = R.ListOffsetsTopic(name=TOPIC, partitions=[asked])
            t.ask(R(replica_id=replica_id, topics=[topic]), node_id=1)


@case
def markers_of_partitions_that_are_led_elsewhere_or_not_there(t: Talk) -> None:
    R = M.WriteTxnMarkersRequest
    for topic, partition in ((TOPIC, 2), (TOPIC, 9), ("nowhere", 0)):
        marker = R.WritableTxnMarker(
            producer_id=5000,
            producer_epoch=0,
            transaction_result=False,
            topics=[R.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=0,
        )
        t.ask(R(markers=[marker]), node_id=1)


def ask_all(kinds: Sequence[str]) -> dict[str, list[Tree]]:
    """Return the answers of two brokers of these kinds to all cases, in order."""
    with Cluster(kinds[:1], SETTINGS) as cluster, cluster.entered():
        cluster.add(kinds[1])
        host = cluster.network.add_host("stand-in")
        with StandIn(STAND_IN, host, cluster.zookeeper.address) as stand_in:
            stand_in.register()
            stand_in.take()
            make_topic(cluster)
            stand_in.take()
            names = Names(0)
            found = {}
            for name, run in CASES.items():
                talk = Talk(cluster, stand_in, names)
                run(talk)
                found[name] = talk.answers
            return found


def make_topic(cluster: Cluster) -> None:
    """Make partitions that the stand-in leads, that broker 1 leads with it, and that it has nothing to do with."""
    R = M.CreateTopicsRequest
    assignment = [[STAND_IN, 1], [1, STAND_IN], [2, 1]]
    made = [R.CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(assignment)]
    topic = R.CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=made)
    node = cluster.nodes[1]
    deadline = time.monotonic() + TIMEOUT_S
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.CREATE_TOPICS, 7, R(topics=[topic], timeout_ms=30_000))
    assert answer.topics[0].error_code == 0, answer
    while f"/brokers/topics/{TOPIC}/partitions/2/state" not in cluster.tree():
        assert time.monotonic() < deadline, "the topic has no states"
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="kafka,kafka")
    for name, answers in ask_all(parser.parse_args().brokers.split(",")).items():
        print("\n".join([name, *(f"    {answer}" for answer in answers)]))


if __name__ == "__main__":
    main()
