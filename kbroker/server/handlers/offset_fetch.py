"""OffsetFetch, key 9, versions 0 to 9: the offsets that groups have committed.

Leaves out: nothing.

v0  offsets stored by OffsetCommit 0, see `cluster/consumer_offsets.py`; UNKNOWN_TOPIC_OR_PARTITION if there is none
v1  offsets in `__consumer_offsets`; an error of the group is given for each partition
v2  topics may be null, for all offsets of the group; an error of the group has its own field
v3  throttle time
v4  as v3; the throttle is applied after the response
v5  leader epoch (KIP-320)
v6  flexible
v7  require stable (KIP-447)
v8  several groups (KIP-709)
v9  member id and epoch of the newer group protocol (KIP-848): refused if the member is unknown or the epoch differs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker._core.wire.codec import lazily
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.groups.answers import FetchedOffset
from kbroker.model import TopicPartition, partition_key
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer_question

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Group = M.OffsetFetchRequest.OffsetFetchRequestGroup

GROUP_ERROR_FROM = 2
SEVERAL_GROUPS_FROM = 8


def blocks(services: Services, request: Request, message: M.OffsetFetchRequest) -> bool:
    """Whether the request is of version 0, which reads the coordination store."""
    return request.api_version == 0


def handle(services: Services, request: Request, message: M.OffsetFetchRequest) -> M.OffsetFetchResponse | None:
    """Answer the request once it is sure that no other broker coordinates the groups."""
    if request.api_version == 0:
        partitions = list(_named(message.topics or ()).values())
        return _response(_fetch_from_store(services, message.group_id, partitions), ErrorCode.NONE)
    several = request.api_version >= SEVERAL_GROUPS_FROM
    group_ids = {group.group_id for group in message.groups} if several else {message.group_id}

    def confirmed(unsure: frozenset[str]) -> None:
        tell = _groups if several else _group
        response = tell(services, request, message, unsure)
        answer_question(request, message, response, response.error_code)

    services.groups.offsets.confirm(group_ids, confirmed)
    return None


def _groups(
    services: Services, request: Request, message: M.OffsetFetchRequest, unsure: frozenset[str]
) -> M.OffsetFetchResponse:
    """Answer for several groups; those that are `unsure` may be another broker's."""
    asked = list(_once(message.groups))
    groups = (_fetch_group(services, group, partitions, message.require_stable, unsure) for group, partitions in asked)
    return M.OffsetFetchResponse(groups=lazily(len(asked), groups))


def _group(
    services: Services, request: Request, message: M.OffsetFetchRequest, unsure: frozenset[str]
) -> M.OffsetFetchResponse:
    """Answer for the one group of the older versions."""
    partitions = None if message.topics is None else list(_named(message.topics).values())
    fetched: list[FetchedOffset] = []
    if message.group_id in unsure:
        error = ErrorCode.NOT_COORDINATOR
    else:
        error, fetched = services.groups.offsets.fetch(message.group_id, partitions, message.require_stable)
    if error and request.api_version < GROUP_ERROR_FROM:
        fetched = [FetchedOffset(partition, -1, -1, "", error) for partition in partitions or ()]
        error = ErrorCode.NONE
    return _response(fetched, error)


def _response(fetched: Iterable[FetchedOffset], error: ErrorCode) -> M.OffsetFetchResponse:
    R = M.OffsetFetchResponse
    topics = _topics(fetched, R.OffsetFetchResponseTopic, R.OffsetFetchResponsePartition)
    return M.OffsetFetchResponse(error_code=error, topics=topics)


def _once(groups: Iterable[_Group]) -> Iterator[tuple[_Group, list[TopicPartition] | None]]:
    """Each group with the partitions asked for (None: all).

    If a group is named again, partitions that were asked for before are left out, and so is the group if no partition
    remains.
    """
    known: dict[str, set[tuple[str, bytes]]] = {}
    whole: set[str] = set()
    for group in groups:
        if group.topics is None:
            if group.group_id not in whole:
                whole.add(group.group_id)
                yield group, None
            continue
        is_first = group.group_id not in known
        before = known.setdefault(group.group_id, set())
        named = _named(group.topics)
        partitions = [partition for key, partition in named.items() if key not in before]
        before.update(named)
        if partitions or is_first:
            yield group, partitions


def _named(topics: Iterable[Any]) -> dict[tuple[str, bytes], TopicPartition]:
    """The partitions by their keys, each once."""
    return {
        partition_key(topic.name, partition_id): TopicPartition(topic.name, partition_id)
        for topic in topics
        for partition_id in topic.partition_indexes
    }


def _fetch_from_store(services: Services, group_id: str, partitions: list[TopicPartition]) -> list[FetchedOffset]:
    return [_fetch_one_from_store(services, group_id, partition) for partition in partitions]


def _fetch_one_from_store(services: Services, group_id: str, partition: TopicPartition) -> FetchedOffset:
    nothing = FetchedOffset(partition, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if services.cluster.image.partition(partition) is None:
        return nothing
    try:
        offset = services.consumer_offsets.fetch(group_id, partition)
    except KbrokerError as error:
        return nothing._replace(error=error.code)
    return nothing if offset is None else nothing._replace(offset=offset, error=ErrorCode.NONE)


def _fetch_group(
    services: Services,
    group: _Group,
    partitions: list[TopicPartition] | None,
    require_stable: bool,
    unsure: frozenset[str],
) -> M.OffsetFetchResponse.OffsetFetchResponseGroup:
    R = M.OffsetFetchResponse
    if group.group_id in unsure:
        return R.OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.NOT_COORDINATOR)
    error, fetched = services.groups.offsets.fetch(
        group.group_id, partitions, require_stable, group.member_id, group.member_epoch
    )
    topics = _topics(fetched, R.OffsetFetchResponseTopics, R.OffsetFetchResponsePartitions)
    return R.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)


def _topics(fetched: Iterable[FetchedOffset], topic: Any, partition: Any) -> list[Any]:
    def partitions(of_topic: Iterable[FetchedOffset]) -> Iterator[Any]:
        for one in of_topic:
            yield partition(
                partition_index=one.partition.partition_id,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                error_code=one.error,
            )

    topics: dict[str, list[FetchedOffset]] = {}
    for one in fetched:
        topics.setdefault(one.partition.topic, []).append(one)
    return [topic(name=name, partitions=lazily(len(found), partitions(found))) for name, found in topics.items()]
