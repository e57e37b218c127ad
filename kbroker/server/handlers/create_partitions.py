"""CreatePartitions, key 37, versions 0 to 3: more partitions for topics (KIP-195).

The partitions are durable when the request is answered. A `timeout_ms` that is not positive is answered with
REQUEST_TIMED_OUT at once, and nothing is done.
Leaves out: quotas.

v0  first
v1  the throttle is applied after the response
v2  flexible
v3  as v2; the client understands THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

from __future__ import annotations

from collections import Counter

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.changes import log_change
from kbroker.server.handlers.shared.services import Services

Result = M.CreatePartitionsResponse.CreatePartitionsTopicResult


def handle(services: Services, request: Request, message: M.CreatePartitionsRequest) -> M.CreatePartitionsResponse:
    counts = Counter(topic.name for topic in message.topics)
    asked = {topic.name: topic for topic in message.topics}
    results = []
    grown = []
    for name, topic in asked.items():
        try:
            if counts[name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if message.timeout_ms <= 0:
                raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT)
            assignments = None
            if topic.assignments is not None:
                assignments = [tuple(each.broker_ids) for each in topic.assignments]
            services.cluster.add_partitions(name, topic.count, assignments, validate_only=message.validate_only)
            results.append(Result(name=name))
            grown.append(f"{name} (partitions: {topic.count})")
        except KbrokerError as error:
            results.append(Result(name=name, error_code=error.code, error_message=error.client_message))
    if not message.validate_only:
        log_change(request, "topics grown:", grown)
    return M.CreatePartitionsResponse(results=results)
