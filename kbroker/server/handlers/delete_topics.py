"""DeleteTopics, key 20, versions 0 to 6: delete topics with all their records.

The deletion is durable when the request is answered: no client sees the topic any more. Its files are deleted in the
background. A `timeout_ms` that is not positive is answered with REQUEST_TIMED_OUT at once, and nothing is deleted.
In a cluster the controller deletes, and answers when the topics are gone from this broker's metadata, or after
`timeout_ms` with REQUEST_TIMED_OUT: they are deleted all the same. Other brokers answer NOT_CONTROLLER.
Results come in the order of the request; Kafka's order is random.
Leaves out: quotas.

v0  first
v1  throttle time (KIP-124)
v2  as v1; the throttle is applied after the response
v3  as v2; the client understands TOPIC_DELETION_DISABLED
v4  flexible
v5  error messages (KIP-599)
v6  topics by id (KIP-516)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kbroker._core.server.request import Request
from kbroker.cluster.image import MetadataImage, Topic
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.changes import log_change
from kbroker.server.handlers.shared.services import Services

if TYPE_CHECKING:
    from kbroker.cluster.cluster import TopicResult

R = M.DeleteTopicsResponse
Result = M.DeleteTopicsResponse.DeletableTopicResult
State = M.DeleteTopicsRequest.DeleteTopicState

FIRST_VERSION_WITH_IDS = 6
FIRST_VERSION_TO_NAME_DISABLING = 3
NO_ID = bytes(16)


def handle(services: Services, request: Request, message: M.DeleteTopicsRequest) -> M.DeleteTopicsResponse | None:
    version = request.api_version
    cluster = services.cluster
    asked = message.topics if version >= FIRST_VERSION_WITH_IDS else [State(name=name) for name in message.topic_names]
    if not cluster.is_controller:
        return R(responses=[_refused(state, ProtocolError(ErrorCode.NOT_CONTROLLER)) for state in asked])
    if not services.config["delete.topic.enable"]:
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= FIRST_VERSION_TO_NAME_DISABLING
            else ErrorCode.INVALID_REQUEST
        )
        return R(responses=[_refused(state, ProtocolError(code, "Topic deletion is disabled.")) for state in asked])
    if message.timeout_ms <= 0 and cluster.is_alone:
        return R(responses=[_refused(state, ProtocolError(ErrorCode.REQUEST_TIMED_OUT)) for state in asked])
    image = cluster.image
    names, ids = Counter(state.name for state in asked), Counter(state.topic_id for state in asked)
    named_ids = {topic.topic_id.bytes for name in names if name is not None and (topic := image.topic(name))}
    found: list[tuple[State, TopicResult]] = []
    seen: set[tuple[str | None, bytes]] = set()
    for state in asked:
        if (key := (state.name, state.topic_id)) in seen and key != (None, NO_ID):
            continue
        seen.add(key)
        if state.name is None and state.topic_id in named_ids:
            continue  # the same topic is also asked for by name, and answered there
        try:
            found.append((state, _find(state, image, names, ids)))
        except ProtocolError as error:
            found.append((state, error))
    doomed = [topic.name for _, topic in found if isinstance(topic, Topic)]

    def answered(outcomes: Sequence[TopicResult]) -> None:
        outcome_of = dict(zip(doomed, outcomes, strict=True))
        response = R()
        for state, result in found:
            outcome = outcome_of[result.name] if isinstance(result, Topic) else result
            if isinstance(outcome, Topic):
                response.responses.append(Result(name=outcome.name, topic_id=outcome.topic_id.bytes))
            else:
                response.responses.append(_refused(state, outcome))
        deleted = [each.name for each in response.responses if not each.error_code and each.name]
        log_change(request, "topics deleted:", deleted)
        answer(request, response)

    cluster.delete_topics(doomed, message.timeout_ms, answered)
    return None


def _find(state: State, image: MetadataImage, names: Counter[str | None], ids: Counter[bytes]) -> Topic:
    if state.name is not None and state.topic_id != NO_ID:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if state.name is not None:
        if names[state.name] > 1:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        named = image.topic(state.name)
        if named is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        if named.topic_id.bytes in ids:
            state.topic_id = named.topic_id.bytes
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
            )
        return named
    if state.topic_id == NO_ID:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if ids[state.topic_id] > 1:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
    topic = image.topic_by_id(UUID(bytes=state.topic_id))
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return topic


def _refused(state: State, error: KbrokerError) -> Result:
    return Result(name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=error.client_message)
