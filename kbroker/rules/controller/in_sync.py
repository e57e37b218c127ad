"""Changes of ISRs that leaders ask for (KIP-497), checked and written.

The leader epoch stays; the partition epoch grows. All brokers get the new metadata. The checks come in Kafka's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.assignments import write_states
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import DropIsrChanges, ReadBrokerEpochs, ReadIsrChanges, Rule
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.partitions import read_again
from kbroker.rules.controller.values import RECOVERED, RECOVERING, PartitionState

NOT_GIVEN = -1


class WantedIsr(NamedTuple):
    """The ISR that a leader asks for."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """Of each member of `isr`, the epoch of the broker that has fetched; NOT_GIVEN if the leader does not know it."""
    recovery: int = RECOVERED


def alter_isrs(
    context: Context, leader: int, broker_epoch: int, wanted: Mapping[TopicPartition, WantedIsr]
) -> Rule[ErrorCode | dict[TopicPartition, PartitionState | ErrorCode]]:
    """Returns for each partition its state now, or why it was not changed; one error code if nothing was looked at."""
    broker = context.brokers.get(leader)
    if broker is None or broker.epoch != broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if any(asked.recovery not in (RECOVERED, RECOVERING) for asked in wanted.values()):
        return ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka, which does not parse the request
    outcome: dict[TopicPartition, PartitionState | ErrorCode] = {}
    accepted: dict[TopicPartition, PartitionState] = {}
    for partition, asked in wanted.items():
        checked = _check(context, partition, leader, asked)
        if isinstance(checked, PartitionState) and checked is not context.states[partition]:
            accepted[partition] = checked
        else:
            outcome[partition] = checked
    if accepted:
        yield from _leave_out_returned(context, accepted, outcome)
    if accepted:
        written = yield from write_states(context, accepted)
        context.states.update(written)
        for partition in written:
            context.left_out.pop(partition, None)  # its leader serves
        outcome.update(written)
        lost = [each for each in accepted if each not in written]
        outcome.update(dict.fromkeys(lost, ErrorCode.INVALID_UPDATE_VERSION))
        if lost:
            yield from read_again(context, lost)
    batch = Batch(context)
    batch.tell_metadata(context.brokers, wanted)
    yield from batch.send()
    return outcome


def _check(context: Context, partition: TopicPartition, leader: int, asked: WantedIsr) -> PartitionState | ErrorCode:
    """Return the state to write; the present one, the same object, if there is nothing to write; else an error code."""
    state = context.states.get(partition)
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if asked.partition_epoch > state.partition_epoch or asked.leader_epoch > state.leader_epoch:
        # The leader knows more than this controller: there is a newer one.
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if (leader, asked.isr, asked.recovery) == (state.leader, state.isr, state.recovery):
        # Made already; the answer was lost (KAFKA-14144). So this comes before the check of the partition epoch.
        return state
    if asked.partition_epoch < state.partition_epoch or state.end_of_node is not None:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = set(asked.isr)
    if leader != state.leader or leader not in members or len(members) < len(asked.isr):
        return ErrorCode.INVALID_REQUEST
    if not members.issubset(context.assignment(partition).replicas):
        return ErrorCode.INVALID_REQUEST
    if asked.recovery == RECOVERING and (len(asked.isr) > 1 or state.recovery == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    if not (members - set(state.isr)).issubset(context.stored_assignment(partition).replicas):
        return ErrorCode.INELIGIBLE_REPLICA  # a reassignment that waits for its turn removes it
    epochs = dict(zip(asked.isr, asked.broker_epochs, strict=True))
    if not all(_is_eligible(context, broker_id, epoch) for broker_id, epoch in epochs.items()):
        return ErrorCode.INELIGIBLE_REPLICA
    return state._replace(isr=asked.isr, recovery=asked.recovery, controller_epoch=context.epoch)


def _is_eligible(context: Context, broker_id: int, epoch: int) -> bool:
    """Return whether a broker may be in an ISR: it is live, and in the same life as when it fetched (KIP-903)."""
    return context.is_live(broker_id) and epoch in (NOT_GIVEN, context.brokers[broker_id].epoch)


def _leave_out_returned(
    context: Context,
    accepted: dict[TopicPartition, PartitionState],
    outcome: dict[TopicPartition, PartitionState | ErrorCode],
) -> Rule[None]:
    """Refuse ISRs with a member that is registered anew, or not any more, and this controller has not seen that yet.

    Such a member may have lost records. Once the ISR is written behind its registration, the next controller could not
    see that any more (`takeover._returned`).
    """
    members = tuple(sorted({each for state in accepted.values() for each in state.isr}))
    epochs: dict[int, int] = yield ReadBrokerEpochs(members)
    others = {each for each in members if epochs.get(each) != context.brokers[each].epoch}
    for partition in [each for each, state in accepted.items() if not others.isdisjoint(state.isr)]:
        del accepted[partition]
        outcome[partition] = ErrorCode.INELIGIBLE_REPLICA


def isrs_changed(context: Context) -> Rule[None]:
    """Take over ISRs that leaders have written themselves, as those before Kafka 2.7 do, and tell all brokers."""
    changes: dict[str, tuple[TopicPartition, ...]] = yield ReadIsrChanges()
    if not changes:
        return
    partitions = {each: None for told in changes.values() for each in told if context.exists(each)}
    yield from read_again(context, partitions)
    batch = Batch(context)
    batch.tell_metadata(context.brokers, partitions)
    yield from batch.send()
    yield DropIsrChanges(frozenset(changes))
