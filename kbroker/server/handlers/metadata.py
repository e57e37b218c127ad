"""Metadata, key 3, versions 0 to 12: the brokers, the topics, and the leader of each partition.

Topics that do not exist are created before the answer, if auto.create.topics.enable and the request allow it (a request
of v0 to v3 always does), and are in the answer. (Kafka answers UNKNOWN_TOPIC_OR_PARTITION once, and the client asks
again.) A topic that cannot be created is answered as one that does not exist. In a cluster a new topic gets its leaders
from the controller: it is LEADER_NOT_AVAILABLE until then, as in Kafka; and where there are fewer brokers than it is to
have replicas, it is INVALID_REPLICATION_FACTOR.
Leaves out: nothing.

v0   first; an empty list asks for all topics; replicas that the client cannot reach are left out, and their partition
     is REPLICA_NOT_AVAILABLE
v1   controller id, rack, internal topics; null asks for all topics, an empty list for none
v2   cluster id (KIP-78)
v3   throttle time (KIP-124)
v4   the client may forbid the creation of topics (KIP-204)
v5   offline replicas (KIP-112)
v6   as v5; the throttle is applied after the response; LISTENER_NOT_FOUND for a leader that lacks the client's listener
     (LEADER_NOT_AVAILABLE before)
v7   leader epoch (KIP-320)
v8   authorized operations (KIP-430)
v9   flexible
v10  topic ids (KIP-516)
v11  no authorized operations of the cluster (KIP-700)
v12  topics asked for by id
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker._core.server.request import Request
from kbroker.cluster.image import NO_LEADER, MetadataImage, Partition, Topic
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import INTERNAL_TOPICS
from kbroker.protocol import messages as M
from kbroker.rules.topic_names import missing_topic_error
from kbroker.server.handlers.shared import authorized_operations
from kbroker.server.handlers.shared.changes import log_change
from kbroker.server.handlers.shared.reachable_brokers import ReachableBroker, reachable_brokers
from kbroker.server.handlers.shared.services import Services

log = logging.getLogger(__name__)

R = M.MetadataResponse
TopicPart = M.MetadataResponse.MetadataResponseTopic

FIRST_VERSION_WITH_CHOICE = 4
FIRST_VERSION_WITH_LISTENER_ERROR = 6
FIRST_VERSION_WITH_IDS = 10
FIRST_VERSION_BY_ID = 12
NO_ID = bytes(16)

MAX_REFUSALS_SAID = 5
"""How many topics of one request the log names when they cannot be created."""

TOLD_BY_MEMBERS = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_TOPIC_EXCEPTION)
"""Why a topic is not created, as a member of a cluster answers it. A broker that is alone answers that the topic does
not exist, as Kafka's KRaft mode."""

MAX_CACHED_PARTS = 8
"""Parts of an answer that are kept per topic, one for each set of brokers that clients reach."""

MAX_CACHED_BODIES = 8
"""Encoded answers for all topics that are kept per metadata image, one for each version, set of broker endpoints and
choice of authorized operations. With 5,000 partitions one has 300 KB."""


def blocks(services: Services, request: Request, message: M.MetadataRequest) -> bool:
    """Whether a topic would have to be created first."""
    if message.topics is None or not _may_create(services, message, request.api_version):
        return False
    cluster = services.cluster
    untold, topics = cluster.untold, cluster.image.topics
    return any(asked.name and asked.name not in topics and asked.name not in untold for asked in message.topics)


def handle(services: Services, request: Request, message: M.MetadataRequest) -> M.MetadataResponse | None:
    version = request.api_version
    untold = services.cluster.untold
    image = services.cluster.image
    brokers = reachable_brokers(services, image, request.connection)
    if message.topics is None or (version == 0 and not message.topics):
        reach = _reach(services, image, brokers, version)
        request.respond(_body_for_all(image, brokers, message, version, reach, untold))
        return None
    if version >= FIRST_VERSION_WITH_IDS:
        _check_ids(message.topics, version)
    ids = [asked.topic_id for asked in message.topics if asked.topic_id != NO_ID]
    reach = _reach(services, image, brokers, version)
    if ids:
        found = [_by_id(image, topic_id, message, reach) for topic_id in dict.fromkeys(ids)]
        return _response(image, brokers, found, message)
    names = list(dict.fromkeys(asked.name for asked in message.topics if asked.name is not None))
    errors = dict.fromkeys((name for name in names if name in untold), ErrorCode.LEADER_NOT_AVAILABLE)
    if _may_create(services, message, version):
        missing = [name for name in names if name not in image.topics and name not in errors]
        if missing:
            errors |= _create(services, request, missing)
            image = services.cluster.image
    return _response(image, brokers, [_by_name(image, name, message, reach, errors) for name in names], message)


def _may_create(services: Services, message: M.MetadataRequest, version: int) -> bool:
    asked = version < FIRST_VERSION_WITH_CHOICE or message.allow_auto_topic_creation
    return asked and bool(services.config["auto.create.topics.enable"])


