"""Targets of what a member reads of ZooKeeper and what other brokers ask the controller: anything may be there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from kbroker.cluster import topic_requests as T
from kbroker.cluster.controller_requests import (
    PREFERRED,
    UNCLEAN,
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ControlledShutdown,
    ElectLeaders,
    ListReassignments,
)
from kbroker.coordination import paths
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from tests.fuzz.program import Program
from tests.fuzz.target import Target
from tests.kit.parts.control_cluster import ControlCluster, ToldBroker

INT64 = range(-(2**63), 2**63)
LONGEST_TEXT = 32767

# --- nodes ------------------------------------------------------------------------------------------------------------

_T = TopicPartition("t", 0)
_ENDPOINT = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)
NODES: list[tuple[Callable[[str, bytes], Any], bytes]] = [
    (
        paths.decode_topic,
        paths.encode_topic(paths.TopicAssignment(UUID(int=7), {0: (1, 2), 1: (2,)}, {0: (2,)}, {0: (1,)})),
    ),
    (paths.decode_partition_state, paths.encode_partition_state(paths.PartitionRegistration(1, 5, (1, 2), 7, 1))),
    (paths.decode_broker, paths.encode_broker(paths.BrokerRegistration((_ENDPOINT,), "r", 5, "1.2"))),
    (paths.decode_broker, b'{"jmx_port":-1,"timestamp":"1233345666","host":"localhost","version":1,"port":9092}'),
    (paths.decode_controller, paths.encode_controller(3, 12)),
    (paths.decode_controller, b"7"),
    (paths.decode_controller_epoch, b"12"),
    (paths.decode_cluster_id, paths.encode_cluster_id("QAKdw32KQeevgsK7F9b98w")),
    (paths.decode_feature, b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'),
    (paths.decode_config, paths.encode_config({"retention.ms": "5"})),
    (paths.decode_config_change, b'{"version":1,"entity_type":"topics","entity_name":"t"}'),
    (paths.decode_config_change, paths.encode_config_change("users/u/clients/c")),
    (paths.decode_partitions, paths.encode_partitions([_T])),
    (paths.decode_reassignment, paths.encode_reassignment({_T: (1, 2)})),
    (paths.decode_log_dir_event, paths.encode_log_dir_event(4)),
    (paths.decode_producer_id_block, paths.encode_producer_id_block(paths.ProducerIdBlock(3, 0, 999))),
    (paths.decode_consumer_offset, b"17"),
]


def feed_nodes(data: bytes) -> None:
    """Byte 0: which node. Its data are StoreCorrupt, or mean what the protocol has room for."""
    if not data:
        return
    decode, _ = NODES[data[0] % len(NODES)]
    try:
        found = decode("/node", data[1:])
    except paths.StoreCorrupt:
        return
    assert_fits(found)


def assert_fits(found: Any) -> None:
    if isinstance(found, int):
        assert found in INT64, found
    elif isinstance(found, str):
        assert len(found.encode()) <= LONGEST_TEXT
    elif isinstance(found, dict):
        assert_fits(tuple(found.items()))
    elif isinstance(found, tuple | list):
        for each in found:
            assert_fits(each)


def node_seeds() -> Iterator[bytes]:
    for number, (_, data) in enumerate(NODES):
        yield bytes([number]) + data


# --- the controller ---------------------------------------------------------------------------------------------------

BROKERS = [1, 2, 3]
TOPICS = ["t", "u", "none", ""]
PLACES: list[Callable[[str], str]] = [
    paths.topic_path,
    paths.topic_config_path,
    paths.delete_topic_path,
    lambda topic: paths.partition_state_path(topic, 0),
    lambda topic: paths.broker_path(9),
    lambda topic: paths.REASSIGN_PARTITIONS,
    lambda topic: paths.PREFERRED_REPLICA_ELECTION,
    lambda topic: paths.FEATURE,
    lambda topic: paths.PRODUCER_ID_BLOCK,
    lambda topic: f"{paths.ISR_CHANGE_PREFIX}0000000001",
    lambda topic: f"{paths.LOG_DIR_EVENT_PREFIX}0000000001",
]


class _Stacks(logging.Handler):
    """Notes what the controller has not thought of: it logs that with a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(logging.Formatter().format(record))


