"""ElectLeaders, key 43, versions 0 to 2: elections that somebody asks for, preferred or unclean ones (KIP-460).

The answer comes when this broker's metadata has the new leaders, or after `timeout_ms` with REQUEST_TIMED_OUT for those
that it does not have: they are elected all the same. Another broker than the controller answers NOT_CONTROLLER. A
broker that is alone leads all of its partitions: ELECTION_NOT_NEEDED. If all partitions are asked for, those that need
no election are not in the answer.
Leaves out: quotas.

v0  first: preferred elections (KIP-183)
v1  unclean elections, and one error code for the whole answer (KIP-460)
v2  flexible
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.cluster import single_broker
from kbroker.cluster.controller_requests import PREFERRED, UNCLEAN, ElectionOutcome, ElectLeaders
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.changes import log_change

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.cluster.image import MetadataImage
    from kbroker.server.handlers.shared.services import Services

Outcomes = Mapping[TopicPartition, ElectionOutcome]


def handle(services: Services, request: Request, message: M.ElectLeadersRequest) -> M.ElectLeadersResponse | None:
    if message.election_type not in (PREFERRED, UNCLEAN):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"there is no election of type {message.election_type}")
    image = services.cluster.image
    asked = tuple(_all(image) if message.topic_partitions is None else _listed(message.topic_partitions))
    is_of_all = message.topic_partitions is None
    if services.controller is None:
        return _response(single_broker.elect_leaders(image, asked), is_of_all=is_of_all)

    def elected(outcomes: Outcomes) -> None:
        leaders = {each: outcome.leader for each, outcome in outcomes.items() if not outcome.error}
        log_change(request, "leaders elected for", [f"{each} ({leader})" for each, leader in leaders.items()])

        def shown(missing: frozenset[TopicPartition]) -> None:
            late = dict.fromkeys(missing, ElectionOutcome(ErrorCode.REQUEST_TIMED_OUT))
            answer(request, _response({**outcomes, **late}, is_of_all=is_of_all))

        services.cluster.await_leaders(leaders, message.timeout_ms, shown)

    services.controller.ask(ElectLeaders(message.election_type, asked), elected)
    return None


def _all(image: MetadataImage) -> Iterable[TopicPartition]:
    for topic in image.topics.values():
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_id)


def _listed(topics: Iterable[M.ElectLeadersRequest.TopicPartitions]) -> Iterable[TopicPartition]:
    return dict.fromkeys(TopicPartition(topic.topic, each) for topic in topics for each in topic.partitions)


def _response(outcomes: Outcomes, *, is_of_all: bool) -> M.ElectLeadersResponse:
    by_topic: dict[str, M.ElectLeadersResponse.ReplicaElectionResult] = {}
    for partition, outcome in outcomes.items():
        if is_of_all and outcome.error == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        result = by_topic.get(partition.topic)
        if result is None:
            result = by_topic[partition.topic] = M.ElectLeadersResponse.ReplicaElectionResult(
                topic=partition.topic, partition_result=[]
            )
        result.partition_result.append(
            M.ElectLeadersResponse.PartitionResult(
                partition_id=partition.partition_id, error_code=outcome.error, error_message=outcome.message
            )
        )
    return M.ElectLeadersResponse(replica_election_results=list(by_topic.values()))
