"""Which replica leads: the kinds of elections.

A leader is always elected from the ISR, except where an unclean election is allowed and nobody in the ISR is online.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kbroker.model import TopicPartition
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.values import RECOVERING, PartitionState


class Election(Enum):
    """The reason for an election, which decides who may win it."""

    OFFLINE = "offline"
    UNCLEAN = "unclean"
    """As OFFLINE, and unclean whatever the topic's configs say."""
    REASSIGNMENT = "reassignment"
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


class Elected(NamedTuple):
    """The state to write, and the replicas to tell."""

    state: PartitionState
    told: tuple[int, ...]
    is_unclean: bool = False
    """Whether the leader was not in the ISR."""


def elect(
    kind: Election, context: Context, partition: TopicPartition, state: PartitionState, *, allows_unclean: bool = False
) -> Elected | None:
    """Return the outcome of an election; None if nobody can be elected.

    `allows_unclean`: whether, in an OFFLINE or UNCLEAN election, a replica outside the ISR may lead.
    """
    replicas = context.assignment(partition).replicas
    online = context.online_of(replicas, partition)
    in_sync = frozenset(state.isr)
    if kind in (Election.OFFLINE, Election.UNCLEAN):
        return _offline(context, partition, state, online, allows_unclean)
    if kind is Election.REASSIGNMENT:
        target = context.assignment(partition).target
        leader = next((each for each in target if each in in_sync and context.is_online(each, partition)), None)
        return None if leader is None else Elected(led_by(state, leader, state.isr), target)
    if kind is Election.PREFERRED:
        if replicas and replicas[0] in online and replicas[0] in in_sync:
            return Elected(led_by(state, replicas[0], state.isr), replicas)
        return None
    leader = next((each for each in online if each in in_sync), None)
    if leader is None:
        return None
    told = tuple(each for each in replicas if context.is_online_or_stopping(each, partition))
    staying = tuple(each for each in state.isr if each not in context.shutting_down)
    return Elected(led_by(state, leader, staying), told)


def _offline(
    context: Context, partition: TopicPartition, state: PartitionState, online: tuple[int, ...], allows_unclean: bool
) -> Elected | None:
    leader = next((each for each in online if each in state.isr), None)
    if leader is not None:
        return Elected(led_by(state, leader, context.online_of(state.isr, partition)), online)
    # A replica whose removal waits for its turn is not one of the partition's any more.
    staying = context.stored_assignment(partition).replicas
    unclean = next((each for each in online if each in staying), None) if allows_unclean else None
    if unclean is None:
        return None
    return Elected(led_by(state, unclean, (unclean,))._replace(recovery=RECOVERING), online, is_unclean=True)


def led_by(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    """Return the state with a leader and an ISR, in the next leader epoch."""
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)