class _Asker:
    """Requests to the controller, with numbers that are mostly right."""

    def __init__(self, program: Program, cluster: ControlCluster):
        self.program = program
        self.cluster = cluster
        self.requests: list[Callable[[], Any]] = [
            self.alter_partition,
            self.shutdown,
            self.producer_ids,
            self.reassign,
            self.elect,
            self.create,
            self.grow,
            lambda: T.DeleteTopics([self.program.pick(TOPICS)]),
            lambda: ListReassignments(None),
        ]

    def partition(self) -> TopicPartition:
        return TopicPartition(self.program.pick(TOPICS), self.program.number(0, 32))

    def broker(self) -> int:
        return self.program.number(self.program.pick(BROKERS), 32)

    def brokers(self) -> tuple[int, ...]:
        return tuple(self.broker() for _ in range(self.program.byte() % 4))

    def epoch_of(self, broker_id: int) -> int:
        member = self.cluster.members.get(broker_id)
        return self.program.number(-1 if member is None else member.told.epoch, 64)

    def alter_partition(self) -> Any:
        Request = M.AlterPartitionRequest
        leader, isr = self.broker(), self.brokers()
        version = self.program.byte() % 4
        one = Request.PartitionData(
            partition_index=self.program.number(0, 32),
            leader_epoch=self.program.number(0, 32),
            partition_epoch=self.program.number(0, 32),
        )
        if version >= 3:
            one.new_isr_with_epochs = [Request.BrokerState(broker_id=e, broker_epoch=self.epoch_of(e)) for e in isr]
        else:
            one.new_isr = list(isr)
        if version >= 1:
            one.leader_recovery_state = self.program.number(0, 8)
        topic = Request.TopicData(partitions=[one] * (1 + self.program.byte() % 2))
        if version >= 2:
            topic.topic_id = UUID(int=self.program.byte() % 3).bytes
        else:
            topic.topic_name = self.program.pick(TOPICS)
        request = Request(broker_id=leader, broker_epoch=self.epoch_of(leader), topics=[topic])
        return AlterPartition(Request.decode(request.encode(version), version), version)

    def shutdown(self) -> Any:
        broker = self.broker()
        return ControlledShutdown(M.ControlledShutdownRequest(broker_id=broker, broker_epoch=self.epoch_of(broker)))

    def producer_ids(self) -> Any:
        broker = self.broker()
        return AllocateProducerIds(M.AllocateProducerIdsRequest(broker_id=broker, broker_epoch=self.epoch_of(broker)))

    def reassign(self) -> Any:
        return AlterReassignments({self.partition(): self.brokers() if self.program.byte() % 4 else None})

    def elect(self) -> Any:
        return ElectLeaders(self.program.pick([PREFERRED, UNCLEAN]), (self.partition(), self.partition()))

    def create(self) -> Any:
        replicas = {each: self.assigned() for each in range(self.program.byte() % 3)}
        assignment = paths.TopicAssignment(UUID(int=2 + self.program.byte()), replicas, {}, {})
        return T.CreateTopics({self.program.pick(TOPICS[:3]): T.PlannedTopic(assignment, {})})

    def grow(self) -> Any:
        return T.GrowTopics({self.program.pick(TOPICS): {self.program.number(1, 31) & 0x7FFFFFFF: self.assigned()}})

    def assigned(self) -> tuple[int, ...]:
        """Return replicas as the broker that was asked has checked them: registered ones, each once."""
        chosen = {self.program.pick(BROKERS) for _ in range(1 + self.program.byte() % 3)}
        return tuple(sorted(chosen))


