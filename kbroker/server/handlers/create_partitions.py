"""CreatePartitions, key 37, versions 0 to 3: more partitions for topics (KIP-195).

The partitions are durable when the request is answered. A `timeout_ms` that is not positive is answered with
REQUEST_TIMED_OUT at once, and nothing is done.
In a cluster the controller adds them, and answers when this broker's metadata has their leaders, or after `timeout_ms`
with REQUEST_TIMED_OUT: they are added all the same. Other brokers answer NOT_CONTROLLER.
Leaves out: quotas.

v0  first
v1  the throttle is applied after the response
v2  flexible
v3  as v2; the client understands THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker._core.server.request import Request
from kbroker.cluster.image import Topic
from kbroker.cluster.new_topics import MorePartitions
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.changes import log_change
from kbroker.server.handlers.shared.services import Services

if TYPE_CHECKING:
    from kbroker.cluster.cluster import TopicResult

Result = M.CreatePartitionsResponse.CreatePartitionsTopicResult


def handle(
    services: Services, request: Request, message: M.CreatePartitionsRequest
) -> M.CreatePartitionsResponse | None:
    cluster = services.cluster
    counts = Counter(topic.name for topic in message.topics)
    asked = {topic.name: topic for topic in message.topics}
    refused: dict[str, ProtocolError] = {}
    wanted: list[MorePartitions] = []
    for name, topic in asked.items():
        if not cluster.is_controller:
            refused[name] = ProtocolError(ErrorCode.NOT_CONTROLLER)
        elif counts[name] > 1:
            refused[name] = ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif message.timeout_ms <= 0 and cluster.is_alone:
            refused[name] = ProtocolError(ErrorCode.REQUEST_TIMED_OUT)
        else:
            assignments = None
            if topic.assignments is not None:
                assignments = [tuple(each.broker_ids) for each in topic.assignments]
            wanted.append(MorePartitions(name, topic.count, assignments))

    def answered(outcomes: Sequence[TopicResult]) -> None:
        results: dict[str, TopicResult] = {**refused}
        results.update(zip((each.topic for each in wanted), outcomes, strict=True))
        grown = [each.topic for each in wanted if isinstance(results[each.topic], Topic)]
        if not message.validate_only:
            log_change(request, "topics grown:", [f"{name} (partitions: {asked[name].count})" for name in grown])
        answer(request, M.CreatePartitionsResponse(results=[_result(name, results[name]) for name in asked]))

    cluster.create_partitions(wanted, message.timeout_ms, answered, validate_only=message.validate_only)
    return None


def _result(name: str, outcome: TopicResult) -> Result:
    if isinstance(outcome, ProtocolError):
        return Result(name=name, error_code=outcome.code, error_message=outcome.client_message)
    return Result(name=name)