def _create(services: Services, request: Request, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics. Returns the error codes of those that are answered neither as topics nor as missing."""
    refused = 0
    made = []
    errors: dict[str, ErrorCode] = {}
    for name, result in zip(names, services.cluster.ensure(names), strict=True):
        if isinstance(result, ProtocolError) and result.code == ErrorCode.LEADER_NOT_AVAILABLE:
            errors[name] = result.code
        elif isinstance(result, ProtocolError):
            if result.code in TOLD_BY_MEMBERS and not services.cluster.is_alone:
                errors[name] = result.code
            refused += 1
            if refused <= MAX_REFUSALS_SAID:
                log.info("topic %r is not created for a client that asked for it: %s", name, result)
        else:
            made.append(f"{name} (partitions: {len(result.partitions)})")
    if refused > MAX_REFUSALS_SAID:
        log.info("nor are %d more topics of the same request", refused - MAX_REFUSALS_SAID)
    log_change(request, "topics created by being named:", made)
    return errors


def _check_ids(topics: Iterable[M.MetadataRequest.MetadataRequestTopic], version: int) -> None:
    for asked in topics:
        if version < FIRST_VERSION_BY_ID and (asked.name is None or asked.topic_id != NO_ID):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Topic IDs are not supported in version {version}")
        if asked.name is None and asked.topic_id == NO_ID:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "A topic is asked for by neither name nor id")


def _body_for_all(
    image: MetadataImage,
    brokers: tuple[ReachableBroker, ...],
    message: M.MetadataRequest,
    version: int,
    reach: _Reach | None,
    untold: Collection[str],
) -> bytes:
    key = (
        version,
        brokers,
        untold,
        message.include_topic_authorized_operations,
        message.include_cluster_authorized_operations,
    )
    bodies: dict[object, bytes] = image.derived.setdefault("metadata bodies", {})
    body = bodies.get(key)
    if body is None:
        topics = [_part(topic, message, reach) for topic in image.topics.values()]
        errors: Mapping[str, ErrorCode] = dict.fromkeys(untold, ErrorCode.LEADER_NOT_AVAILABLE)
        topics += [_by_name(image, name, message, reach, errors) for name in untold if name not in image.topics]
        body = _response(image, brokers, topics, message).encode(version)
        if len(bodies) >= MAX_CACHED_BODIES:
            bodies.clear()
        bodies[key] = body
    return body


def _response(
    image: MetadataImage, brokers: Iterable[ReachableBroker], topics: list[TopicPart], message: M.MetadataRequest
) -> M.MetadataResponse:
    response = R(
        brokers=[R.MetadataResponseBroker(**broker._asdict()) for broker in brokers],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations.ON_CLUSTER
    return response


def _by_id(image: MetadataImage, topic_id: bytes, message: M.MetadataRequest, reach: _Reach | None) -> TopicPart:
    topic = image.topic_by_id(UUID(bytes=topic_id))
    if topic is None:
        return TopicPart(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _part(topic, message, reach)


def _by_name(
    image: MetadataImage, name: str, message: M.MetadataRequest, reach: _Reach | None, errors: Mapping[str, ErrorCode]
) -> TopicPart:
    topic = image.topic(name)
    if topic is not None:
        return _part(topic, message, reach)
    error = errors.get(name) or missing_topic_error(name)
    part = TopicPart(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)
    if message.include_topic_authorized_operations:
        part.topic_authorized_operations = authorized_operations.ON_TOPIC
    return part


class _Reach(NamedTuple):
    """Which brokers a client reaches, if these may be others than those that are alive."""

    reachable: frozenset[int]
    """Those that have the client's listener."""
    alive: frozenset[int]
    names_listeners: bool
    """Whether the client understands LISTENER_NOT_FOUND."""
    leaves_out: bool
    """Whether replicas that the client cannot reach are left out."""


def _reach(services: Services, image: MetadataImage, brokers: Iterable[ReachableBroker], version: int) -> _Reach | None:
    """Return None for a broker that is alone: it reaches all clients that reach it."""
    if services.cluster.is_alone:
        return None
    reachable = frozenset(each.node_id for each in brokers)
    return _Reach(reachable, frozenset(image.brokers), version >= FIRST_VERSION_WITH_LISTENER_ERROR, version == 0)


def _part(topic: Topic, message: M.MetadataRequest, reach: _Reach | None) -> TopicPart:
    """Return the topic's part of a response.

    It is made once and kept with the topic, as it is the same in every version.
    """
    with_operations = bool(message.include_topic_authorized_operations)
    parts: dict[object, TopicPart] = topic.derived.setdefault("metadata", {})
    part = parts.get((with_operations, reach))
    if part is None:
        if len(parts) >= MAX_CACHED_PARTS:
            parts.clear()
        part = parts[with_operations, reach] = TopicPart(
            name=topic.name,
            topic_id=topic.topic_id.bytes,
            is_internal=topic.is_internal,
            partitions=[_partition(partition, reach) for partition in topic.partitions],
            topic_authorized_operations=(
                authorized_operations.ON_TOPIC if with_operations else authorized_operations.NOT_ASKED_FOR
            ),
        )
    return part


def _partition(partition: Partition, reach: _Reach | None) -> R.MetadataResponsePartition:
    error, leader, offline = ErrorCode.NONE, partition.leader, list(partition.offline)
    replicas, isr = list(partition.replicas), list(partition.isr)
    if reach is not None:
        offline = [each for each in partition.replicas if each in partition.offline or each not in reach.reachable]
        if leader not in reach.reachable:
            is_alive = leader in reach.alive and reach.names_listeners
            error, leader = (ErrorCode.LISTENER_NOT_FOUND if is_alive else ErrorCode.LEADER_NOT_AVAILABLE), NO_LEADER
        if reach.leaves_out:
            replicas = [each for each in replicas if each in reach.reachable]
            isr = [each for each in isr if each in reach.reachable]
            is_short = len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr)
            error = error or (ErrorCode.REPLICA_NOT_AVAILABLE if is_short else ErrorCode.NONE)
    elif leader < 0:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return R.MetadataResponsePartition(
        error_code=error,
        partition_index=partition.partition_id,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )
