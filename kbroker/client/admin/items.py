"""Calls about several items, each of which may fail by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kbroker.client.errors import (
    RETRIABLE,
    BrokerError,
    ClientError,
    PartialFailure,
    TimedOut,
    partition_refusal,
    refusal,
)
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


async def call_for_each(
    cluster: Cluster, items: Iterable[K], attempt: Callable[[list[K]], Awaitable[Mapping[K, V | ClientError]]]
) -> dict[K, V]:
    """Return the results of `attempt(items)` by item.

    Items with an error in AGAIN are asked for again, until default.api.timeout.ms is over. Raises the error of a single
    item, or the one error that all items have; else PartialFailure.
    """
    return results_of(await answers_for_each(cluster, items, attempt))


async def answers_for_each(
    cluster: Cluster,
    items: Iterable[K],
    attempt: Callable[[list[K]], Awaitable[Mapping[K, V | ClientError]]],
    *,
    timeout_s: float | None = None,
) -> dict[K, V | ClientError]:
    """Do what `call_for_each` does, but return the errors of items instead of raising them.

    `timeout_s`: how long it may take, in seconds; None: default.api.timeout.ms.
    """
    left = list(dict.fromkeys(items))
    found: dict[K, V] = {}
    failed: dict[K, ClientError] = {}

    async def attempt_all() -> None:
        again: ClientError | None = None
        try:
            answered = await attempt(list(left))
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
            failed[item] = missing_answer(item)

    if left:
        try:
            await cluster.retried(attempt_all, timeout_s=timeout_s)
        except ClientError as error:
            for item in left:
                failed.setdefault(item, error)
    return {**found, **failed}


def results_of(answered: Mapping[K, V | ClientError]) -> dict[K, V]:
    """Return the results by item.

    Raises the error of a single item, or the one error that all items have; else PartialFailure.
    """
    found = {item: result for item, result in answered.items() if not isinstance(result, ClientError)}
    failed = {item: result for item, result in answered.items() if isinstance(result, ClientError)}
    if not failed:
        return found
    errors = list(failed.values())
    if len(answered) == 1 or (not found and all(error is errors[0] for error in errors)):
        raise errors[0]
    raise PartialFailure(failed, found)


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def missing_answer(item: object) -> BrokerError:
    """Return the error of an item that is missing in the answer."""
    return BrokerError(f"the broker said nothing of {item}", code=ErrorCode.UNKNOWN_SERVER_ERROR)


def value_or_error(error_code: int, message: str | None, what: str, value: V) -> V | ClientError:
    """Return `value`, or the BrokerError of `error_code` if that is not NONE."""
    return refusal(error_code, message, what) if error_code else value


LedBy = tuple[dict[int, dict[str, list[int]]], dict[TopicPartition, ClientError]]
"""Partition numbers by leader's node id and topic, and the errors of partitions that have no leader."""


async def partitions_by_leader(cluster: Cluster, partitions: Collection[TopicPartition]) -> LedBy:
    """Ask for metadata, and return who leads the partitions."""
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


async def call_nodes(cluster: Cluster, node_ids: Iterable[int], ask: Callable[[int], Awaitable[V]]) -> dict[int, V]:
    """Return the result of `ask(node_id)` for each broker.

    All brokers are asked at once, each until it has answered or default.api.timeout.ms is over: a silent one holds up
    no other. Raises the error of a single broker, else PartialFailure.
    """
    return results_of(await answers_of_nodes(cluster, node_ids, _retried(cluster, ask)))


async def call_all_nodes(cluster: Cluster, ask: Callable[[int], Awaitable[V]]) -> dict[int, V]:
    """Do what `call_nodes` does with all brokers of the cluster. One that leaves it meanwhile is passed over."""
    node_ids = (await cluster.retried(cluster.refresh)).nodes
    answered = await answers_of_nodes(cluster, node_ids, _retried(cluster, ask))
    there = {
        node_id: result
        for node_id, result in answered.items()
        if node_id in cluster.view.nodes or not isinstance(result, ClientError)
    }
    return results_of(there or answered)


def _retried(cluster: Cluster, ask: Callable[[int], Awaitable[V]]) -> Callable[[int], Awaitable[V]]:
    return lambda node_id: cluster.retried(lambda: ask(node_id))


async def answers_of_nodes(
    cluster: Cluster, node_ids: Iterable[int], ask: Callable[[int], Awaitable[V]]
) -> dict[int, V | ClientError]:
    """Return the result of `ask(node_id)`, or its error, for each broker. All are asked at once, and once only.

    A broker that has not answered within default.api.timeout.ms has the error TimedOut.
    """
    limit_s = cluster.network.options.seconds("default.api.timeout.ms")

    async def answer_of(node_id: int) -> V | ClientError:
        try:
            async with asyncio.timeout(limit_s):
                return await ask(node_id)
        except TimeoutError:  # TimedOut too
            return silence_of(node_id, limit_s)
        except ClientError as error:
            return error

    wanted = list(dict.fromkeys(node_ids))
    return dict(zip(wanted, await asyncio.gather(*map(answer_of, wanted)), strict=True))


