"""Elections of leaders (KIP-460), and replicas that move to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kbroker.client.admin.controller import ask_controller, controllers_answer, given_ms
from kbroker.client.admin.items import call_for_each, missing_answer, numbers_by_topic, results_of
from kbroker.client.admin.offsets import offsets_on
from kbroker.client.admin.results import FetchedBatches, Reassignment
from kbroker.client.errors import BrokerError, ClientError, raise_for
from kbroker.client.network.cluster import Cluster
from kbroker.client.network.connection import Connection
from kbroker.errors import ErrorCode
from kbroker.model import EARLIEST_TIMESTAMP, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

PREFERRED, UNCLEAN = 0, 1  #: types of election in ElectLeaders
FROM_FOLLOWERS_SINCE = 11  #: the version of Fetch with which consumers may read from followers


async def elect(
    cluster: Cluster, partitions: Collection[TopicPartition] | None, *, unclean: bool
) -> dict[TopicPartition, bool]:
    request = M.ElectLeadersRequest

    async def attempt(left: Sequence[TopicPartition] | None) -> dict[TopicPartition, bool | ClientError]:
        wanted = None
        if left is not None:
            wanted = [
                request.TopicPartitions(topic=topic, partitions=numbers)
                for topic, numbers in numbers_by_topic(left).items()
            ]
        message = request(
            election_type=UNCLEAN if unclean else PREFERRED, topic_partitions=wanted, timeout_ms=given_ms(cluster)
        )
        answer = await ask_controller(cluster, message)
        raise_for(answer.error_code, None, "the election")
        found: dict[TopicPartition, bool | ClientError] = {}
        for topic in answer.replica_election_results:
            for one in topic.partition_result:
                at = TopicPartition(topic.topic, one.partition_id)
                if one.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                    found[at] = False
                else:
                    found[at] = controllers_answer(cluster, one.error_code, one.error_message, str(at), True)
        return found

    if partitions is not None:
        return await call_for_each(cluster, partitions, attempt)
    results = await cluster.retried(lambda: attempt(None))

    async def known(left: list[TopicPartition]) -> dict[TopicPartition, bool | ClientError]:
        return {each: results[each] for each in left}

    return await call_for_each(cluster, results, known)


async def reassign(cluster: Cluster, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    request = M.AlterPartitionReassignmentsRequest

    async def attempt(left: list[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        topics = [
            request.ReassignableTopic(
                name=topic,
                partitions=[
                    request.ReassignablePartition(partition_index=number, replicas=_listed(wanted, topic, number))
                    for number in numbers
                ],
            )
            for topic, numbers in numbers_by_topic(left).items()
        ]
        message = request(topics=topics, timeout_ms=given_ms(cluster))
        answer = await ask_controller(cluster, message)
        raise_for(answer.error_code, answer.error_message, "the reassignment")
        return {
            at: controllers_answer(cluster, one.error_code, one.error_message, str(at), None)
            for topic in answer.responses
            for one in topic.partitions
            for at in [TopicPartition(topic.name, one.partition_index)]
        }

    await call_for_each(cluster, wanted, attempt)


def _listed(wanted: Mapping[TopicPartition, Sequence[int] | None], topic: str, number: int) -> list[int] | None:
    replicas = wanted[TopicPartition(topic, number)]
    return None if replicas is None else list(replicas)


async def reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, Reassignment]:
    request = M.ListPartitionReassignmentsRequest
    wanted = None
    if partitions is not None:
        wanted = [
            request.ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in numbers_by_topic(partitions).items()
        ]

    async def attempt() -> dict[TopicPartition, Reassignment]:
        message = request(topics=wanted, timeout_ms=given_ms(cluster))
        answer = await ask_controller(cluster, message)
        raise_for(answer.error_code, answer.error_message, "the list of reassignments")
        return {
            TopicPartition(topic.name, one.partition_index): Reassignment(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in answer.topics
            for one in topic.partitions
        }

    return await cluster.retried(attempt)


async def fetch(
    cluster: Cluster, partition: TopicPartition, node_id: int, offset: int, max_bytes: int
) -> FetchedBatches:
    request = M.FetchRequest

    async def ask(connection: Connection, at: int, at_most: int) -> Any:
        part = request.FetchPartition(
            partition=partition.partition_id, fetch_offset=at, partition_max_bytes=at_most, log_start_offset=-1
        )
        message = request(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=at_most,
            session_epoch=-1,
            topics=[request.FetchTopic(topic=partition.topic, partitions=[part])],
        )
        answer = await connection.call(message)
        raise_for(answer.error_code, None, str(partition))
        found = next((each for topic in answer.responses for each in topic.partitions), None)
        if found is None:
            raise missing_answer(partition)
        return found

    async def attempt() -> FetchedBatches:
        connection = await cluster.connection(node_id)
        if connection.version_of(ApiKey.FETCH) < FROM_FOLLOWERS_SINCE:
            raise BrokerError(
                f"{connection.address} lets no consumer read from followers: it serves Fetch up to version "
                f"{connection.version_of(ApiKey.FETCH)} only, {FROM_FOLLOWERS_SINCE} is needed",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        what = f"{partition} on broker {node_id}"
        found = await ask(connection, offset, max_bytes)
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:  # with it brokers tell no offsets
            starts = results_of(await offsets_on(cluster, node_id, [partition], EARLIEST_TIMESTAMP))
            (start,) = starts.values()
            found = await ask(connection, start, 1)
            raise_for(found.error_code, None, what)
            return FetchedBatches(b"", found.high_watermark, found.log_start_offset)
        raise_for(found.error_code, None, what)
        return FetchedBatches(bytes(found.records or b""), found.high_watermark, found.log_start_offset)

    return await cluster.retried(attempt)
