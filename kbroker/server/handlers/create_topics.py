"""CreateTopics, key 19, versions 0 to 7: new topics.

On a broker that is alone the topics are durable when the request is answered: committed to the coordination store,
their logs on disk. So nothing is waited for, and `timeout_ms` matters only if it is not positive: REQUEST_TIMED_OUT is
answered at once and nothing is created, as in Kafka's KRaft mode.
In a cluster the controller creates them, and answers when this broker's metadata has all their leaders, or after
`timeout_ms` with REQUEST_TIMED_OUT: they are created all the same. Other brokers answer NOT_CONTROLLER.
Leaves out: policies, quotas.

v0  first
v1  validation only, error messages
v2  throttle time (KIP-124)
v3  as v2; the throttle is applied after the response
v4  the broker's defaults for counts (KIP-464)
v5  flexible; the response has the topic's configs (KIP-525)
v6  as v5; the client understands THROTTLING_QUOTA_EXCEEDED (KIP-599)
v7  topic ids (KIP-516)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker._core.server.request import Request
from kbroker.cluster.config_entries import source_of, topic_entries
from kbroker.cluster.image import MetadataImage, Topic
from kbroker.cluster.new_topics import NewTopic
from kbroker.cluster.topic_configs import TOPIC_CONFIGS
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.changes import log_change, quoted
from kbroker.server.handlers.shared.services import Services

if TYPE_CHECKING:
    from kbroker.cluster.cluster import TopicResult

R = M.CreateTopicsResponse
Result = M.CreateTopicsResponse.CreatableTopicResult

FIRST_VERSION_WITH_CONFIGS = 5
DUPLICATE_NAME = ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
TIMED_OUT = ProtocolError(ErrorCode.REQUEST_TIMED_OUT)
NOT_CONTROLLER = ProtocolError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")


def handle(services: Services, request: Request, message: M.CreateTopicsRequest) -> M.CreateTopicsResponse | None:
    cluster = services.cluster
    if not cluster.is_controller:
        return R(topics=[_refused(name, NOT_CONTROLLER) for name in _names(message)])
    if message.timeout_ms <= 0 and cluster.is_alone:
        return R(topics=[_refused(name, TIMED_OUT) for name in _names(message)])
    counts = Counter(topic.name for topic in message.topics)
    wanted = [_wanted(topic) for topic in message.topics if counts[topic.name] == 1]

    def answered(outcomes: Sequence[TopicResult]) -> None:
        results = dict(zip((new.name for new in wanted), outcomes, strict=True))
        if not message.validate_only:
            made = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
            log_change(request, "topics created:", [f"{topic.name} ({_described(topic)})" for topic in made])
        answer(request, _response(services, request, message, counts, results))

    cluster.create_topics(wanted, message.timeout_ms, answered, validate_only=message.validate_only)
    return None


def _response(
    services: Services,
    request: Request,
    message: M.CreateTopicsRequest,
    counts: Counter[str],
    results: Mapping[str, TopicResult],
) -> M.CreateTopicsResponse:
    image = services.cluster.image
    with_configs = request.api_version >= FIRST_VERSION_WITH_CONFIGS
    response = R()
    for name in sorted(_names(message), key=lambda name: counts[name] > 1):
        outcome = results.get(name, DUPLICATE_NAME)
        if isinstance(outcome, ProtocolError):
            response.topics.append(_refused(name, outcome))
        elif with_configs:
            response.topics.append(_created(outcome, image, services))
        else:
            response.topics.append(Result(name=name, error_message=None, configs=None))
    return response


def _described(topic: Topic) -> str:
    """Return a topic's partition count and own configs as text for the broker's log."""
    configs = "".join(f", {name}={quoted(value)}" for name, value in topic.configs.items())
    return f"partitions: {len(topic.partitions)}{configs}"


def _names(message: M.CreateTopicsRequest) -> list[str]:
    """The topics' names, each once, in their order."""
    return list(dict.fromkeys(topic.name for topic in message.topics))


def _wanted(topic: M.CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
        {config.name: config.value for config in topic.configs},
    )


def _refused(name: str, error: ProtocolError) -> Result:
    """The result of a refused topic. Its configs are an empty list, as in Kafka: the Java client fails on null."""
    return Result(name=name, error_code=error.code, error_message=error.message, configs=[])


def _created(topic: Topic, image: MetadataImage, services: Services) -> Result:
    broker = services.broker_configs
    return Result(
        name=topic.name,
        error_message=None,
        topic_id=topic.topic_id.bytes,
        num_partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        configs=[
            R.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=False,
                config_source=source_of(TOPIC_CONFIGS[entry.name], topic, image, broker),
                is_sensitive=False,
            )
            for entry in topic_entries(topic, image, broker)
        ],
    )
