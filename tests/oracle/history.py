"""The same requests in the same order to both brokers, before their nodes and files are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.messages import Message
from tests.kit.clients.wire import WireClient
from tests.oracle.matrix import NOT_YET
from tests.oracle.scenario import KEYS, highest, lower
from tests.oracle.scenarios.requests import produce_all

TIMEOUT_S = 30.0
SOON = (*NOT_YET, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR)
"""Errors that Kafka gives while it is still carrying out an earlier request."""


class History:
    """The history of one broker; a context manager. A request that is refused for good fails the test."""

    def __init__(self, port: int):
        self.client = WireClient("127.0.0.1", port, timeout_s=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def ask(self, message: Message, version: int | None = None) -> Any:
        """Ask, and return the answer, whatever it is."""
        api = KEYS[type(message).__name__]
        version = highest(api) if version is None else version
        return self.client.call(api, version, lower(message, version))

    def do(
        self,
        message: Message,
        codes: Callable[[Any], Iterable[int]],
        version: int | None = None,
        not_yet: Sequence[ErrorCode] = SOON,
    ) -> Any:
        """Ask until none of the `codes` in the answer is in `not_yet`; then all must be 0. Return the answer."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self.ask(message, version)
            found = {ErrorCode(code) for code in codes(answer)} - {ErrorCode.NONE}
            if not found:
                return answer
            assert found <= set(not_yet), f"{message}\n{answer}"
            assert time.monotonic() < deadline, f"{message}\n{answer}"
            time.sleep(0.01)

    # --- topics -----------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int = -1,
        *,
        assignment: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str] | None = None,
        not_yet: Sequence[ErrorCode] = SOON,
    ) -> None:
        """Make a topic and wait for its leaders."""
        topic = M.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1 if assignment or partitions == -1 else 1,
            assignments=[
                M.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=at, broker_ids=list(replicas))
                for at, replicas in enumerate(assignment)
            ],
            configs=[
                M.CreateTopicsRequest.CreatableTopicConfig(name=key, value=text)
                for key, text in (configs or {}).items()
            ],
        )
        self.do(
            M.CreateTopicsRequest(topics=[topic], timeout_ms=30000),
            lambda answer: [each.error_code for each in answer.topics],
            not_yet=not_yet,
        )
        self.await_leaders(name)

    def await_leaders(self, name: str, *, make: bool = False) -> None:
        """Wait until a topic has leaders. `make`: the request makes the topic.

        A Kafka that has just started knows no brokers and refuses to make a topic for good.
        """
        asked = M.MetadataRequest(
            topics=[M.MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=make
        )
        self.do(
            asked,
            lambda answer: [
                code
                for topic in answer.topics
                for code in (topic.error_code, *(each.error_code for each in topic.partitions))
            ],
            version=8,
        )

    def create_again(self, name: str) -> None:
        """Make a topic again whose name was just deleted: Kafka deletes after it has answered."""
        self.create(name, 1, not_yet=[*SOON, ErrorCode.TOPIC_ALREADY_EXISTS])

    def grow(self, name: str, count: int, assignment: Sequence[Sequence[int]] | None = None) -> None:
        replicas = M.CreatePartitionsRequest.CreatePartitionsAssignment
        topic = M.CreatePartitionsRequest.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None if assignment is None else [replicas(broker_ids=list(each)) for each in assignment],
        )
        self.do(
            M.CreatePartitionsRequest(topics=[topic], timeout_ms=30000),
            lambda answer: [each.error_code for each in answer.results],
        )
        self.await_leaders(name)

    def delete(self, *names: str) -> None:
        topics = [M.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        self.do(
            M.DeleteTopicsRequest(topics=topics, timeout_ms=30000),
            lambda answer: [each.error_code for each in answer.responses],
        )

    # --- records and groups -----------------------------------------------------------------------

    def produce(self, topic: str, partition: int, batch: bytes) -> None:
        self.do(
            produce_all({topic: {partition: batch}}),
            lambda answer: [answer.responses[0].partition_responses[0].error_code],
        )

    def commit_offset(self, group: str, topic: str) -> None:
        """Commit an offset of partition 0 without being a member. This makes the topic of offsets."""
        self.do(
            M.FindCoordinatorRequest(coordinator_keys=[group], key_type=0),
            lambda answer: [answer.coordinators[0].error_code],
            version=4,
        )
        part = M.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        entry = M.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])
        self.do(
            M.OffsetCommitRequest(group_id=group, topics=[entry]),
            lambda answer: [answer.topics[0].partitions[0].error_code],
            version=7,
        )
        self.await_leaders("__consumer_offsets")

    def ask_for_a_producer_id(self) -> None:
        self.do(
            M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000),
            lambda answer: [answer.error_code],
        )
