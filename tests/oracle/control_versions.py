"""Requests between brokers in every version that is served: right ones, and what is answered to wrong ones."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from tests.kit.clients.wire import WireClient
from tests.kit.cluster.apis import BETWEEN_BROKERS
from tests.oracle.control_story import STAND_IN
from tests.oracle.control_talk import (
    GROUP,
    STOP_WITH_EPOCHS,
    TIMEOUT_S,
    TOPIC,
    TRANSACTION,
    WITH_TOPIC_IDS,
    State,
    Talk,
    case,
    is_told,
    served,
)

AT_THE_CONTROLLER = (
    ApiKey.CREATE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_TOPICS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
)
"""What clients ask, and only the controller does."""
OF_TRANSACTIONS = (ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN)
"""What brokers ask each other about transactions, and clients too."""
OF_REPLICAS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)
"""What replicas ask their leaders, and clients too."""
OF_CLIENTS = (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ALTER_REPLICA_LOG_DIRS)
"""What clients ask about brokers and replicas."""
RECOVERING = 1
MANY_TRANSACTIONS = 4
"""The first version of AddPartitionsToTxn that names several transactions."""
WITH_RECOVERY = 1
"""The first version of AlterPartition with leader recovery states."""
LIFE_IS_TOLD = {ApiKey.LEADER_AND_ISR: 2, ApiKey.STOP_REPLICA: 1, ApiKey.UPDATE_METADATA: 5}
"""The first versions with the broker epoch of the broker that is told."""


@case
def versions_that_are_served_between_brokers(t: Talk) -> None:
    t.ask(M.ApiVersionsRequest(client_software_name="a", client_software_version="1"), only="api_keys")
    asked = (*BETWEEN_BROKERS, *AT_THE_CONTROLLER, *OF_REPLICAS, ApiKey.ADD_PARTITIONS_TO_TXN, *OF_CLIENTS)
    t.answers[-1] = {api.label: t.answers[-1].get(str(int(api))) for api in asked}


@case
def leader_and_isr_in_every_version(t: Talk) -> None:
    for version in served(ApiKey.LEADER_AND_ISR):
        topic, topic_id = f"role-{version}", bytes([version, *range(100, 115)])

        def tell(version: int = version, topic: str = topic, topic_id: bytes = topic_id, **changed: Any) -> None:
            t.ask(t.leader_and_isr(topic=topic, topic_id=topic_id, version=version, **changed), version=version)

        tell(topic=f"elsewhere-{version}", replicas=[1, STAND_IN], isr=[1], leader=1)
        tell(old_controller=0)
        if version >= LIFE_IS_TOLD[ApiKey.LEADER_AND_ISR]:
            tell(broker_epoch=t.broker_epochs[2] - 1)
        tell()
        t.ask(t.end(topic))
        tell()
        tell(leader_epoch=4, leader=1, replicas=[1, 2], isr=[1, 2])
        t.ask(t.end(topic))
        if version >= WITH_TOPIC_IDS:
            tell(leader_epoch=5, topic_id=bytes(range(3, 19)))
        tell(leader_epoch=6, leader=-1)


@case
def stop_replica_in_every_version(t: Talk) -> None:
    for version in served(ApiKey.STOP_REPLICA):
        topic = f"stopped-{version}"

        def stop(epoch: int, deletes: bool, version: int = version, topic: str = topic, **changed: Any) -> None:
            t.ask(t.stop_replica(epoch, deletes, topic, version, **changed), version=version)

        t.ask(t.leader_and_isr(topic=topic, topic_id=bytes([version, *range(50, 65)])))
        stop(3, True, controller_epoch=0)
        if version >= LIFE_IS_TOLD[ApiKey.STOP_REPLICA]:
            stop(3, True, broker_epoch=t.broker_epochs[2] - 1)
        stop(2, True, topic="nowhere")
        if version >= STOP_WITH_EPOCHS:
            stop(2, True)
        stop(3, False)
        t.ask(t.end(topic))
        stop(3, True)
        t.ask(t.end(topic))
        stop(-2, True)


@case
def update_metadata_in_every_version(t: Talk) -> None:
    for version in served(ApiKey.UPDATE_METADATA):
        at = t.fresh([2, STAND_IN])  # a topic that is not in ZooKeeper would be forgotten
        t.await_that("metadata of a topic", lambda topic=at.topic: is_told(t, topic))

        def tell(version: int = version, topic: str = at.topic, topic_id: bytes = at.topic_id, **changed: Any) -> None:
            t.ask(t.update_metadata(topic=topic, topic_id=topic_id, version=version, **changed), version=version)
            t.ask(t.metadata(topic), only="topics")
            t.answers[-1][topic].pop("topic_id")  # Kafka forgets it where a version does not tell it

        tell(controller_epoch=0)
        if version >= LIFE_IS_TOLD[ApiKey.UPDATE_METADATA]:
            tell(broker_epoch=t.broker_epochs[2] - 1)
        tell()
        tell(leader=-1)
        tell(leader=-2)
    t.ask(t.update_metadata())


@case
def controlled_shutdowns_that_are_refused_in_every_version(t: Talk) -> None:
    R = M.ControlledShutdownRequest
    for version in served(ApiKey.CONTROLLED_SHUTDOWN):
        t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch), node_id=2, version=version)
        t.ask(R(broker_id=77, broker_epoch=-1), node_id=1, version=version)
        if version >= 2:
            t.ask(R(broker_id=STAND_IN, broker_epoch=t.stand_in.broker_epoch - 1), node_id=1, version=version)


@case
def alter_partition_in_every_version(t: Talk) -> None:
    for version in served(ApiKey.ALTER_PARTITION):
        t.ask(t.alter_partition(t.fresh(), version=version), node_id=2, version=version)
        first = t.fresh()

        def ask(at: State, *isr: int, version: int = version, **changed: Any) -> None:
            t.ask(t.alter_partition(at, isr, version, **changed), node_id=1, version=version)

        ask(first, STAND_IN, 1)
        ask(first, STAND_IN, broker_epoch=t.stand_in.broker_epoch - 1)
        ask(first, STAND_IN, leader_epoch=first.leader_epoch + 1)
        ask(first, STAND_IN, partition_epoch=first.partition_epoch + 1)
        if version >= WITH_RECOVERY:
            ask(first, STAND_IN, leader_recovery_state=RECOVERING)
            ask(first, STAND_IN, 1, leader_recovery_state=RECOVERING)
        second = t.fresh()
        ask(second, STAND_IN)
        ask(second, STAND_IN)  # the answer was lost (KAFKA-14144)
        ask(second, STAND_IN, 1)
        ask(t.state(second.topic), STAND_IN, 1)
        ask(second._replace(topic="nowhere", topic_id=bytes(range(4, 20))), STAND_IN)


@case
def what_only_the_controller_does_is_asked_elsewhere_in_every_version(t: Talk) -> None:
    for api in AT_THE_CONTROLLER:
        for version in served(api):
            t.ask(at_the_controller(api, version), node_id=2, version=version)


def at_the_controller(api: ApiKey, version: int) -> Message:
    """Return a request that the controller would carry out."""
    if api is ApiKey.CREATE_TOPICS:
        C = M.CreateTopicsRequest
        return C(topics=[C.CreatableTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=5000)
    if api is ApiKey.CREATE_PARTITIONS:
        P = M.CreatePartitionsRequest
        return P(topics=[P.CreatePartitionsTopic(name=TOPIC, count=9, assignments=None)], timeout_ms=5000)
    if api is ApiKey.DELETE_TOPICS:
        D = M.DeleteTopicsRequest
        named: dict[str, Any] = (
            {"topics": [D.DeleteTopicState(name=TOPIC)]} if version >= 6 else {"topic_names": [TOPIC]}
        )
        return D(timeout_ms=5000, **named)
    if api is ApiKey.ELECT_LEADERS:
        E = M.ElectLeadersRequest
        return E(topic_partitions=[E.TopicPartitions(topic=TOPIC, partitions=[0])], timeout_ms=5000)
    if api is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        A = M.AlterPartitionReassignmentsRequest
        moved = A.ReassignablePartition(partition_index=2, replicas=[1, 2])
        return A(timeout_ms=5000, topics=[A.ReassignableTopic(name=TOPIC, partitions=[moved])])
    return M.ListPartitionReassignmentsRequest(timeout_ms=5000, topics=None)


@case
def fetches_of_a_replica_in_every_version(t: Talk) -> None:
    led = t.state(index=1)
    for version in served(ApiKey.FETCH):

        def fetch(partition: int, node_id: int = 1, version: int = version, **changed: Any) -> None:
            t.ask(t.fetch(partition, version=version, **changed), node_id=node_id, version=version)

        fetch(1)
        fetch(1, fetch_offset=9)
        fetch(1, replica_id=77)
        fetch(2)
        fetch(2, node_id=2)
        fetch(9)
        if version >= 9:
            fetch(1, current_leader_epoch=led.leader_epoch)
            fetch(1, current_leader_epoch=led.leader_epoch + 1)
        if version >= 13:
            fetch(1, topic_id=bytes(range(5, 21)))
        if version >= 15:
            for epoch in (-1, t.stand_in.broker_epoch):
                fetch(1, current_leader_epoch=led.leader_epoch, replica_epoch=epoch)


@case
def fetches_of_an_earlier_life_of_a_replica(t: Talk) -> None:
    for epoch in (t.stand_in.broker_epoch, t.stand_in.broker_epoch - 1, t.stand_in.broker_epoch):
        t.ask(t.fetch(1, version=17, replica_epoch=epoch), node_id=1, version=17)


@case
def what_replicas_ask_for_offsets_in_every_version(t: Talk) -> None:
    for version in served(ApiKey.LIST_OFFSETS):
        for partition, replica_id in ((1, STAND_IN), (1, 77), (2, STAND_IN), (2, -1), (9, STAND_IN)):
            t.ask(t.end(TOPIC, partition, replica_id), node_id=1, version=version)
    for version in served(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        for partition, replica_id in ((1, STAND_IN), (1, 77), (2, STAND_IN), (2, -1), (9, STAND_IN)):
            t.ask(t.epoch_end(partition, -1, 0, replica_id), node_id=1, version=version)


@case
def transactions_that_other_brokers_ask_about(t: Talk) -> None:
    """KIP-890: a leader asks the coordinator whether a transaction has its partition, for several producers at once.
    Before that, clients add partitions to one transaction a request."""
    here, nobody, *_ = coordinated_by(t, 1)
    elsewhere, *_ = coordinated_by(t, 2)
    started = initialized(t, here)
    R = M.AddPartitionsToTxnRequest

    def one(
        *partitions: int, who: str = here, topic: str = TOPIC, verifies: bool = True, later: int = 0, other: int = 0
    ) -> R.AddPartitionsToTxnTransaction:
        return R.AddPartitionsToTxnTransaction(
            transactional_id=who,
            producer_id=started.producer_id + other,
            producer_epoch=started.producer_epoch + later,
            verify_only=verifies,
            topics=[R.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )

    for version in range(MANY_TRANSACTIONS):

        def add(who: str, *partitions: int, node_id: int = 1, later: int = 0, version: int = version) -> None:
            asked = R(
                v3_and_below_transactional_id=who,
                v3_and_below_producer_id=started.producer_id,
                v3_and_below_producer_epoch=started.producer_epoch + later,
                v3_and_below_topics=[R.AddPartitionsToTxnTopic(name=TOPIC, partitions=list(partitions))],
            )
            t.ask(asked, node_id=node_id, version=version)

        add(elsewhere, 0)
        add(nobody, 0)
        add(here, 0, node_id=2)
        add(here, 0, later=1)
        add(here, 2, 9)
    for version in range(MANY_TRANSACTIONS, served(ApiKey.ADD_PARTITIONS_TO_TXN).stop):

        def ask(*asked: R.AddPartitionsToTxnTransaction, node_id: int = 1, version: int = version) -> None:
            t.ask(R(transactions=list(asked)), node_id=node_id, version=version)

        ask(one(0))
        ask(one(version - 4, verifies=False))
        ask(one(0, 1, 2))
        ask(one(0, later=1), one(0, who=elsewhere), one(0, who=nobody))
        ask(one(0, later=-1))
        ask(one(0, other=1000))
        ask(one(9), one(0, who=elsewhere, topic="nowhere"))
        ask(one(0, verifies=False, later=1), one(2, who=elsewhere, verifies=False))
        ask(one(0), node_id=2)
    for name, transactional_id in (("here", here), ("nobody", nobody), ("elsewhere", elsewhere)):
        t.call_it(name, transactional_id)


def initialized(t: Talk, transactional_id: str) -> M.InitProducerIdResponse:
    """Return the producer that this transactional id gets from broker 1, which may have to ask for ids first."""
    node = t.cluster.nodes[1]
    asked = M.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answers: list[M.InitProducerIdResponse] = []

        def is_there() -> bool:
            answers.append(client.call(ApiKey.INIT_PRODUCER_ID, 5, asked))
            return answers[-1].error_code == ErrorCode.NONE

        t.await_that("a producer", is_there)
        return answers[-1]


def coordinated_by(t: Talk, node_id: int, kind: int = TRANSACTION) -> list[str]:
    """Return transactional ids, or groups, whose coordinator is this broker."""
    node = t.cluster.nodes[1]
    ids = [f"{'group' if kind == GROUP else 'writer'}-{number}" for number in range(20)]
    asked = M.FindCoordinatorRequest(key_type=kind, coordinator_keys=ids)
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.FIND_COORDINATOR, 6, asked)
    return [each.key for each in answer.coordinators if each.node_id == node_id]


@case
def markers_in_every_version(t: Talk) -> None:
    R = M.WriteTxnMarkersRequest
    for version in (0, 1):
        for topic, partition in ((t.fresh([1]).topic, 0), (TOPIC, 2), ("nowhere", 0)):
            marker = R.WritableTxnMarker(
                producer_id=6000 + version,
                producer_epoch=0,
                transaction_result=True,
                topics=[R.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
                coordinator_epoch=0,
            )
            t.ask(R(markers=[marker]), node_id=1, version=version)
