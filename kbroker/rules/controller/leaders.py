"""Elections that somebody asks for, and those that give the lead back to preferred leaders."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.commands import DropPreferredElection, ReadPreferredElection, Rule
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.elections import Election, elect
from kbroker.rules.controller.outcomes import NOT_NEEDED, ElectionOutcome
from kbroker.rules.controller.partitions import bring_online


def elect_leaders(
    context: Context, kind: Election, partitions: Iterable[TopicPartition]
) -> Rule[dict[TopicPartition, ElectionOutcome]]:
    """Hold the PREFERRED or UNCLEAN elections that somebody has asked for (KIP-460)."""
    outcome: dict[TopicPartition, ElectionOutcome] = {}
    wanted: list[TopicPartition] = []
    for partition in partitions:
        if not context.exists(partition):
            message = "The partition does not exist."
            outcome[partition] = ElectionOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        elif partition.topic in context.deleting:
            outcome[partition] = ElectionOutcome(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        elif _is_needed(context, kind, partition):
            wanted.append(partition)
        else:
            outcome[partition] = ElectionOutcome(ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED)
    elected = yield from bring_online(context, wanted, kind)
    failure = (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if kind is Election.PREFERRED
        else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    )
    for partition in wanted:
        result = elected.get(partition)
        if result is None or isinstance(result, str):
            outcome[partition] = ElectionOutcome(failure, result)
        else:
            outcome[partition] = ElectionOutcome(ErrorCode.NONE, None, result.leader)
    return outcome


def _is_needed(context: Context, kind: Election, partition: TopicPartition) -> bool:
    state = context.states.get(partition)
    if kind is Election.PREFERRED:
        return state is None or state.leader != context.assignment(partition).replicas[0]
    return state is None or not context.is_live(state.leader)


def preferred_asked(context: Context) -> Rule[None]:
    """Hold the preferred elections that a tool has asked for through the store."""
    asked: tuple[TopicPartition, ...] = yield ReadPreferredElection()
    if asked:
        yield from elect_leaders(context, Election.PREFERRED, asked)
        yield DropPreferredElection()


def balance(context: Context, percentage: int) -> Rule[None]:
    """Give the lead back to preferred leaders, for brokers that lead too few of the partitions that they should.

    That is where more than `percentage` percent of the partitions whose first replica a broker has are led by others.
    """
    preferred: dict[int, list[TopicPartition]] = {}
    for partition in context.partitions():
        replicas = context.assignment(partition).replicas
        if replicas and partition.topic not in context.deleting:
            preferred.setdefault(replicas[0], []).append(partition)
    for broker_id, partitions in preferred.items():
        elsewhere = [each for each in partitions if each in context.states and context.states[each].leader != broker_id]
        if len(elsewhere) * 100 > len(partitions) * percentage:
            able = [each for each in elsewhere if elect(Election.PREFERRED, context, each, context.states[each])]
            yield from bring_online(context, able, Election.PREFERRED)
