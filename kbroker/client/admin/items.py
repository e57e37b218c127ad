"""Calls about several items, each of which may fail by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kbroker.client.errors import RETRIABLE, BrokerError, ClientError, PartialFailure, partition_refusal, refusal
from kbroker.client.network.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

AGAIN = RETRIABLE - {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""Codes after which an item is asked for again.

A missing topic or replica is an answer, and is not asked for again. Nor is what a broker has not done in the time that
it was given.
"""


async def of_each(
    cluster: Cluster, items: Iterable[K], ask: Callable[[list[K]], Awaitable[Mapping[K, V | ClientError]]]
) -> dict[K, V]:
    """Return the results of `ask(items)` by item.

    Items with an error in AGAIN are asked for again, until default.api.timeout.ms is over. Raises the error of a single
    item, or the one error that all items have; else PartialFailure.
    """
    left = list(dict.fromkeys(items))
    count = len(left)
    found: dict[K, V] = {}
    failed: dict[K, ClientError] = {}

    async def attempt() -> None:
        again: ClientError | None = None
        try:
            answered = await ask(list(left))
        except BrokerError as error:
            if error.code in AGAIN:
                raise
            answered = dict.fromkeys(left, error)
        for item in list(left):
            if item not in answered:
                continue
            result = answered[item]
            if not isinstance(result, ClientError):
                found[item] = result
                failed.pop(item, None)
                left.remove(item)
                continue
            failed[item] = result
            if result.code in AGAIN:
                again = result
            else:
                left.remove(item)
        if again is not None:
            raise again
        for item in left:
            failed[item] = nothing_of(item)

    if left:
        try:
            await cluster.retried(attempt)
        except ClientError as error:
            for item in left:
                failed.setdefault(item, error)
    if not failed:
        return found
    errors = list(failed.values())
    if count == 1 or (not found and all(error is errors[0] for error in errors)):
        raise errors[0]
    raise PartialFailure(failed, found)


def nothing_of(item: object) -> BrokerError:
    """Return the error of an item that is missing in the answer."""
    return BrokerError(f"the broker said nothing of {item}", code=ErrorCode.UNKNOWN_SERVER_ERROR)


def or_refused(error_code: int, message: str | None, what: str, value: V) -> V | ClientError:
    """Return `value`, or the BrokerError of `error_code` if that is not NONE."""
    return refusal(error_code, message, what) if error_code else value


async def by_leader(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> tuple[dict[int, dict[str, list[int]]], dict[TopicPartition, ClientError]]:
    """Ask for metadata; return partition numbers by leader's node id and topic, and errors of leaderless partitions."""
    await cluster.metadata({each.topic for each in partitions})
    led: dict[int, dict[str, list[int]]] = {}
    leaderless: dict[TopicPartition, ClientError] = {}
    for each in partitions:
        topic = cluster.view.topics.get(each.topic)
        leader = cluster.leader(*each)
        if leader is not None:
            led.setdefault(leader.leader_id, {}).setdefault(each.topic, []).append(each.partition_id)
        elif topic is not None and topic.error_code:
            leaderless[each] = refusal(topic.error_code, None, f"topic {each.topic!r}")
        else:
            there = topic is not None and each.partition_id in topic.partitions
            code = ErrorCode.LEADER_NOT_AVAILABLE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            leaderless[each] = partition_refusal(code, each, len(topic.partitions) if topic is not None else 0)
    return led, leaderless


async def of_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: Callable[[int, dict[str, list[int]]], Awaitable[Mapping[TopicPartition, V | ClientError]]],
) -> dict[TopicPartition, V]:
    """Return the result of `ask(node_id, partition numbers by topic)` for each partition, asking the leaders."""

    async def attempt(left: list[TopicPartition]) -> dict[TopicPartition, V | ClientError]:
        led, leaderless = await by_leader(cluster, left)
        found: dict[TopicPartition, V | ClientError] = dict(leaderless)
        for node_id, theirs in led.items():
            found |= await ask(node_id, theirs)
        return found

    return await of_each(cluster, partitions, attempt)


async def of_node(
    cluster: Cluster,
    node_id: int,
    partitions: Iterable[TopicPartition],
    ask: Callable[[int, dict[str, list[int]]], Awaitable[Mapping[TopicPartition, V | ClientError]]],
) -> dict[TopicPartition, V]:
    """Return the result of `ask(node_id, partition numbers by topic)` for each partition, asking one broker."""

    async def attempt(left: list[TopicPartition]) -> Mapping[TopicPartition, V | ClientError]:
        theirs: dict[str, list[int]] = {}
        for topic, partition_id in left:
            theirs.setdefault(topic, []).append(partition_id)
        return await ask(node_id, theirs)

    return await of_each(cluster, partitions, attempt)


async def of_coordinators(
    cluster: Cluster,
    keys: Iterable[str],
    kind: int,
    ask: Callable[[int, list[str]], Awaitable[Mapping[str, V | ClientError]]],
) -> dict[str, V]:
    """Return the result of `ask(node_id, keys)` for each group or transactional id, asking their coordinators."""

    async def attempt(left: list[str]) -> dict[str, V | ClientError]:
        found: dict[str, V | ClientError] = {}
        by_node: dict[int, list[str]] = {}
        for key in left:
            try:
                by_node.setdefault(await cluster.coordinator(key, kind), []).append(key)
            except BrokerError as error:
                found[key] = error
        for node_id, theirs in by_node.items():
            try:
                found |= await ask(node_id, theirs)
            except ClientError:
                for key in theirs:
                    cluster.forget_coordinator(key, kind)
                raise
        for key, result in found.items():
            if isinstance(result, ClientError) and result.code in NOT_COORDINATING:
                cluster.forget_coordinator(key, kind)
        return found

    return await of_each(cluster, keys, attempt)


NOT_COORDINATING = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


async def of_coordinator(cluster: Cluster, key: str, kind: int, ask: Callable[[int], Awaitable[Any]]) -> Any:
    """Return the result of `ask(node_id)`, asking the coordinator of one key. `ask` raises BrokerError on failure."""

    async def attempt(node_id: int, keys: list[str]) -> dict[str, Any]:
        try:
            return {keys[0]: await ask(node_id)}
        except BrokerError as error:
            return {keys[0]: error}

    return (await of_coordinators(cluster, [key], kind, attempt))[key]
