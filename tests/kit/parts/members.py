"""One member's partitions without a network: a test is the controller, the leaders and the followers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.cluster.image import MetadataImage
from kbroker.cluster.member_image import image_after
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.messages import Message
from kbroker.replication.partitions import ReplicatedPartitions
from kbroker.replication.surroundings import Answered, LogHost, ReplicaLog
from tests.kit.logs.home import ManualClock

ME = 1
TOPIC = "topic"
TOPIC_ID = UUID(int=77)
FIRST = TopicPartition(TOPIC, 0)

Q = M.LeaderAndIsrRequest


def role(
    partition_id: int = 0,
    *,
    leader: int = ME,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    replicas: Sequence[int] = (1, 2, 3),
    isr: Sequence[int] | None = None,
    is_new: bool = False,
    topic: str = "",
) -> Q.LeaderAndIsrPartitionState:
    return Q.LeaderAndIsrPartitionState(
        topic_name=topic,
        partition_index=partition_id,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=list(replicas if isr is None else isr),
        partition_epoch=partition_epoch,
        replicas=list(replicas),
        is_new=is_new,
    )


class Ask(NamedTuple):
    """A request to the controller that has no answer yet."""

    make: Callable[[int], Message]
    highest: int
    answered: Answered

    def request(self, version: int = 3) -> M.AlterPartitionRequest:
        made = self.make(version)
        assert isinstance(made, M.AlterPartitionRequest)
        sent = made.encode(version)  # the version has room for everything that is in the request
        return M.AlterPartitionRequest.decode(sent, version)

    def refuse(self, code: ErrorCode, version: int = 3) -> None:
        self.answered(M.AlterPartitionResponse(error_code=code), version)

    def fail(self) -> None:
        self.answered(None, -1)

    def answer(
        self, judge: Callable[[TopicPartition, M.AlterPartitionRequest.PartitionData], M.Struct], version: int = 3
    ) -> None:
        R = M.AlterPartitionResponse
        topics = [
            R.TopicData(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=[judge(TopicPartition(TOPIC, part.partition_index), part) for part in topic.partitions],
            )
            for topic in self.request(version).topics
        ]
        self.answered(R.decode(R(topics=topics).encode(version), version), version)

    def commit(self, version: int = 3) -> None:
        """Answer that every change is committed."""

        def judge(_: TopicPartition, part: M.AlterPartitionRequest.PartitionData) -> M.Struct:
            isr = [each.broker_id for each in part.new_isr_with_epochs] if version >= 3 else part.new_isr
            return M.AlterPartitionResponse.PartitionData(
                partition_index=part.partition_index,
                leader_id=ME,
                leader_epoch=part.leader_epoch,
                isr=isr,
                partition_epoch=part.partition_epoch + 1,
            )

        self.answer(judge, version)

    def refuse_each(self, code: ErrorCode, version: int = 3) -> None:
        def judge(_: TopicPartition, part: M.AlterPartitionRequest.PartitionData) -> M.Struct:
            return M.AlterPartitionResponse.PartitionData(partition_index=part.partition_index, error_code=code)

        self.answer(judge, version)


class Member:
    """Broker ME with everything around its partitions. `said` is what fetchers and listeners were told, in order."""

    def __init__(self, logs: LogHost, clock: ManualClock | None = None):
        self.logs = logs
        self.clock = clock or ManualClock()
        self.said: list[tuple[object, ...]] = []
        self.fetching: dict[TopicPartition, tuple[int, int]] = {}
        self.asks: list[Ask] = []
        self.image = MetadataImage("cluster")
        self.broker_epoch = 100
        self.dues = 0
        self.partitions = ReplicatedPartitions(ME, logs, self, self._ask, self, self.clock, self)
        self.partitions.on_due = self._due
        self.asked = 0
        """How often the controller was asked to tell all roles again."""
        self.partitions.on_usable = self._ask_for_roles

    def _ask_for_roles(self) -> None:
        self.asked += 1

    # Fetchers
    def start(self, topic_partition: TopicPartition, log: ReplicaLog, leader_id: int, leader_epoch: int) -> None:
        assert topic_partition not in self.fetching
        self.fetching[topic_partition] = leader_id, leader_epoch

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            self.fetching.pop(topic_partition, None)

    # RoleListeners
    def leads(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        self.said.append(("leads", topic_partition, leader_epoch))

    def follows(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        self.said.append(("follows", topic_partition, leader_epoch))

    def gone(self, topic_partition: TopicPartition) -> None:
        self.said.append(("gone", topic_partition))

    # Metadata
    def update(self, request: M.UpdateMetadataRequest) -> Collection[int]:
        self.image = image_after(self.image, request, lambda names: {}).image
        return self.image.brokers.keys()

    # AskController
    def _ask(self, make: Callable[[int], Message], api_key: int, highest_version: int, answered: Answered) -> None:
        self.asks.append(Ask(make, highest_version, answered))

    def _due(self) -> None:
        self.dues += 1

    # --- what a controller does

    def tell_roles(
        self,
        *states: Q.LeaderAndIsrPartitionState,
        controller_epoch: int = 1,
        broker_epoch: int = -1,
        version: int = 7,
        topic_id: UUID = TOPIC_ID,
        kind: int = 0,
        live_leaders: Sequence[int] = (),
    ) -> list[ErrorCode]:
        """Send LeaderAndIsr over the wire. Returns the code of each partition, in the order of `states`."""
        request = Q(controller_id=2, controller_epoch=controller_epoch, broker_epoch=broker_epoch)
        request.live_leaders = [Q.LeaderAndIsrLiveLeader(broker_id=each) for each in live_leaders]
        if version >= 5:
            request.type = kind
        if version >= 2:
            id_bytes = topic_id.bytes if version >= 5 else bytes(16)
            topic = Q.LeaderAndIsrTopicState(topic_name=TOPIC, topic_id=id_bytes, partition_states=list(states))
            request.topic_states = [topic]
        else:
            request.ungrouped_partition_states = list(states)
            for state in states:
                state.topic_name = TOPIC
        read = Q.decode(request.encode(version), version)
        R = M.LeaderAndIsrResponse
        made = self.partitions.leader_and_isr(read, version)
        answer = R.decode(made.encode(version), version)
        self.last_error = ErrorCode(answer.error_code)
        parts = answer.partition_errors if version < 5 else [p for t in answer.topics for p in t.partition_errors]
        if version >= 5:
            assert all(topic.topic_id == topic_id.bytes for topic in answer.topics)
        codes = {part.partition_index: ErrorCode(part.error_code) for part in parts}
        return [codes[state.partition_index] for state in states]

    def tell_brokers(self, *node_ids: int, controller_epoch: int = 1, **values: object) -> ErrorCode:
        U = M.UpdateMetadataRequest
        endpoint = U.UpdateMetadataEndpoint(host="h", port=9092, listener="PLAINTEXT", security_protocol=0)
        brokers = [U.UpdateMetadataBroker(id=each, endpoints=[endpoint]) for each in node_ids]
        return self.tell_metadata(U(controller_id=2, controller_epoch=controller_epoch, live_brokers=brokers, **values))

    def tell_metadata(self, request: M.UpdateMetadataRequest, version: int = 8) -> ErrorCode:
        read = M.UpdateMetadataRequest.decode(request.encode(version), version)
        return ErrorCode(self.partitions.update_metadata(read).error_code)

    def tell_stop(
        self,
        *partition_ids: int,
        deletes: bool = False,
        leader_epoch: int = -1,
        controller_epoch: int = 1,
        broker_epoch: int = -1,
        version: int = 4,
    ) -> list[ErrorCode]:
        S = M.StopReplicaRequest
        request = S(controller_id=2, controller_epoch=controller_epoch, broker_epoch=broker_epoch)
        if version >= 3:
            states = [
                S.StopReplicaPartitionState(partition_index=each, leader_epoch=leader_epoch, delete_partition=deletes)
                for each in partition_ids
            ]
            request.topic_states = [S.StopReplicaTopicState(topic_name=TOPIC, partition_states=states)]
        elif version >= 1:
            request.delete_partitions = deletes
            request.topics = [S.StopReplicaTopicV1(name=TOPIC, partition_indexes=list(partition_ids))]
        else:
            request.delete_partitions = deletes
            parts = [S.StopReplicaPartitionV0(topic_name=TOPIC, partition_index=each) for each in partition_ids]
            request.ungrouped_partitions = parts
        made = self.partitions.stop_replicas(S.decode(request.encode(version), version))
        answer = M.StopReplicaResponse.decode(made.encode(version), version)
        self.last_error = ErrorCode(answer.error_code)
        codes = {part.partition_index: ErrorCode(part.error_code) for part in answer.partition_errors}
        return [codes[each] for each in partition_ids if each in codes]
