"""The controller's requests and brokers' answers, between values (`rules/controller/commands.py`) and the protocol.

The versions are those of inter.broker.protocol.version 3.4 to 3.9. They are fixed, not negotiated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller.commands import (
    ControlRequest,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    LeaderAndIsrState,
    MetadataState,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from kbroker.rules.controller.values import Broker

LEADER_AND_ISR_VERSION = 7
STOP_REPLICA_VERSION = 4
UPDATE_METADATA_VERSION = 8

T = TypeVar("T")

_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

_Roles = M.LeaderAndIsrRequest
_Metadata = M.UpdateMetadataRequest
_Stops = M.StopReplicaRequest
_Role: TypeAlias = M.LeaderAndIsrRequest.LeaderAndIsrPartitionState
_MetadataTopic: TypeAlias = M.UpdateMetadataRequest.UpdateMetadataTopicState


def version_of(request: ControlRequest) -> int:
    if isinstance(request, LeaderAndIsr):
        return LEADER_AND_ISR_VERSION
    return UPDATE_METADATA_VERSION if isinstance(request, UpdateMetadata) else STOP_REPLICA_VERSION


class Made:
    """Parts of messages that requests for several brokers share. To be used for requests that were made together."""

    def __init__(self) -> None:
        self.roles: dict[tuple[TopicPartition, LeaderAndIsrState], _Role] = {}
        self.metadata: dict[int, tuple[Mapping[TopicPartition, MetadataState], list[_MetadataTopic]]] = {}


def message_of(controller_id: int, listener: str, request: ControlRequest, made: Made) -> M.Message:
    """Return the message of a request. `listener`: the name of the one at which brokers reach each other."""
    if isinstance(request, LeaderAndIsr):
        return _roles_message(controller_id, listener, request, made)
    if isinstance(request, UpdateMetadata):
        return _metadata_message(controller_id, request, made)
    return _stops_message(controller_id, request)


def _by_topic(partitions: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    found: dict[str, list[tuple[int, T]]] = {}
    for partition, value in partitions.items():
        found.setdefault(partition.topic, []).append((partition.partition_id, value))
    return found


def _roles_message(controller_id: int, listener: str, request: LeaderAndIsr, made: Made) -> M.LeaderAndIsrRequest:
    topics = [
        _Roles.LeaderAndIsrTopicState(
            topic_name=topic,
            topic_id=request.topic_ids.get(topic, NO_UUID).bytes,
            partition_states=[_role(made, TopicPartition(topic, each), state) for each, state in states],
        )
        for topic, states in _by_topic(request.partitions).items()
    ]
    return _Roles(
        controller_id=controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=topics,
        live_leaders=list(_leaders(request.leaders, listener)),
    )


def _role(made: Made, partition: TopicPartition, told: LeaderAndIsrState) -> _Role:
    role = made.roles.get((partition, told))
    if role is not None:
        return role
    state, assignment = told.state, told.assignment
    role = made.roles[partition, told] = _Roles.LeaderAndIsrPartitionState(
        partition_index=partition.partition_id,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding),
        removing_replicas=list(assignment.removing),
        is_new=told.is_new,
        leader_recovery_state=state.recovery,
    )
    return role


def _leaders(brokers: Iterable[Broker], listener: str) -> Iterable[M.LeaderAndIsrRequest.LeaderAndIsrLiveLeader]:
    for broker in brokers:
        endpoint = broker.endpoint(listener)
        if endpoint is not None:
            yield _Roles.LeaderAndIsrLiveLeader(broker_id=broker.broker_id, host_name=endpoint.host, port=endpoint.port)


def _metadata_message(controller_id: int, request: UpdateMetadata, made: Made) -> M.UpdateMetadataRequest:
    return _Metadata(
        controller_id=controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=_metadata_topics(request, made),
        live_brokers=[_broker(each) for each in request.brokers],
    )


def _metadata_topics(request: UpdateMetadata, made: Made) -> list[_MetadataTopic]:
    """Return the states of partitions, which all brokers are told alike."""
    found = made.metadata.get(id(request.partitions))
    if found is not None:
        return found[1]
    topics = [
        _Metadata.UpdateMetadataTopicState(
            topic_name=topic,
            topic_id=request.topic_ids.get(topic, NO_UUID).bytes,
            partition_states=[_metadata(partition_id, state) for partition_id, state in states],
        )
        for topic, states in _by_topic(request.partitions).items()
    ]
    # With the mapping, which therefore keeps its id.
    made.metadata[id(request.partitions)] = request.partitions, topics
    return topics


def _metadata(partition_id: int, told: MetadataState) -> M.UpdateMetadataRequest.UpdateMetadataPartitionState:
    state = told.state
    return _Metadata.UpdateMetadataPartitionState(
        partition_index=partition_id,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=state.partition_epoch,
        replicas=list(told.replicas),
        offline_replicas=list(told.offline),
    )


def _broker(broker: Broker) -> M.UpdateMetadataRequest.UpdateMetadataBroker:
    endpoints = [
        _Metadata.UpdateMetadataEndpoint(
            port=each.port,
            host=each.host,
            listener=each.listener,
            security_protocol=_PROTOCOLS.get(each.security_protocol, 0),
        )
        for each in broker.endpoints
    ]
    return _Metadata.UpdateMetadataBroker(id=broker.broker_id, endpoints=endpoints, rack=broker.rack)


def _stops_message(controller_id: int, request: StopReplica) -> M.StopReplicaRequest:
    topics = [
        _Stops.StopReplicaTopicState(
            topic_name=topic,
            partition_states=[
                _Stops.StopReplicaPartitionState(
                    partition_index=partition_id, leader_epoch=stop.leader_epoch, delete_partition=stop.is_deletion
                )
                for partition_id, stop in stops
            ],
        )
        for topic, stops in _by_topic(request.partitions).items()
    ]
    return _Stops(
        controller_id=controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topic_states=topics,
    )


def roles_answer(
    broker_id: int, request: LeaderAndIsr, answer: M.LeaderAndIsrResponse, names: Mapping[UUID, str]
) -> LeaderAndIsrAnswer:
    """Return a broker's answer as a value. `names`: topics by their ids. Topics unknown by now are left out."""
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic in answer.topics:
        name = names.get(UUID(bytes=topic.topic_id))
        if name is not None:
            for each in topic.partition_errors:
                errors[TopicPartition(name, each.partition_index)] = _code(each.error_code)
    epochs = {partition: told.state.leader_epoch for partition, told in request.partitions.items()}
    return LeaderAndIsrAnswer(broker_id, request.broker_epoch, _code(answer.error_code), errors, epochs)


def stops_answer(broker_id: int, request: StopReplica, answer: M.StopReplicaResponse) -> StopReplicaAnswer:
    """Return a broker's answer for the replicas that it was told to delete."""
    told = {TopicPartition(each.topic_name, each.partition_index): each for each in answer.partition_errors}
    errors = {
        partition: _code(told[partition].error_code)
        for partition, stop in request.partitions.items()
        if stop.is_deletion and partition in told
    }
    code = _code(answer.error_code)
    if code:
        # An error for the whole request has no partitions in some brokers' answers.
        deleted = [partition for partition, stop in request.partitions.items() if stop.is_deletion]
        errors = dict.fromkeys(deleted, code)
    return StopReplicaAnswer(broker_id, request.broker_epoch, code, errors)


def _code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
