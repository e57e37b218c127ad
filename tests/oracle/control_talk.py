"""Requests between brokers, and how the brokers of a small cluster answer them.

Two real brokers of one kind, 1 (the controller) and 2, and a `StandIn`, 3, in whose name the requests are made. Each
`case` asks one thing; `ask_all` returns for each case the answers, as trees that can be compared.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.messages import Message
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.cluster.cluster import Cluster
from tests.kit.cluster.stand_in import StandIn
from tests.oracle.answers import Names, Tree, tree_of
from tests.oracle.control_story import SETTINGS, STAND_IN
from tests.oracle.scenario import KEYS, codes_in

TOPIC, GHOST = "led", "ghost"
GROUP, TRANSACTION = 0, 1
"""Whose coordinator is asked for."""
GHOST_ID = bytes(range(16))
TIMEOUT_S = 30.0
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
    ApiKey.ADD_PARTITIONS_TO_TXN: 5,
    ApiKey.API_VERSIONS: 4,
    ApiKey.METADATA: 12,
    ApiKey.FIND_COORDINATOR: 6,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.PRODUCE: 11,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
}
"""The versions that are used where a case says nothing else: those of a 3.9 at inter.broker.protocol.version 3.9.
Fetch 12 goes by names."""
TRANSACTIONS: dict[str, object] = {"transaction.state.log.num.partitions": 2, "transaction.state.log.min.isr": 1}
RACKS: dict[str, object] = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
CASES: dict[str, Callable[[Talk], None]] = {}
ASKED: dict[ApiKey, set[int]] = {}
"""The versions that were asked in this process."""

WITH_TOPICS = {ApiKey.LEADER_AND_ISR: 2, ApiKey.STOP_REPLICA: 1, ApiKey.UPDATE_METADATA: 5}
"""The first versions that name each topic once. Versions before have a flat list of partitions."""
STOP_WITH_EPOCHS = 3
"""The first version of StopReplica in which each partition has a leader epoch and says whether it is deleted."""
WITH_TOPIC_IDS = 5
"""The first version of LeaderAndIsr with topic ids."""
ISR_WITH_EPOCHS = 3
"""The first version of AlterPartition that tells broker epochs."""
FETCH_WITH_RACKS, FETCH_BY_ID, FETCH_WITH_STATE = 11, 13, 15
"""The first versions of Fetch in which a consumer tells its rack, that name topics by their ids, and in which a
follower tells its broker epoch."""


def case(run: Callable[[Talk], None]) -> Callable[[Talk], None]:
    CASES[run.__name__] = run
    return run


class State(NamedTuple):
    """A partition as it stands in ZooKeeper."""

    topic: str
    topic_id: bytes
    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: list[int]


class Talk:
    """Asks for one case, and keeps what is answered."""

    def __init__(self, cluster: Cluster, stand_in: StandIn, names: Names):
        self.cluster, self.stand_in, self.names = cluster, stand_in, names
        self.answers: list[Tree] = []
        self.given: dict[ApiKey, set[str]] = {}
        """The error codes of the answers, by API."""
        self.controller_epoch = int(cluster.tree()["/controller_epoch"].data)
        self.broker_epochs = {
            node_id: stand_in.zookeeper.exists(f"/brokers/ids/{node_id}").czxid for node_id in cluster.nodes
        }
        self.topic_id = self.state().topic_id

    def ask(self, message: Message, node_id: int = 2, version: int | None = None, only: str | None = None) -> Any:
        """Ask a broker, and keep the answer, or one field of it; a connection that is closed without one is an answer
        too."""
        api = KEYS[type(message).__name__]
        version = VERSIONS[api] if version is None else version
        ASKED.setdefault(api, set()).add(version)
        node = self.cluster.nodes[node_id]
        with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
            try:
                answer = client.call(api, version, message)
            except ConnectionClosed:
                self.answers.append("closed")
                return None
        tree = comparable(tree_of(answer, version, self.names))
        self.given.setdefault(api, set()).update(codes_in(tree))
        self.answers.append(tree if only is None else tree[only])
        return answer

    # --- the cluster --------------------------------------------------------------------------------------
    def state(self, topic: str = TOPIC, index: int = 0) -> State:
        """Return a partition's state as it is now."""
        zookeeper = self.stand_in.zookeeper
        data, node = zookeeper.get(f"/brokers/topics/{topic}/partitions/{index}/state")
        state = json.loads(data)
        topic_id = json.loads(zookeeper.get(f"/brokers/topics/{topic}")[0])["topic_id"]
        return State(
            topic, from_base64(topic_id), index, state["leader"], state["leader_epoch"], node.version, state["isr"]
        )

    def assignment(self, topic: str) -> dict[str, Any]:
        """Return what ZooKeeper has of a topic's replicas, those that come and go included."""
        node = json.loads(self.stand_in.zookeeper.get(f"/brokers/topics/{topic}")[0])
        return {name: node.get(name) for name in ("partitions", "adding_replicas", "removing_replicas")}

    def fresh(self, replicas: Sequence[int] = (STAND_IN, 1)) -> State:
        """Make a topic that no other case knows, with one partition, whose leader is the first of its replicas."""
        names = [name for name in self.stand_in.zookeeper.get_children("/brokers/topics") if name.startswith("fresh")]
        topic = f"fresh-{len(names)}"
        make_topic(self.cluster, topic, [list(replicas)])
        return self.state(topic)

    def await_that(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def call_it(self, name: str, other: str) -> None:
        """Put one name in the place of another one in all answers: which groups and transactional ids a case asks for
        depends on where their coordinators are."""
        self.answers = json.loads(json.dumps(self.answers).replace(f'"{other}"', f'"{name}"'))

    # --- requests that are right but for what a case changes ----------------------------------------------
    def leader_and_isr(
        self, node_id: int = 2, topic_id: bytes = GHOST_ID, topic: str = GHOST, version: int = 7, **changed: Any
    ) -> Message:
        """`controller_epoch` is that of the partition, `old_controller` that of the request."""
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
        state = R.LeaderAndIsrPartitionState(topic_name=topic, **partition)
        if version < WITH_TOPICS[ApiKey.LEADER_AND_ISR]:
            return R(ungrouped_partition_states=[state], live_leaders=live, **request)
        of_topic = R.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state])
        return R(topic_states=[of_topic], live_leaders=live, **request)

    def stop_replica(
        self, leader_epoch: int, delete: bool, topic: str = GHOST, version: int = 4, **changed: Any
    ) -> Message:
        R = M.StopReplicaRequest
        request: dict[str, Any] = {
            "controller_id": 1,
            "controller_epoch": self.controller_epoch,
            "broker_epoch": self.broker_epochs[2],
            **changed,
        }
        if version >= STOP_WITH_EPOCHS:
            one = R.StopReplicaPartitionState(partition_index=0, leader_epoch=leader_epoch, delete_partition=delete)
            return R(topic_states=[R.StopReplicaTopicState(topic_name=topic, partition_states=[one])], **request)
        request["delete_partitions"] = delete
        if version >= WITH_TOPICS[ApiKey.STOP_REPLICA]:
            return R(topics=[R.StopReplicaTopicV1(name=topic, partition_indexes=[0])], **request)
        return R(ungrouped_partitions=[R.StopReplicaPartitionV0(topic_name=topic, partition_index=0)], **request)

    def update_metadata(
        self,
        node_id: int = 2,
        topic: str = "",
        leader: int = 2,
        version: int = 8,
        topic_id: bytes = GHOST_ID,
        **changed: Any,
    ) -> Message:
        """Metadata in which nothing changes but, where one is given, a topic with one partition."""
        R = M.UpdateMetadataRequest
        brokers = [
            R.UpdateMetadataBroker(
                id=each,
                v0_host=host,
                v0_port=port,
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
        if topic:
            state = R.UpdateMetadataPartitionState(
                topic_name=topic, partition_index=0, controller_epoch=self.controller_epoch, leader=leader,
                leader_epoch=5, isr=[2], zk_version=7, replicas=[2, STAND_IN], offline_replicas=[STAND_IN],
            )  # fmt: skip
            if version < WITH_TOPICS[ApiKey.UPDATE_METADATA]:
                request["ungrouped_partition_states"] = [state]
            else:
                of_topic = R.UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state])
                request["topic_states"] = [of_topic]
        return R(live_brokers=brokers, **request)

    def alter_partition(
        self, at: State, isr: Sequence[int] = (STAND_IN, 1), version: int = 3, **changed: Any
    ) -> Message:
        R = M.AlterPartitionRequest
        partition: dict[str, Any] = {
            "partition_index": at.index,
            "leader_epoch": at.leader_epoch,
            "partition_epoch": at.partition_epoch,
        }
        if version < ISR_WITH_EPOCHS:
            partition["new_isr"] = list(isr)
        else:
            partition["new_isr_with_epochs"] = [R.BrokerState(broker_id=each, broker_epoch=-1) for each in isr]
        request: dict[str, Any] = {"broker_id": STAND_IN, "broker_epoch": self.stand_in.broker_epoch}
        for name, value in changed.items():
            (request if name in request else partition)[name] = value
        topic = R.TopicData(topic_name=at.topic, topic_id=at.topic_id, partitions=[R.PartitionData(**partition)])
        return R(topics=[topic], **request)

    def fetch(
        self, partition: int, replica_id: int = STAND_IN, version: int = 12, replica_epoch: int = -1, **changed: Any
    ) -> Message:
        """`topic`, `topic_id` and `rack_id` are of the request, what else is changed of its partition."""
        R = M.FetchRequest
        topic_id, name = changed.pop("topic_id", self.topic_id), changed.pop("topic", TOPIC)
        asked: dict[str, Any] = {
            "partition": partition, "fetch_offset": 0, "partition_max_bytes": 1000, "last_fetched_epoch": -1,
            "current_leader_epoch": -1, "log_start_offset": -1, **changed,
        }  # fmt: skip
        rack = {"rack_id": asked.pop("rack_id")} if "rack_id" in asked else {}
        topic = R.FetchTopic(topic=name, topic_id=topic_id, partitions=[R.FetchPartition(**asked)])
        request: dict[str, Any] = {"replica_id": replica_id, **rack}
        if version >= FETCH_WITH_STATE:
            state = R.ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
            request = {"replica_state": state, **rack}
        return R(max_wait_ms=0, min_bytes=0, max_bytes=10_000, topics=[topic], **request)

    def epoch_end(
        self, partition: int, current: int, epoch: int, replica_id: int = STAND_IN, topic: str = TOPIC
    ) -> Message:
        R = M.OffsetForLeaderEpochRequest
        asked = R.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        return R(replica_id=replica_id, topics=[R.OffsetForLeaderTopic(topic=topic, partitions=[asked])])

    def end(self, topic: str, partition: int = 0, replica_id: int = -1) -> Message:
        """Ask for a partition's last offset: only its leader tells it."""
        R = M.ListOffsetsRequest
        asked = R.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        return R(replica_id=replica_id, topics=[R.ListOffsetsTopic(name=topic, partitions=[asked])])

    def metadata(self, topic: str) -> Message:
        R = M.MetadataRequest
        return R(topics=[R.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)


def comparable(answer: Tree) -> Tree:
    """Return a tree without a topic's settings, which other tests compare, and without ports."""
    if not isinstance(answer, dict):
        return answer
    return {name: comparable(value) for name, value in answer.items() if name not in ("configs", "port")}


def from_base64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def served(api: ApiKey) -> range:
    """Return the versions that kbroker serves."""
    return range(SERVED[api].min, SERVED[api].max + 1)


class Answered(NamedTuple):
    """The answers to each case, in order, and the error codes in all of them, by API."""

    cases: dict[str, list[Tree]]
    given: dict[ApiKey, set[str]]


def ask_all(kinds: Sequence[str]) -> Answered:
    """Return the answers of two brokers of these kinds to all cases."""
    with Cluster(kinds[:1], {**SETTINGS, **TRANSACTIONS, **RACKS}, directories=2) as cluster, cluster.entered():
        cluster.add(kinds[1])
        await_coordinators(cluster)
        host = cluster.network.add_host("stand-in")
        with StandIn(STAND_IN, host, cluster.zookeeper.address) as stand_in:
            stand_in.register()
            stand_in.take()
            # Partitions that the stand-in leads, that broker 1 leads with it, and that it has nothing to do with.
            make_topic(cluster, TOPIC, [[STAND_IN, 1], [1, STAND_IN], [2, 1]])
            stand_in.take()
            names = Names(0)
            found = Answered({}, {})
            for name, run in CASES.items():
                talk = Talk(cluster, stand_in, names)
                run(talk)
                found.cases[name] = talk.answers
                for api, codes in talk.given.items():
                    found.given.setdefault(api, set()).update(codes - {"NONE"})
            return found


def make_topic(cluster: Cluster, name: str, assignment: Sequence[list[int]]) -> None:
    R = M.CreateTopicsRequest
    made = [R.CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in enumerate(assignment)]
    topic = R.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=made)
    node = cluster.nodes[cluster.controller()]
    deadline = time.monotonic() + TIMEOUT_S
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.CREATE_TOPICS, 7, R(topics=[topic], timeout_ms=30_000))
    assert answer.topics[0].error_code == 0, answer
    while f"/brokers/topics/{name}/partitions/{len(assignment) - 1}/state" not in cluster.tree():
        assert time.monotonic() < deadline, f"{name} has no states"
        time.sleep(0.05)


def is_told(t: Talk, topic: str) -> bool:
    """Return whether broker 2 knows that it leads a topic."""
    node = t.cluster.nodes[2]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        known = client.call(ApiKey.METADATA, 12, t.metadata(topic)).topics[0]
        end = client.call(ApiKey.LIST_OFFSETS, 9, t.end(topic)).topics[0].partitions[0]
    # UpdateMetadata comes behind LeaderAndIsr.
    return not any(each.error_code for each in (known, *known.partitions, end))


def await_coordinators(cluster: Cluster) -> None:
    """Have the topics of groups and transactions made, before there is a stand-in that could lead their partitions."""
    deadline = time.monotonic() + TIMEOUT_S
    for node in cluster.nodes.values():
        with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
            for kind in (GROUP, TRANSACTION):
                asked = M.FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
                while client.call(ApiKey.FIND_COORDINATOR, 6, asked).coordinators[0].error_code != ErrorCode.NONE:
                    assert time.monotonic() < deadline, "there is no coordinator"
                    time.sleep(0.05)
