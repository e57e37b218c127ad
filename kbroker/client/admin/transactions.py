"""Transactional ids, and the producers of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from itertools import chain

from kbroker.client.admin.items import call_all_nodes, call_coordinators, call_leaders, call_node, value_or_error
from kbroker.client.admin.results import ProducerState, TransactionDescription, TransactionListing
from kbroker.client.errors import BrokerError, ClientError, raise_for, refusal
from kbroker.client.network.cluster import COORDINATOR, TRANSACTION, Cluster
from kbroker.client.network.connection import Connection
from kbroker.client.prepared_transaction import LAST_VERSION_1, PreparedTransaction
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

FENCING_TIMEOUT_MS = 60_000
"""The transaction timeout of the InitProducerId that fences. No transaction follows, so any allowed value will do."""


async def listing(
    cluster: Cluster, states: Collection[str], producer_ids: Collection[int], older_than_ms: int
) -> list[TransactionListing]:
    async def ask(node_id: int) -> list[TransactionListing]:
        message = M.ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=older_than_ms
        )
        answer = await cluster.call(message, node_id)
        raise_for(answer.error_code, None, f"transactions of broker {node_id}")
        if answer.unknown_state_filters:
            unknown = ", ".join(answer.unknown_state_filters)
            raise BrokerError(f"no transaction has the state {unknown}", code=ErrorCode.INVALID_REQUEST)
        return [
            TransactionListing(each.transactional_id, each.producer_id, each.transaction_state, node_id)
            for each in answer.transaction_states
        ]

    by_node = await call_all_nodes(cluster, ask)
    return sorted(chain.from_iterable(by_node.values()), key=lambda each: each.transactional_id)


async def describe(cluster: Cluster, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
    async def attempt(node_id: int, theirs: list[str]) -> dict[str, TransactionDescription | ClientError]:
        message = M.DescribeTransactionsRequest(transactional_ids=theirs)
        answer = await cluster.call(message, node_id, COORDINATOR)
        found: dict[str, TransactionDescription | ClientError] = {}
        for state in answer.transaction_states:
            described = TransactionDescription(
                state.transactional_id,
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms,
                tuple(TopicPartition(each.topic, n) for each in state.topics for n in each.partitions),
                node_id,
            )
            what = f"transactional id {state.transactional_id!r}"
            found[state.transactional_id] = value_or_error(state.error_code, None, what, described)
        return found

    return await call_coordinators(cluster, transactional_ids, TRANSACTION, attempt)


async def fence(cluster: Cluster, transactional_ids: Iterable[str]) -> None:
    async def attempt(node_id: int, theirs: list[str]) -> dict[str, ClientError | None]:
        found: dict[str, ClientError | None] = {}
        for each in theirs:
            message = M.InitProducerIdRequest(transactional_id=each, transaction_timeout_ms=FENCING_TIMEOUT_MS)
            answer = await cluster.call(message, node_id, COORDINATOR)
            found[each] = value_or_error(answer.error_code, None, f"transactional id {each!r}", None)
        return found

    await call_coordinators(cluster, transactional_ids, TRANSACTION, attempt)


async def end(cluster: Cluster, prepared: Iterable[PreparedTransaction], committed: bool) -> None:
    wanted = {each.transactional_id: each for each in prepared}

    async def end_one(connection: Connection, one: PreparedTransaction) -> ClientError | None:
        version = connection.version_of(ApiKey.END_TXN)
        message = M.EndTxnRequest(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            committed=committed,
        )
        if one.version == 1:
            version = min(version, LAST_VERSION_1[ApiKey.END_TXN])
        answer = await connection.call(message, version=version)
        return value_or_error(answer.error_code, None, f"transactional id {one.transactional_id!r}", None)

    async def attempt(node_id: int, theirs: list[str]) -> dict[str, ClientError | None]:
        connection = await cluster.connection(node_id, COORDINATOR)
        answers = await asyncio.gather(*(end_one(connection, wanted[each]) for each in theirs))
        return dict(zip(theirs, answers, strict=True))

    await call_coordinators(cluster, wanted, TRANSACTION, attempt)


async def producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], node_id: int | None
) -> dict[TopicPartition, tuple[ProducerState, ...]]:
    request = M.DescribeProducersRequest

    async def attempt(
        node_id: int, theirs: dict[str, list[int]]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | ClientError]:
        topics = [request.TopicRequest(name=topic, partition_indexes=numbers) for topic, numbers in theirs.items()]
        answer = await cluster.call(request(topics=topics), node_id)
        found: dict[TopicPartition, tuple[ProducerState, ...] | ClientError] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                states = tuple(
                    ProducerState(
                        each.producer_id,
                        each.producer_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.coordinator_epoch,
                        each.current_txn_start_offset,
                    )
                    for each in partition.active_producers
                )
                found[where] = value_or_error(partition.error_code, partition.error_message, str(where), states)
        return found

    if node_id is not None:
        return await call_node(cluster, node_id, partitions, attempt)
    return await call_leaders(cluster, partitions, attempt)


async def abort(cluster: Cluster, partition: TopicPartition, producer: ProducerState) -> None:
    request = M.WriteTxnMarkersRequest
    marker = request.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[request.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition_id])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )

    async def attempt(node_id: int, theirs: dict[str, list[int]]) -> dict[TopicPartition, ClientError | None]:
        answer = await cluster.call(request(markers=[marker]), node_id)
        codes = [each.error_code for row in answer.markers for topic in row.topics for each in topic.partitions]
        failed = next((code for code in codes if code), 0)
        return {partition: refusal(failed, None, f"transaction of {partition}") if failed else None}

    await call_leaders(cluster, [partition], attempt)
