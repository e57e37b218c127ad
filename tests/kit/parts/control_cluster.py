"""A cluster of controllers over a tree in memory, with brokers that believe what they are told. One thread, no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.cluster import topic_requests
from kbroker.cluster.controller import Controller, ControllerConfig
from kbroker.cluster.controller_requests import AlterPartition
from kbroker.cluster.peers import Answered, AskAnswered, PeerError
from kbroker.coordination import paths
from kbroker.coordination.store import Create
from kbroker.errors import ErrorCode
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller.values import PartitionState
from tests.kit.logs.home import ManualClock
from tests.kit.parts.memory_store import MemorySession, MemoryTree

Role = M.LeaderAndIsrRequest.LeaderAndIsrPartitionState
Metadata = M.UpdateMetadataRequest.UpdateMetadataPartitionState


@dataclass
class ToldBroker:
    """What a broker has been told. It answers as Kafka 3.9.1 does, and forgets topics as a kbroker does."""

    node_id: int
    epoch: int = -1
    controller_epoch: int = 0
    roles: dict[TopicPartition, Role] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[TopicPartition, Metadata] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    logs: set[TopicPartition] = field(default_factory=set)
    failed: set[TopicPartition] = field(default_factory=set)
    """Partitions whose log directory has failed."""
    received: list[M.Message] = field(default_factory=list)
    leaders_by_epoch: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    refuses_deletion: bool = False
    topics_there: Callable[[], Collection[str]] = tuple
    """Returns the topics in the tree. A kbroker compares its own with them under a new controller, in a new session."""

    def forget_gone(self) -> None:
        there = set(self.topics_there())
        self.metadata = {each: state for each, state in self.metadata.items() if each.topic in there}

    def answer(self, request: M.Message) -> M.Message:
        self.received.append(request)
        if isinstance(request, M.LeaderAndIsrRequest):
            return self._leader_and_isr(request)
        if isinstance(request, M.UpdateMetadataRequest):
            return self._update_metadata(request)
        if isinstance(request, M.StopReplicaRequest):
            return self._stop_replica(request)
        assert isinstance(request, M.ApiVersionsRequest), request
        return M.ApiVersionsResponse()

    def _fence(self, request: Any) -> ErrorCode:
        if request.broker_epoch < self.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = request.controller_epoch
        return ErrorCode.NONE

    def _leader_and_isr(self, request: M.LeaderAndIsrRequest) -> M.Message:
        code = self._fence(request)
        if code:
            return M.LeaderAndIsrResponse(error_code=code)
        topics = []
        for topic in request.topic_states:
            errors = []
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                of_partition = self._role(partition, state)
                self.topic_ids[topic.topic_name] = topic.topic_id
                errors.append(
                    M.LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=of_partition
                    )
                )
            topics.append(
                M.LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)
            )
        return M.LeaderAndIsrResponse(topics=topics)

    def _role(self, partition: TopicPartition, state: Role) -> ErrorCode:
        if partition in self.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        before = self.roles.get(partition)
        if before is not None and state.leader_epoch <= before.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.roles[partition] = state
        self.logs.add(partition)
        return ErrorCode.NONE

    def _update_metadata(self, request: M.UpdateMetadataRequest) -> M.Message:
        before = self.controller_epoch
        code = self._fence(request)
        if not code:
            if request.controller_epoch > before:
                self.forget_gone()
            self.alive = {each.id for each in request.live_brokers}
            for topic in request.topic_states:
                for state in topic.partition_states:
                    partition = TopicPartition(topic.topic_name, state.partition_index)
                    if state.leader == -2:
                        self.metadata.pop(partition, None)
                    else:
                        self.metadata[partition] = state
        return M.UpdateMetadataResponse(error_code=code)

    def _stop_replica(self, request: M.StopReplicaRequest) -> M.Message:
        code = self._fence(request)
        if code:
            return M.StopReplicaResponse(error_code=code)
        errors = []
        for topic in request.topic_states:
            for each in topic.partition_states:
                partition = TopicPartition(topic.topic_name, each.partition_index)
                of_partition = ErrorCode.NONE
                before = self.roles.get(partition)
                if before is not None and 0 <= each.leader_epoch < before.leader_epoch:
                    of_partition = ErrorCode.FENCED_LEADER_EPOCH
                elif each.delete_partition and self.refuses_deletion:
                    of_partition = ErrorCode.KAFKA_STORAGE_ERROR
                elif each.delete_partition:
                    self.logs.discard(partition)
                    self.roles.pop(partition, None)
                errors.append(
                    M.StopReplicaResponse.StopReplicaPartitionError(
                        topic_name=topic.topic_name, partition_index=each.partition_index, error_code=of_partition
                    )
                )
        return M.StopReplicaResponse(partition_errors=errors)


class LocalPeers:
    """Peers of one node over the cluster's network, which delivers when it is told to."""

    def __init__(self, cluster: ControlCluster, node_id: int):
        self._cluster = cluster
        self._node_id = node_id
        self.addresses: dict[int, Endpoint] = {}
        self.kept: set[int] = set()
        self.refused_callbacks: list[Callable[[int], None]] = []

    def send(self, node_id: int, message: M.Message, version: int, answered: Answered, *, timeout_ms: int) -> None:
        if node_id not in self.addresses:
            answered(PeerError(node_id, "its address is not known"))
            return
        # Through the bytes, as on a real wire.
        decoded = type(message).decode(message.encode(version), version)
        self._cluster.network.append((self._node_id, node_id, decoded, version, answered))

    def ask(
        self,
        node_id: int,
        make: Callable[[int], M.Message],
        api_key: int,
        highest_version: int,
        answered: AskAnswered,
        *,
        timeout_ms: int,
    ) -> None:
        raise NotImplementedError

    def served(self, node_id: int, api_key: int) -> int:
        return -1

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None:
        self.addresses = dict(brokers)

    def keep(self, node_ids: Collection[int]) -> None:
        self.kept = set(node_ids)

    def on_refused(self, callback: Callable[[int], None]) -> None:
        self.refused_callbacks.append(callback)


