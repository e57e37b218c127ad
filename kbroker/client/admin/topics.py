"""Topics and their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from kbroker.client.admin.controller import ask_controller, controllers_answer, given_ms
from kbroker.client.admin.items import call_for_each, value_or_error
from kbroker.client.admin.results import NewTopic, PartitionDescription, TopicDescription
from kbroker.client.errors import ClientError
from kbroker.client.network.backoff import Backoff
from kbroker.client.network.cluster import Cluster
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

SEEN_WITHIN_S = 5.0


async def names(cluster: Cluster, internal: bool) -> list[str]:
    answer = await cluster.retried(lambda: cluster.metadata(None))
    return sorted(topic.name for topic in answer.topics if internal or not topic.is_internal)


async def describe(cluster: Cluster, wanted: Iterable[str]) -> dict[str, TopicDescription]:
    async def attempt(left: list[str]) -> dict[str, TopicDescription | ClientError]:
        answer = await cluster.metadata(left)
        return {
            topic.name: value_or_error(topic.error_code, None, f"topic {topic.name!r}", _description(topic))
            for topic in answer.topics
        }

    return await call_for_each(cluster, wanted, attempt)


def _description(topic: M.MetadataResponse.MetadataResponseTopic) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            each.partition_index, each.leader_id, each.leader_epoch, tuple(each.replica_nodes), tuple(each.isr_nodes)
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    )
    return TopicDescription(topic.name or "", topic.topic_id, bool(topic.is_internal), partitions)


async def create(cluster: Cluster, topics: Iterable[NewTopic], validate_only: bool) -> None:
    wanted: dict[str, NewTopic] = {}
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise TypeError(f"topics are made of NewTopic objects, not {topic!r}")
        wanted[topic.name] = topic
    request = M.CreateTopicsRequest

    async def attempt(left: list[str]) -> dict[str, ClientError | None]:
        message = request(
            topics=[_creatable(wanted[name]) for name in left],
            timeout_ms=given_ms(cluster),
            validate_only=validate_only,
        )
        answer = await ask_controller(cluster, message)
        return {
            each.name: controllers_answer(cluster, each.error_code, each.error_message, f"topic {each.name!r}", None)
            for each in answer.topics
        }

    await call_for_each(cluster, wanted, attempt)
    if not validate_only:
        await _seen(cluster, wanted)


def _creatable(topic: NewTopic) -> M.CreateTopicsRequest.CreatableTopic:
    request = M.CreateTopicsRequest
    assigned = topic.assignments
    return request.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=[
            request.CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
            for number, replicas in enumerate(assigned)
        ],
        configs=[request.CreatableTopicConfig(name=name, value=str(value)) for name, value in topic.configs.items()],
    )


async def _seen(cluster: Cluster, wanted: Collection[str]) -> None:
    """Wait until some broker's metadata have the topics.

    The broker that has created them may be ahead of the others.
    """
    backoff = Backoff(0.01, 0.2)
    try:
        async with asyncio.timeout(SEEN_WITHIN_S):
            while True:
                answer = await cluster.metadata(wanted)
                if not any(
                    topic.error_code or any(p.leader_id < 0 for p in topic.partitions) for topic in answer.topics
                ):
                    return
                await asyncio.sleep(backoff.next_s())
    except (ClientError, TimeoutError):
        return  # the topics exist, even if the metadata do not have them yet


async def delete(cluster: Cluster, wanted: Iterable[str]) -> None:
    request = M.DeleteTopicsRequest

    async def attempt(left: list[str]) -> dict[str, ClientError | None]:
        connection = await cluster.controller()
        message = request(timeout_ms=given_ms(cluster))
        if connection.version_of(ApiKey.DELETE_TOPICS) >= 6:
            message.topics = [request.DeleteTopicState(name=name) for name in left]
        else:
            message.topic_names = left
        answer = await ask_controller(cluster, message, connection)
        return {
            each.name: controllers_answer(cluster, each.error_code, each.error_message, f"topic {each.name!r}", None)
            for each in answer.responses
        }

    await call_for_each(cluster, wanted, attempt)


async def create_partitions(
    cluster: Cluster, topic: str, total: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool
) -> None:
    request = M.CreatePartitionsRequest
    assigned = [request.CreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in assignments or ()]
    grown = request.CreatePartitionsTopic(name=topic, count=total, assignments=assigned or None)

    async def attempt(left: list[str]) -> dict[str, ClientError | None]:
        message = request(topics=[grown], timeout_ms=given_ms(cluster), validate_only=validate_only)
        answer = await ask_controller(cluster, message)
        return {
            each.name: controllers_answer(cluster, each.error_code, each.error_message, f"topic {each.name!r}", None)
            for each in answer.results
        }

    await call_for_each(cluster, [topic], attempt)
