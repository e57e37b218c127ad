"""The metadata image of a member of a cluster, as the controller tells it (UpdateMetadata)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kbroker.cluster.image import NO_LEADER, Broker, MetadataImage, Partition, Topic
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import NO_UUID, Endpoint
from kbroker.protocol import messages as M
from kbroker.rules.topic_names import topic_name_problem

R = M.UpdateMetadataRequest

LEADER_OF_DELETED = -2
"""On the wire: the leader of a partition whose topic is being deleted."""

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""By their numbers on the wire."""

MAX_UNKNOWN_PARTITIONS = 10_000
"""How many partitions one request may leave out below others that it names: each takes memory."""

NO_EPOCH = -1
"""The epoch of a broker's registration: brokers are not told each other's."""

_State: TypeAlias = "R.UpdateMetadataPartitionState"

TopicConfigs: TypeAlias = Callable[[Collection[str]], Mapping[str, Mapping[str, str]]]
"""Returns the own configs of topics, by name; one that it does not name has none."""


class ImageUpdate(NamedTuple):
    """What UpdateMetadata makes of an image."""

    image: MetadataImage
    changed: Sequence[Topic]
    """The topics that are new or other than before."""
    removed: Sequence[Topic]
    """The topics that are gone."""
    passed_over: Sequence[str] = ()
    """The topics that stay as they were, because they, or partitions that the request names of them, cannot be."""


def image_after(image: MetadataImage, request: M.UpdateMetadataRequest, configs_of: TopicConfigs) -> ImageUpdate:
    """Return the image after UpdateMetadata. Versions 0 to 8 look alike here.

    The brokers in the request replace all others. Its partitions are added, replaced, or removed if their leader is
    LEADER_OF_DELETED. A topic with another id than before is a new topic: it keeps no partition of the old one.
    `configs_of` is asked once, for the topics that are new. Time grows with the request and the number of topics.
    Raises ProtocolError if the request names brokers that cannot be.
    """
    passed_over: list[str] = []
    changed, removed = _changes(image, request, configs_of, passed_over)
    brokers = {each.id: _broker(each) for each in request.live_brokers}
    if changed or removed:
        image = image.with_topics(changed, [topic.name for topic in removed])
    image = image.with_controller(request.controller_id, request.controller_epoch, brokers)
    return ImageUpdate(image, changed, removed, passed_over)


def _changes(
    image: MetadataImage, request: R, configs_of: TopicConfigs, passed_over: list[str]
) -> tuple[list[Topic], list[Topic]]:
    changed: list[Topic] = []
    removed: list[Topic] = []
    new: dict[str, tuple[UUID, tuple[Partition, ...]]] = {}
    gaps = _Gaps()
    for name, (topic_id, states) in _states_by_topic(request).items():
        topic = image.topics.get(name)
        is_known = topic is not None and (topic.topic_id == topic_id or NO_UUID in (topic.topic_id, topic_id))
        before = topic.partitions if topic is not None and is_known else ()
        partitions = _with_states(before, states, gaps)
        if partitions is None or (topic is None and topic_name_problem(name) is not None):
            passed_over.append(name)
            continue
        if topic is None or not is_known:
            if partitions:
                new[name] = topic_id, partitions
            elif topic is not None:
                removed.append(topic)
        elif not partitions:
            removed.append(topic)
        elif partitions != before or (topic_id != NO_UUID and topic.topic_id != topic_id):
            known_id = topic.topic_id if topic_id == NO_UUID else topic_id
            changed.append(topic.changed(topic_id=known_id, partitions=partitions))
    if new:
        configs = configs_of(new.keys())
        removed += [image.topics[name] for name in new if name in image.topics]
        changed += [Topic(name, *parts, configs.get(name, {})) for name, parts in new.items()]
    return changed, removed


def _states_by_topic(request: R) -> dict[str, tuple[UUID, list[_State]]]:
    """The topics' ids and partition states by name. Before version 7 there are no ids."""
    grouped: dict[str, tuple[UUID, list[_State]]] = {}
    for topic in request.topic_states:
        states = grouped.setdefault(topic.topic_name, (UUID(bytes=topic.topic_id), []))[1]
        states += topic.partition_states
    for state in request.ungrouped_partition_states:  # before version 5
        grouped.setdefault(state.topic_name, (NO_UUID, []))[1].append(state)
    return grouped


class _Gaps:
    """Counts the partitions that are not known although a later one of their topic is, in one request."""

    def __init__(self) -> None:
        self._left = MAX_UNKNOWN_PARTITIONS

    def fill(self, partitions: list[Partition], partition_id: int) -> bool:
        """Append unknown partitions, so that the next is `partition_id`. Returns False if they would be too many."""
        missing = partition_id - len(partitions)
        if missing > self._left:
            return False
        self._left -= missing
        partitions += map(_unknown, range(len(partitions), partition_id))
        return True


def _unknown(partition_id: int) -> Partition:
    """A partition that the controller has not told of, while it has told of a later one of the same topic."""
    return Partition(partition_id, NO_LEADER, 0, (), ())


def _with_states(before: Sequence[Partition], states: Iterable[_State], gaps: _Gaps) -> tuple[Partition, ...] | None:
    """Return a topic's partitions with new states; None if one of these is of a partition that cannot be."""
    partitions = list(before)
    for state in states:
        partition_id = state.partition_index
        if partition_id < 0:
            return None
        if state.leader == LEADER_OF_DELETED:
            if partition_id < len(partitions):
                partitions[partition_id] = _unknown(partition_id)
            continue
        told = Partition(
            partition_id,
            state.leader,
            state.leader_epoch,
            tuple(state.replicas),
            tuple(state.isr),
            tuple(state.offline_replicas),
            state.zk_version,
        )
        if partition_id < len(partitions):
            if partitions[partition_id] != told:
                partitions[partition_id] = told
        elif gaps.fill(partitions, partition_id):
            partitions.append(told)
        else:
            return None
    while partitions and not partitions[-1].replicas:
        partitions.pop()
    return tuple(partitions)


def _broker(told: R.UpdateMetadataBroker) -> Broker:
    endpoints = tuple(
        Endpoint(each.listener or protocol, protocol, each.host, each.port)
        for each in told.endpoints
        for protocol in (_protocol(each.security_protocol),)
    )
    if not endpoints and told.v0_host:
        endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", told.v0_host, told.v0_port),)
    return Broker(told.id, endpoints, told.rack or None, NO_EPOCH)


def _protocol(number: int) -> str:
    if not 0 <= number < len(SECURITY_PROTOCOLS):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"a security protocol with the number {number}")
    return SECURITY_PROTOCOLS[number]
