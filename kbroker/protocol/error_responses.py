"""The response to a request that fails as a whole, built as Kafka's request classes build it.

`error_response` is for errors before or outside a request's handler: an unserved version, a refused principal, a
handler that raised. A handler puts errors of single topics or partitions into its own response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.errors import ErrorCode, client_text
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, response_class

# (version, request, code, text) -> response
Builder = Callable[[int, Any, ErrorCode, str | None], M.Message | None]


def error_response(
    api_key: ApiKey, version: int, request: M.Message, code: ErrorCode, text: str | None = None
) -> M.Message | None:
    """Return the response with `code` in each of its error codes; None if the request expects no response (acks=0).

    `text` is for the client's log; it is sent if the version has an error message. For UNKNOWN_SERVER_ERROR, our own
    mistakes, clients get no text.
    """
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        text = None
    return BUILDERS[api_key](version, request, code, client_text(text) if text else text)


# --- one code at the top ----------------------------------------------------------------------------------------------


def _top_level(api_key: ApiKey, **values: Any) -> Builder:
    """Build responses with an error code at the top. `values` are fields that differ from the protocol's defaults."""

    def build(version: int, request: Any, code: ErrorCode, text: str | None) -> M.Message:
        cls: Any = response_class(api_key)
        return cls(error_code=code, **values)  # type: ignore[no-any-return]

    return build


def _top_level_with_text(api_key: ApiKey) -> Builder:

    def build(version: int, request: Any, code: ErrorCode, text: str | None) -> M.Message:
        cls: Any = response_class(api_key)
        return cls(error_code=code, error_message=text)  # type: ignore[no-any-return]

    return build


def _api_versions(version: int, request: M.ApiVersionsRequest, code: ErrorCode, text: str | None) -> M.Message:
    """Build an ApiVersions response. With UNSUPPORTED_VERSION it has the served versions of ApiVersions (KIP-511)."""
    response = M.ApiVersionsResponse(error_code=code)
    if code == ErrorCode.UNSUPPORTED_VERSION:
        served = SERVED[ApiKey.API_VERSIONS]
        one = response.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=served.min, max_version=served.max)
        response.api_keys = [one]
    return response


def _join_group(version: int, request: M.JoinGroupRequest, code: ErrorCode, text: str | None) -> M.Message:
    return M.JoinGroupResponse(error_code=code, protocol_name=None if version >= 7 else "")


# --- one code per topic, partition, group or resource -----------------------------------------------------------------


def _each_partition(response: type[M.Message], topic_result: str, partition_result: str, **values: Any) -> Builder:
    """Build responses with an error code for each of the request's partitions.

    `values` are further fields of a partition's result.
    """

    def build(version: int, request: Any, code: ErrorCode, text: str | None) -> M.Message:
        topic_class, partition_class = getattr(response, topic_result), getattr(response, partition_result)
        built: Any = response()
        for topic in request.topics:
            partitions = [
                partition_class(partition_index=one.partition_index, error_code=code, **values)
                for one in topic.partitions
            ]
            built.topics.append(topic_class(name=topic.name, partitions=partitions))
        return built  # type: ignore[no-any-return]

    return build


def _produce(version: int, request: M.ProduceRequest, code: ErrorCode, text: str | None) -> M.Message | None:
    if request.acks == 0:
        return None
    response = M.ProduceResponse()
    for topic in request.topic_data:
        partitions = [
            response.PartitionProduceResponse(
                index=data.index, error_code=code, base_offset=-1, log_start_offset=-1, error_message=text
            )
            for data in topic.partition_data
        ]
        response.responses.append(response.TopicProduceResponse(name=topic.name, partition_responses=partitions))
    return response


def _fetch(version: int, request: M.FetchRequest, code: ErrorCode, text: str | None) -> M.Message:
    """Build a Fetch response: a code at the top from version 7 on, and one per partition before version 13."""
    response = M.FetchResponse(error_code=code if version >= 7 else 0, session_id=request.session_id)
    if version < 13:
        for topic in request.topics:
            partitions = [
                response.PartitionData(partition_index=one.partition, error_code=code, high_watermark=-1)
                for one in topic.partitions
            ]
            response.responses.append(response.FetchableTopicResponse(topic=topic.topic, partitions=partitions))
    return response


def _leader_and_isr(version: int, request: M.LeaderAndIsrRequest, code: ErrorCode, text: str | None) -> M.Message:
    """Build a LeaderAndIsr response with the code at the top and for each partition, by topic id from version 5 on."""
    R = M.LeaderAndIsrResponse
    response = R(error_code=code)
    for topic in request.topic_states:
        parts = [
            R.LeaderAndIsrPartitionError(
                topic_name=topic.topic_name if version < 5 else "", partition_index=one.partition_index, error_code=code
            )
            for one in topic.partition_states
        ]
        if version < 5:
            response.partition_errors += parts
        else:
            response.topics.append(R.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=parts))
    response.partition_errors += [
        R.LeaderAndIsrPartitionError(topic_name=one.topic_name, partition_index=one.partition_index, error_code=code)
        for one in request.ungrouped_partition_states
    ]
    return response


def _stop_replica(version: int, request: M.StopReplicaRequest, code: ErrorCode, text: str | None) -> M.Message:
    R = M.StopReplicaResponse
    asked = [
        *((one.topic_name, one.partition_index) for one in request.ungrouped_partitions),
        *((topic.name, partition_id) for topic in request.topics for partition_id in topic.partition_indexes),
        *((topic.topic_name, one.partition_index) for topic in request.topic_states for one in topic.partition_states),
    ]
    errors = [
        R.StopReplicaPartitionError(topic_name=name, partition_index=partition_id, error_code=code)
        for name, partition_id in asked
    ]
    return R(error_code=code, partition_errors=errors)


def _metadata(version: int, request: M.MetadataRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.MetadataResponse()
    for topic in request.topics or ():
        response.topics.append(
            response.MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
        )
    return response


def _offset_fetch(version: int, request: M.OffsetFetchRequest, code: ErrorCode, text: str | None) -> M.Message:
    """Build an OffsetFetch response: a code per partition before version 2, one at the top before 8, then per group."""
    response = M.OffsetFetchResponse(error_code=code if version < 8 else 0)
    if version >= 8:
        response.groups = [
            response.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups
        ]
    elif version < 2:
        for topic in request.topics or ():
            partitions = [
                response.OffsetFetchResponsePartition(
                    partition_index=one, committed_offset=-1, metadata="", error_code=code
                )
                for one in topic.partition_indexes
            ]
            response.topics.append(response.OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return response


def _find_coordinator(version: int, request: M.FindCoordinatorRequest, code: ErrorCode, text: str | None) -> M.Message:
    if version >= 4:
        response = M.FindCoordinatorResponse()
        response.coordinators = [
            response.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)
            for key in request.coordinator_keys
        ]
    else:
        response = M.FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, host="", port=-1)
    return response


def _describe_groups(version: int, request: M.DescribeGroupsRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.DescribeGroupsResponse()
    response.groups = [response.DescribedGroup(group_id=group, error_code=code) for group in request.groups]
    return response


def _consumer_group_describe(
    version: int, request: M.ConsumerGroupDescribeRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.ConsumerGroupDescribeResponse()
    response.groups = [response.DescribedGroup(group_id=group, error_code=code) for group in request.group_ids]
    return response


def _create_topics(version: int, request: M.CreateTopicsRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.CreateTopicsResponse()
    response.topics = [
        response.CreatableTopicResult(name=topic.name, error_code=code, error_message=text) for topic in request.topics
    ]
    return response


def _delete_topics(version: int, request: M.DeleteTopicsRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.DeleteTopicsResponse()
    if version >= 6:
        response.responses = [
            response.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in request.topics
        ]
    else:
        response.responses = [response.DeletableTopicResult(name=name, error_code=code) for name in request.topic_names]
    return response


def _offset_for_leader_epoch(
    version: int, request: M.OffsetForLeaderEpochRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.OffsetForLeaderEpochResponse()
    for topic in request.topics:
        partitions = [response.EpochEndOffset(partition=one.partition, error_code=code) for one in topic.partitions]
        response.topics.append(response.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return response


def _describe_configs(version: int, request: M.DescribeConfigsRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.DescribeConfigsResponse()
    response.results = [
        response.DescribeConfigsResult(
            error_code=code, error_message=text, resource_type=one.resource_type, resource_name=one.resource_name
        )
        for one in request.resources
    ]
    return response


def _alter_configs(version: int, request: M.AlterConfigsRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.AlterConfigsResponse()
    response.responses = [
        response.AlterConfigsResourceResponse(
            error_code=code, error_message=text, resource_type=one.resource_type, resource_name=one.resource_name
        )
        for one in request.resources
    ]
    return response


def _incremental_alter_configs(
    version: int, request: M.IncrementalAlterConfigsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.IncrementalAlterConfigsResponse()
    response.responses = [
        response.AlterConfigsResourceResponse(
            error_code=code, error_message=text, resource_type=one.resource_type, resource_name=one.resource_name
        )
        for one in request.resources
    ]
    return response


def _elect_leaders(version: int, request: M.ElectLeadersRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.ElectLeadersResponse(error_code=code if version >= 1 else ErrorCode.NONE)
    response.replica_election_results = [
        response.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                response.PartitionResult(partition_id=each, error_code=code, error_message=text)
                for each in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return response


def _alter_partition_reassignments(
    version: int, request: M.AlterPartitionReassignmentsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.AlterPartitionReassignmentsResponse(error_code=code, error_message=text)
    response.responses = [
        response.ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                response.ReassignablePartitionResponse(
                    partition_index=each.partition_index, error_code=code, error_message=text
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return response


def _list_partition_reassignments(
    version: int, request: M.ListPartitionReassignmentsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.ListPartitionReassignmentsResponse(error_code=code, error_message=text)
    response.topics = [
        response.OngoingTopicReassignment(
            name=topic.name,
            partitions=[
                response.OngoingPartitionReassignment(partition_index=each) for each in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return response


def _create_partitions(
    version: int, request: M.CreatePartitionsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.CreatePartitionsResponse()
    response.results = [
        response.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=text)
        for topic in request.topics
    ]
    return response


def _delete_groups(version: int, request: M.DeleteGroupsRequest, code: ErrorCode, text: str | None) -> M.Message:
    response = M.DeleteGroupsResponse()
    response.results = [
        response.DeletableGroupResult(group_id=group, error_code=code) for group in request.groups_names
    ]
    return response


def _add_partitions_to_txn(
    version: int, request: M.AddPartitionsToTxnRequest, code: ErrorCode, text: str | None
) -> M.Message:
    """Build an AddPartitionsToTxn response: a code per partition before version 4, then only one at the top."""
    response = M.AddPartitionsToTxnResponse(error_code=code if version >= 4 else 0)
    if version < 4:
        for topic in request.v3_and_below_topics:
            partitions = [
                response.AddPartitionsToTxnPartitionResult(partition_index=one, partition_error_code=code)
                for one in topic.partitions
            ]
            response.results_by_topic_v3_and_below.append(
                response.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=partitions)
            )
    return response


def _write_txn_markers(version: int, request: M.WriteTxnMarkersRequest, code: ErrorCode, text: str | None) -> M.Message:
    """Build a WriteTxnMarkers response: each producer appears once, with its last marker."""
    producers: dict[int, dict[str, dict[int, None]]] = {}
    for marker in request.markers:
        topics: dict[str, dict[int, None]] = {}
        producers[marker.producer_id] = topics
        for topic in marker.topics:
            topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    response = M.WriteTxnMarkersResponse()
    for producer_id, topics in producers.items():
        results = []
        for name, partition_ids in topics.items():
            partitions = [
                response.WritableTxnMarkerPartitionResult(partition_index=one, error_code=code) for one in partition_ids
            ]
            results.append(response.WritableTxnMarkerTopicResult(name=name, partitions=partitions))
        response.markers.append(response.WritableTxnMarkerResult(producer_id=producer_id, topics=results))
    return response


def _alter_replica_log_dirs(
    version: int, request: M.AlterReplicaLogDirsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.AlterReplicaLogDirsResponse()
    for topic in (topic for directory in request.dirs for topic in directory.topics):
        partitions = [
            response.AlterReplicaLogDirPartitionResult(partition_index=one, error_code=code) for one in topic.partitions
        ]
        response.results.append(response.AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=partitions))
    return response


def _describe_producers(
    version: int, request: M.DescribeProducersRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.DescribeProducersResponse()
    for topic in request.topics:
        partitions = [
            response.PartitionResponse(partition_index=one, error_code=code) for one in topic.partition_indexes
        ]
        response.topics.append(response.TopicResponse(name=topic.name, partitions=partitions))
    return response


def _describe_transactions(
    version: int, request: M.DescribeTransactionsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.DescribeTransactionsResponse()
    response.transaction_states = [
        response.TransactionState(transactional_id=transactional_id, error_code=code)
        for transactional_id in request.transactional_ids
    ]
    return response


def _describe_topic_partitions(
    version: int, request: M.DescribeTopicPartitionsRequest, code: ErrorCode, text: str | None
) -> M.Message:
    response = M.DescribeTopicPartitionsResponse()
    response.topics = [
        response.DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code) for topic in request.topics
    ]
    return response


BUILDERS: dict[ApiKey, Builder] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _each_partition(
        M.ListOffsetsResponse, "ListOffsetsTopicResponse", "ListOffsetsPartitionResponse"
    ),
    ApiKey.METADATA: _metadata,
    ApiKey.LEADER_AND_ISR: _leader_and_isr,
    ApiKey.STOP_REPLICA: _stop_replica,
    ApiKey.UPDATE_METADATA: _top_level(ApiKey.UPDATE_METADATA),
    ApiKey.CONTROLLED_SHUTDOWN: _top_level(ApiKey.CONTROLLED_SHUTDOWN),
    ApiKey.OFFSET_COMMIT: _each_partition(
        M.OffsetCommitResponse, "OffsetCommitResponseTopic", "OffsetCommitResponsePartition"
    ),
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.HEARTBEAT: _top_level(ApiKey.HEARTBEAT),
    ApiKey.LEAVE_GROUP: _top_level(ApiKey.LEAVE_GROUP),
    ApiKey.SYNC_GROUP: _top_level(ApiKey.SYNC_GROUP),
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _top_level(ApiKey.LIST_GROUPS),
    ApiKey.SASL_HANDSHAKE: _top_level(ApiKey.SASL_HANDSHAKE),
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _each_partition(
        M.DeleteRecordsResponse, "DeleteRecordsTopicResult", "DeleteRecordsPartitionResult", low_watermark=-1
    ),
    ApiKey.INIT_PRODUCER_ID: _top_level(ApiKey.INIT_PRODUCER_ID, producer_epoch=-1),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: _top_level(ApiKey.ADD_OFFSETS_TO_TXN),
    ApiKey.END_TXN: _top_level(ApiKey.END_TXN),
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: _each_partition(
        M.TxnOffsetCommitResponse, "TxnOffsetCommitResponseTopic", "TxnOffsetCommitResponsePartition"
    ),
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: _top_level(ApiKey.DESCRIBE_LOG_DIRS),
    ApiKey.SASL_AUTHENTICATE: _top_level_with_text(ApiKey.SASL_AUTHENTICATE),
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _list_partition_reassignments,
    ApiKey.OFFSET_DELETE: _top_level(ApiKey.OFFSET_DELETE),
    ApiKey.DESCRIBE_QUORUM: _top_level_with_text(ApiKey.DESCRIBE_QUORUM),
    ApiKey.ALTER_PARTITION: _top_level(ApiKey.ALTER_PARTITION),
    ApiKey.UPDATE_FEATURES: _top_level_with_text(ApiKey.UPDATE_FEATURES),
    ApiKey.DESCRIBE_CLUSTER: _top_level_with_text(ApiKey.DESCRIBE_CLUSTER),
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _top_level(ApiKey.LIST_TRANSACTIONS),
    ApiKey.ALLOCATE_PRODUCER_IDS: _top_level(ApiKey.ALLOCATE_PRODUCER_IDS),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _top_level(ApiKey.CONSUMER_GROUP_HEARTBEAT),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_group_describe,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _top_level(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS),
    ApiKey.LIST_CONFIG_RESOURCES: _top_level(ApiKey.LIST_CONFIG_RESOURCES),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
}