def silence_of(node_id: int, limit_s: float) -> TimedOut:
    """Return the error of a broker that was asked and has not answered."""
    return TimedOut(f"broker {node_id} did not answer within {limit_s:g} s")


async def call_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    attempt: Callable[[int, dict[str, list[int]]], Awaitable[Mapping[TopicPartition, V | ClientError]]],
) -> dict[TopicPartition, V]:
    """Return the result of `attempt(node_id, partition numbers by topic)` for each partition, asking the leaders.

    All leaders are asked at once: a silent one holds up no other, and its partitions have the error TimedOut.
    """
    wanted = list(dict.fromkeys(partitions))
    if not wanted:
        return {}
    limit_s = cluster.network.options.seconds("default.api.timeout.ms")
    deadline = asyncio.get_running_loop().time() + limit_s

    async def answers_of(known: LedBy) -> dict[TopicPartition, V | ClientError]:
        """Ask for some partitions, first those who lead them now, then those who do by newer metadata."""
        leaders: list[LedBy] = [known]
        asked = -1

        async def attempt_all(left: list[TopicPartition]) -> dict[TopicPartition, V | ClientError]:
            nonlocal asked
            led, leaderless = leaders.pop() if leaders else await partitions_by_leader(cluster, left)
            found: dict[TopicPartition, V | ClientError] = dict(leaderless)
            for asked, theirs in led.items():
                found |= await attempt(asked, theirs)
            return found

        items = [TopicPartition(topic, n) for led in known[0].values() for topic, all_n in led.items() for n in all_n]
        items += known[1]
        left_s = deadline - asyncio.get_running_loop().time()
        answered = await answers_for_each(cluster, items, attempt_all, timeout_s=left_s)
        silence = silence_of(asked, limit_s)
        return {each: silence if isinstance(found, TimedOut) and asked >= 0 else found
                for each, found in answered.items()}  # fmt: skip

    led, leaderless = await cluster.retried(lambda: partitions_by_leader(cluster, wanted))
    shares: list[LedBy] = [({node_id: theirs}, {}) for node_id, theirs in led.items()]
    if leaderless:
        shares.append(({}, leaderless))
    answered: dict[TopicPartition, V | ClientError] = {}
    for found in await asyncio.gather(*map(answers_of, shares)):
        answered |= found
    return results_of(answered)


async def call_node(
    cluster: Cluster,
    node_id: int,
    partitions: Iterable[TopicPartition],
    attempt: Callable[[int, dict[str, list[int]]], Awaitable[Mapping[TopicPartition, V | ClientError]]],
) -> dict[TopicPartition, V]:
    """Return the result of `attempt(node_id, partition numbers by topic)` for each partition, asking one broker."""

    async def attempt_all(left: list[TopicPartition]) -> Mapping[TopicPartition, V | ClientError]:
        return await attempt(node_id, numbers_by_topic(left))

    return await call_for_each(cluster, partitions, attempt_all)


async def call_coordinators(
    cluster: Cluster,
    keys: Iterable[str],
    kind: int,
    attempt: Callable[[int, list[str]], Awaitable[Mapping[str, V | ClientError]]],
) -> dict[str, V]:
    """Return the result of `attempt(node_id, keys)` for each group or transactional id, asking their coordinators."""

    async def attempt_all(left: list[str]) -> dict[str, V | ClientError]:
        found: dict[str, V | ClientError] = {}
        by_node: dict[int, list[str]] = {}
        for key in left:
            try:
                by_node.setdefault(await cluster.coordinator(key, kind), []).append(key)
            except BrokerError as error:
                found[key] = error
        for node_id, theirs in by_node.items():
            try:
                found |= await attempt(node_id, theirs)
            except ClientError:
                for key in theirs:
                    cluster.forget_coordinator(key, kind)
                raise
        for key, result in found.items():
            if isinstance(result, ClientError) and result.code in NOT_COORDINATING:
                cluster.forget_coordinator(key, kind)
        return found

    return await call_for_each(cluster, keys, attempt_all)


NOT_COORDINATING = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


async def call_coordinator(cluster: Cluster, key: str, kind: int, attempt: Callable[[int], Awaitable[Any]]) -> Any:
    """Return the result of `attempt(node_id)`, asking the coordinator of one key.

    `attempt` raises BrokerError on failure.
    """

    async def attempt_all(node_id: int, keys: list[str]) -> dict[str, Any]:
        try:
            return {keys[0]: await attempt(node_id)}
        except BrokerError as error:
            return {keys[0]: error}

    return (await call_coordinators(cluster, [key], kind, attempt_all))[key]