def feed_controller(data: bytes) -> None:
    """Requests of brokers, nodes of others and lost brokers: each is answered, and the controller goes on.

    It says what was wrong in lines. A stack in the log is something that nobody has thought of.
    """
    program = Program(data)
    stacks = _Stacks()
    log = logging.getLogger("kbroker.cluster.controller")
    log.addHandler(stacks)
    try:
        cluster = ControlCluster()
        for node_id in BROKERS:
            cluster.start(node_id)
        cluster.settle()
        cluster.create("t", (1, 2), (2, 3))
        asker = _Asker(program, cluster)
        written: set[str] = set()
        while not program.is_over:
            what = program.byte() % 16
            if what < 12:
                cluster.ask(program.pick(asker.requests)())
            elif what < 14:
                path = program.pick(PLACES)(program.pick(["t", "u", "bad name"]))
                cluster.tree.put(path, rubbish(program))
                written.add(path)
            elif what == 14:
                lie_once(program, cluster.members[program.pick(BROKERS)].told)
            elif len(cluster.live()) > 1:
                cluster.lose(cluster.live()[program.byte() % len(cluster.live())].node_id)
            cluster.settle()
        assert stacks.seen == [], stacks.seen[0]
        context = cluster.active.controller.context
        assert context is not None
        for partition, state in context.states.items():
            if (
                paths.partition_state_path(*partition) not in written
                and paths.topic_path(partition.topic) not in written
            ):
                assert {state.leader, *state.isr} <= {-1, *context.assignment(partition).replicas}, (partition, state)
        broker_id = cluster.active.node_id
        assignment = paths.TopicAssignment(UUID(int=999), {0: (broker_id,)}, {}, {})
        answer = cluster.ask(T.CreateTopics({"last": T.PlannedTopic(assignment, {})}))
        if broker_id in context.live:
            assert answer == {"last": 0}
            assert cluster.leader("last") == broker_id
        assert stacks.seen == [], stacks.seen[0]
    finally:
        log.removeHandler(stacks)


def lie_once(program: Program, broker: ToldBroker) -> None:
    """Let a broker refuse all deletions, or answer one request with partitions and errors of its own."""
    if program.byte() % 4 == 0:
        broker.refuses_deletion = True
        return

    def answer(request: M.Message) -> M.Message:
        del broker.answer  # type: ignore[method-assign]
        error, partition_id = program.number(0, 16), program.number(0, 32)
        of_partition = program.number(56, 16)
        if isinstance(request, M.LeaderAndIsrRequest):
            L = M.LeaderAndIsrResponse
            part = L.LeaderAndIsrPartitionError(partition_index=partition_id, error_code=of_partition)
            topic = L.LeaderAndIsrTopicError(topic_id=UUID(int=program.byte() % 3).bytes, partition_errors=[part] * 2)
            return L(error_code=error, topics=[topic])
        if isinstance(request, M.StopReplicaRequest):
            S = M.StopReplicaResponse
            stopped = S.StopReplicaPartitionError(
                topic_name=program.pick(TOPICS), partition_index=partition_id, error_code=of_partition
            )
            return S(error_code=error, partition_errors=[stopped])
        if isinstance(request, M.UpdateMetadataRequest):
            return M.UpdateMetadataResponse(error_code=error)
        return broker.answer(request)

    broker.answer = answer  # type: ignore[method-assign]


def rubbish(program: Program) -> bytes:
    """Return data of some node, with a few bytes changed."""
    made = bytearray(program.pick([data for _, data in NODES]))
    for _ in range(program.byte() % 4):
        made[program.byte() % len(made)] = program.byte()
    return bytes(made)


def controller_seeds() -> Iterator[bytes]:
    for request in range(9):
        yield bytes([0, request]) + bytes(24)
        yield bytes([0, request, 1, 0, 2, 0, 1, 200, 3, 0, 250, 1, 0, 0, 0, 245]) + bytes(8)
    for place in range(len(PLACES)):
        for data in range(len(NODES)):
            yield bytes([12, place, 0, data, 0])
        yield bytes([12, place, 1, place, 1, 5, 57, 15, 0])
    for error in (0, 199, 201, 245):
        yield bytes([14, 0, 1, error, 0, 0, 0, 0, 0, 5, 0, 0, 0, 14, 1, 1, 0, error, 0, 1, 0, 7, 0, 15, 0])
    yield bytes([0, 3, 0, 0, 3, 0, 0, 0, 1, 0, 2, 1, 0, 7, 0, 14, 0, 15, 0, 15, 0])


TARGETS = [
    Target("nodes", feed_nodes, node_seeds, 512),
    Target("controller", feed_controller, controller_seeds, 256, share=3),
]
