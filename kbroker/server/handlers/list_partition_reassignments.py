"""ListPartitionReassignments, key 46, version 0: partitions whose replicas are being changed (KIP-455).

Partitions that are asked for and do not exist, or are not being changed, are not in the answer. Another broker than the
controller answers NOT_CONTROLLER, and so does a controller that has not heard from ZooKeeper for longer than its
session lasts. On a broker that is alone there are none.
Leaves out: quotas, and the time that the request gives.

v0  first; flexible
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.cluster.controller_requests import REFUSALS, ListReassignments
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller.values import Assignment
from kbroker.server.handlers.shared.answering import answer_question

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.ListPartitionReassignmentsResponse


def handle(
    services: Services, request: Request, message: M.ListPartitionReassignmentsRequest
) -> M.ListPartitionReassignmentsResponse | None:
    asked = None
    if message.topics is not None:
        asked = tuple(TopicPartition(topic.name, each) for topic in message.topics for each in topic.partition_indexes)
    if services.controller is None:
        return _response({}, None)
    services.controller.ask(
        ListReassignments(asked), lambda found: answer_question(request, message, _response(found, ""), _code(found))
    )
    return None


def _code(found: Mapping[TopicPartition, Assignment] | ErrorCode) -> ErrorCode:
    return found if isinstance(found, ErrorCode) else ErrorCode.NONE


def _response(found: Mapping[TopicPartition, Assignment] | ErrorCode, no_error: str | None) -> _Response:
    """Return the response. `no_error` is the text of a success: Kafka's controllers of either kind have another."""
    if isinstance(found, ErrorCode):
        return _Response(error_code=found, error_message=REFUSALS[found])
    by_topic: dict[str, _Response.OngoingTopicReassignment] = {}
    for partition, assignment in found.items():
        topic = by_topic.setdefault(
            partition.topic, _Response.OngoingTopicReassignment(name=partition.topic, partitions=[])
        )
        topic.partitions.append(
            _Response.OngoingPartitionReassignment(
                partition_index=partition.partition_id,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
            )
        )
    return _Response(error_message=no_error, topics=list(by_topic.values()))