@dataclass
class Member:
    """One life of a broker: its session, its controller, what it was told."""

    node_id: int
    session: MemorySession
    peers: LocalPeers
    controller: Controller
    told: ToldBroker
    is_running: bool = True


class ControlCluster:
    """Brokers by id. `settle` runs everything until nothing is left to do."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig(auto_leader_rebalance_enable=False)
        self.tree = MemoryTree()
        for path in paths.PERSISTENT:
            self.tree.put(path)
        self.clock = ManualClock()
        self.members: dict[int, Member] = {}
        self.network: deque[tuple[int, int, M.Message, int, Answered]] = deque()
        self.silent: set[int] = set()
        """Brokers that get nothing and answer nothing, though they live."""
        self.unclean: set[str] = set()
        self._next_topic = 0

    def start(self, node_id: int, *, listener: str = "PLAINTEXT") -> Member:
        """Begin a life of a broker."""
        session = self.tree.connect()
        peers = LocalPeers(self, node_id)
        controller = Controller(node_id, peers, self.clock, self.config, lambda topic: topic in self.unclean)
        before = self.members.get(node_id)
        told = ToldBroker(node_id)
        told.topics_there = lambda: self.tree.model.children(paths.TOPICS)
        if before is not None:
            told.logs = set(before.told.logs)
        member = self.members[node_id] = Member(node_id, session, peers, controller, told)
        self.register(member, listener)
        controller.session_is(session, told.epoch)
        return member

    def register(self, member: Member, listener: str = "PLAINTEXT") -> None:
        """Register a member in its session."""
        endpoint = Endpoint(listener, "PLAINTEXT", f"host{member.node_id}", 9092)
        data = paths.encode_broker(paths.BrokerRegistration((endpoint,), None, 0))
        path = paths.broker_path(member.node_id)
        member.session.multi([Create(path, data, ephemeral=True)])
        stat = self.tree.stat(path)
        assert stat is not None
        member.told.epoch = stat.creation_id
        member.told.forget_gone()

    def kill(self, node_id: int, *, seen: bool = False) -> None:
        """Kill a broker. Its session lasts, until `expire`. `seen`: its port refuses, and others see that."""
        self.members[node_id].is_running = False
        if seen:
            for member in self.live():
                if node_id in member.peers.kept:
                    for callback in member.peers.refused_callbacks:
                        callback(node_id)

    def expire(self, node_id: int) -> None:
        """End a broker's session."""
        self.members[node_id].session.expire()

    def lose(self, node_id: int) -> None:
        """Kill a broker, and end its session."""
        self.kill(node_id)
        self.expire(node_id)
        self.settle()

    def stop(self, node_id: int) -> None:
        """Stop a broker as it stops itself: its session is closed."""
        member = self.members[node_id]
        member.controller.resign()
        member.controller.step()
        member.is_running = False
        member.session.close()

    def live(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_running]

    @property
    def active(self) -> Member:
        """The member that is the controller."""
        found = [member for member in self.live() if member.controller.is_active]
        assert len(found) == 1, [member.node_id for member in found]
        return found[0]

    # --- running ------------------------------------------------------------------------------------------------------

    def deliver(self) -> bool:
        """Deliver the oldest request that can be. Returns whether there was one."""
        for index, (sender, receiver, message, version, answered) in enumerate(self.network):
            if receiver in self.silent or sender in self.silent:
                continue
            del self.network[index]
            member = self.members.get(receiver)
            if not self.members[sender].is_running:
                return True
            if member is None or not member.is_running:
                answered(PeerError(receiver, "nobody listens", refused=True))
                return True
            response = member.told.answer(message)
            answered(type(response).decode(response.encode(version), version))
            return True
        return False

    def settle(self, *, limit: int = 100_000) -> None:
        """Do everything that is to be done now; pauses of less than two seconds are passed."""
        passed = 0
        for _ in range(limit):
            if any(member.controller.step() for member in self.live()) or self.deliver():
                continue
            idle = min((member.controller.idle_ms() for member in self.live()), default=60_000)
            if idle + passed > 2_000:
                return
            passed += max(idle, 1)
            self.clock.now_ms += max(idle, 1)
        raise AssertionError("the cluster does not settle")

    # --- asking and looking -------------------------------------------------------------------------------------------

    def ask(self, request: Any, node_id: int | None = None, *, meanwhile: Callable[[], object] = lambda: None) -> Any:
        """Ask the controller, let everything settle, and return the answer.

        What `meanwhile` does happens before the controller looks at the request, which it does before all else.
        """
        answers: list[Any] = []
        member = self.active if node_id is None else self.members[node_id]
        member.controller.ask(request, answers.append)
        meanwhile()
        self.settle()
        assert len(answers) == 1, answers
        return answers[0]

    def create(self, topic: str, *replicas: tuple[int, ...], configs: Mapping[str, str] | None = None) -> None:
        self._next_topic += 1
        assignment = paths.TopicAssignment(UUID(int=self._next_topic), dict(enumerate(replicas)), {}, {})
        planned = topic_requests.PlannedTopic(assignment, configs or {})
        assert self.ask(topic_requests.CreateTopics({topic: planned})) == {topic: ErrorCode.NONE}

    def node(self, path: str) -> bytes | None:
        node = self.tree.model.nodes.get(path)
        return None if node is None else node.data

    def state(self, topic: str, partition_id: int = 0) -> PartitionState:
        path = paths.partition_state_path(topic, partition_id)
        node = self.tree.model.nodes[path]
        return PartitionState(*paths.decode_partition_state(path, node.data), node.version)

    def leader(self, topic: str, partition_id: int = 0) -> int:
        return self.state(topic, partition_id).leader

    def assignment(self, topic: str) -> paths.TopicAssignment:
        data = self.node(paths.topic_path(topic))
        assert data is not None, topic
        return paths.decode_topic(paths.topic_path(topic), data)

    def join_isr(self, topic: str, partition_id: int, *joining: int) -> M.AlterPartitionResponse:
        """Let the leader of a partition ask for an ISR with more members."""
        state = self.state(topic, partition_id)
        return self.set_isr(topic, partition_id, tuple(dict.fromkeys((*state.isr, *joining))))

    def set_isr(self, topic: str, partition_id: int, isr: tuple[int, ...]) -> M.AlterPartitionResponse:
        """Let the leader of a partition ask for an ISR."""
        state = self.state(topic, partition_id)
        leader = self.members[state.leader].told
        members = [
            M.AlterPartitionRequest.BrokerState(broker_id=each, broker_epoch=self.members[each].told.epoch)
            for each in isr
        ]
        wanted = M.AlterPartitionRequest.PartitionData(
            partition_index=partition_id,
            leader_epoch=state.leader_epoch,
            new_isr_with_epochs=members,
            partition_epoch=state.partition_epoch,
            leader_recovery_state=0,
        )
        topic_data = M.AlterPartitionRequest.TopicData(
            topic_id=self.assignment(topic).topic_id.bytes, partitions=[wanted]
        )
        request = M.AlterPartitionRequest(broker_id=state.leader, broker_epoch=leader.epoch, topics=[topic_data])
        answer = self.ask(AlterPartition(request, 3))
        assert isinstance(answer, M.AlterPartitionResponse)
        return answer
