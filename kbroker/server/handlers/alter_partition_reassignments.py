"""AlterPartitionReassignments, key 45, version 0: changes the replicas of partitions, or cancels that (KIP-455).

All changes are in ZooKeeper when the request is answered. The first have begun then; of very many the others follow.
ListPartitionReassignments shows each until it is done. Another broker than the controller answers NOT_CONTROLLER. On a
broker that is alone there is nothing to move.
Leaves out: quotas, and the time that the request gives.

v0  first; flexible
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.cluster import single_broker
from kbroker.cluster.controller_requests import REFUSALS, AlterReassignments, PartitionOutcome
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.changes import log_change

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.AlterPartitionReassignmentsResponse


def handle(
    services: Services, request: Request, message: M.AlterPartitionReassignmentsRequest
) -> M.AlterPartitionReassignmentsResponse | None:
    targets = {
        TopicPartition(topic.name, each.partition_index): None if each.replicas is None else tuple(each.replicas)
        for topic in message.topics
        for each in topic.partitions
    }
    if services.controller is None:
        return _response(single_broker.alter_reassignments(services.cluster.image, targets), None)

    def begun(outcomes: Mapping[TopicPartition, PartitionOutcome] | ErrorCode) -> None:
        if not isinstance(outcomes, ErrorCode):
            done = [each for each, outcome in outcomes.items() if not outcome.error]
            what = [f"{each} ({'cancelled' if targets[each] is None else list(targets[each] or ())})" for each in done]
            log_change(request, "replicas are changed:", what)
        answer(request, _response(outcomes, ""), outcomes if isinstance(outcomes, ErrorCode) else ErrorCode.NONE)

    services.controller.ask(AlterReassignments(targets), begun)
    return None


def _response(outcomes: Mapping[TopicPartition, PartitionOutcome] | ErrorCode, no_error: str | None) -> _Response:
    """Return the response. `no_error` is the text of a success: Kafka's controllers of either kind have another."""
    if isinstance(outcomes, ErrorCode):
        return _Response(error_code=outcomes, error_message=REFUSALS[outcomes])
    by_topic: dict[str, _Response.ReassignableTopicResponse] = {}
    for partition, outcome in outcomes.items():
        topic = by_topic.setdefault(
            partition.topic, _Response.ReassignableTopicResponse(name=partition.topic, partitions=[])
        )
        topic.partitions.append(
            _Response.ReassignablePartitionResponse(
                partition_index=partition.partition_id, error_code=outcome.error, error_message=outcome.message
            )
        )
    return _Response(error_message=no_error, responses=list(by_topic.values()))
