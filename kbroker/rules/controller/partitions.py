"""The state machine of partitions: who gets a first leader, and who a new one.

States are decided from what the controller remembers, and written at the version that it remembers. Nobody but a
controller writes them, so that is nearly always right; where it is not, the state is read and decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kbroker.model import TopicPartition
from kbroker.rules.controller.assignments import write_states
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import CreateStates, ReadStates, ReadUnclean, Rule
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.elections import Elected, Election, elect, led_by
from kbroker.rules.controller.values import NO_LEADER, PARTITION_CHANGES, PartitionState, PartitionStatus

Outcome = dict[TopicPartition, PartitionState | str]
"""What came of elections: the new state, or why there is none."""
NO_CANDIDATE = {
    Election.OFFLINE: "no leader: no replica in sync is online",
    Election.UNCLEAN: "no leader: no replica is online",
    Election.REASSIGNMENT: "the lead is not moved: no replica of the target is in sync and online",
    Election.PREFERRED: "the lead is not given back: the preferred replica is not in sync, or not online",
}
"""What the log says when nobody can be elected: nothing in a controlled shutdown, whose broker leads on."""


def set_status(context: Context, partitions: Iterable[TopicPartition], target: PartitionStatus) -> None:
    """Give partitions a status that is not ONLINE. Those that may not have it now keep theirs."""
    assert target is not PartitionStatus.ONLINE
    for partition in partitions:
        if _may_change(context, partition, target):
            context.partition_status[partition] = target


def bring_online(context: Context, partitions: Iterable[TopicPartition], kind: Election) -> Rule[Outcome]:
    """Give partitions a leader: the first one, or a new one by an election."""
    valid = [each for each in partitions if _may_change(context, each, PartitionStatus.ONLINE)]
    if not valid:
        return {}
    batch = Batch(context)
    new = [each for each in valid if context.partition_status[each] is PartitionStatus.NEW]
    others = [each for each in valid if context.partition_status[each] is not PartitionStatus.NEW]
    found = yield from _create(context, new, batch)
    outcome = yield from _elect_all(context, [*others, *found], kind, batch)
    yield from batch.send()
    return outcome


def bring_all_online(context: Context, topic: str | None = None) -> Rule[Outcome]:
    """Try to give a leader to every partition that has none, but those of topics that are being deleted."""
    without = context.partitions_in(PartitionStatus.NEW, PartitionStatus.OFFLINE, topic=topic)
    wanted = [each for each in without if each.topic not in context.deleting]
    return (yield from bring_online(context, wanted, Election.OFFLINE))


def _may_change(context: Context, partition: TopicPartition, target: PartitionStatus) -> bool:
    status = context.partition_status.setdefault(partition, PartitionStatus.NON_EXISTENT)
    if status in PARTITION_CHANGES[target]:
        return True
    context.note(f"it cannot become {target.value}: it is {status.value}", partition)
    return False


def _create(context: Context, partitions: Sequence[TopicPartition], batch: Batch) -> Rule[list[TopicPartition]]:
    """Write the first states. Returns partitions that turned out to have one already: they need an election."""
    wanted: dict[TopicPartition, PartitionState] = {}
    for partition in partitions:
        online = context.online_of(context.assignment(partition).replicas, partition)
        if online:
            wanted[partition] = PartitionState(online[0], 0, online, context.epoch)
        else:
            context.note("it gets no leader: none of its replicas is online", partition)
    if not wanted:
        return []
    written: dict[TopicPartition, PartitionState] = yield CreateStates(wanted)
    found = []
    for partition, state in written.items():
        context.states[partition] = state
        if state == wanted[partition]:
            context.partition_status[partition] = PartitionStatus.ONLINE
            batch.tell_roles(state.isr, partition, is_new=True)
        else:
            context.partition_status[partition] = PartitionStatus.OFFLINE
            found.append(partition)
    return found


def _elect_all(context: Context, partitions: Sequence[TopicPartition], kind: Election, batch: Batch) -> Rule[Outcome]:
    outcome: Outcome = {}
    unclean: frozenset[str] = frozenset()
    remaining = list(partitions)
    while remaining:
        if kind in (Election.OFFLINE, Election.UNCLEAN):
            unclean = yield from _unclean_topics(context, remaining, kind)
        elected: dict[TopicPartition, Elected] = {}
        for partition in remaining:
            result = _elect(context, partition, kind, unclean)
            if isinstance(result, Elected):
                elected[partition] = result
                continue
            outcome[partition] = (
                result or f"Failed to elect leader for partition {partition} under strategy {kind.value}"
            )
            if kind in NO_CANDIDATE:
                context.note(result or NO_CANDIDATE[kind], partition)
        written: dict[TopicPartition, PartitionState] = {}
        if elected:
            written = yield from write_states(context, {partition: each.state for partition, each in elected.items()})
        for partition, state in written.items():
            context.note_state(partition, state)
            outcome[partition] = state
            context.partition_status[partition] = PartitionStatus.ONLINE
            context.unclean_elections += elected[partition].is_unclean
            batch.tell_roles(elected[partition].told, partition)
        remaining = [each for each in elected if each not in written]
        if remaining:
            yield from read_again(context, remaining)
    return outcome


def begin_epochs(context: Context, partitions: Iterable[TopicPartition]) -> Rule[set[TopicPartition]]:
    """Let the leaders of partitions lead on in new leader epochs, with the same ISRs, and tell nobody.

    Returns the partitions whose states were written.
    """

    def led_on(_: TopicPartition, state: PartitionState) -> PartitionState:
        return led_by(state, state.leader, state.isr)

    return (yield from rewrite(context, partitions, led_on, "it gets no new leader epoch"))


def rewrite(
    context: Context,
    partitions: Iterable[TopicPartition],
    change: Callable[[TopicPartition, PartitionState], PartitionState | None],
    unchanged: str,
) -> Rule[set[TopicPartition]]:
    """Write the state that `change` makes of each partition's state, and of a newer one if somebody has written that.

    `change` returns None for a state that is to stay. So does a state of a later controller, and one after which no
    other can follow: then the log says `unchanged`, and why. Returns the partitions whose states were written.
    """
    done: set[TopicPartition] = set()
    remaining = list(partitions)
    while remaining:
        wanted: dict[TopicPartition, PartitionState] = {}
        for partition in remaining:
            state = context.states.get(partition)
            if state is None or state.controller_epoch > context.epoch:
                continue
            changed = change(partition, state)
            if changed is None:
                continue
            if state.end is not None:
                context.note(f"{unchanged}: {state.end}", partition)
                continue
            wanted[partition] = changed._replace(controller_epoch=context.epoch)
        written: dict[TopicPartition, PartitionState] = {}
        if wanted:
            written = yield from write_states(context, wanted)
        for partition, now in written.items():
            context.note_state(partition, now)
        done.update(written)
        remaining = [each for each in wanted if each not in written]
        if remaining:
            yield from read_again(context, remaining)
    return done


def undo_elections(context: Context, broker_id: int, declined: Iterable[TopicPartition]) -> Rule[None]:
    """Give the ISRs back with which a leader has served last: others of them may be elected.

    `declined`: partitions in which the broker has taken no role, so that it does not count among those others.
    """
    wanted = {}
    for partition in declined:
        state, left_out = context.states.get(partition), context.left_out.get(partition)
        if state is None or left_out is None or state.leader_epoch != left_out.leader_epoch:
            continue
        isr = tuple(each for each in left_out.isr if each != broker_id)
        is_ours = state.controller_epoch <= context.epoch and state.end is None
        if left_out.elected == NO_LEADER and isr != state.isr and is_ours:
            wanted[partition] = led_by(state, NO_LEADER, isr)._replace(controller_epoch=context.epoch)
    if not wanted:
        return
    written = yield from write_states(context, wanted)
    for partition, state in written.items():
        del context.left_out[partition]
        context.states[partition] = state
        context.partition_status[partition] = PartitionStatus.OFFLINE
        context.note(f"broker {broker_id} lacks records, and the ISR is {state.isr} again", partition)
    batch = Batch(context)
    batch.tell_metadata(context.brokers, written)
    yield from batch.send()
    yield from bring_all_online(context)


def read_again(context: Context, partitions: Iterable[TopicPartition]) -> Rule[None]:
    """Read the states of partitions that somebody else has written."""
    asked = tuple(partitions)
    found: dict[TopicPartition, PartitionState] = yield ReadStates(asked)
    for partition in asked:
        if partition in found:
            context.states[partition] = found[partition]
        else:
            context.states.pop(partition, None)


def _elect(context: Context, partition: TopicPartition, kind: Election, unclean: frozenset[str]) -> Elected | str:
    """Return who leads from now on, or why nobody does; "" if no replica can."""
    state = context.states.get(partition)
    if state is None:
        return f"it has no state, and is {context.partition_status[partition].value}"
    if state.controller_epoch > context.epoch:
        return f"its state is of a controller of a later epoch, {state.controller_epoch}"
    if state.end is not None:
        return f"its leader is not replaced: {state.end}"
    elected = elect(kind, context, partition, state, allows_unclean=partition.topic in unclean)
    if elected is None:
        return ""
    return elected._replace(state=elected.state._replace(controller_epoch=context.epoch))


def _unclean_topics(context: Context, partitions: Iterable[TopicPartition], kind: Election) -> Rule[frozenset[str]]:
    """Return the topics that may have unclean elections, as far as one of their partitions needs one."""
    needy = frozenset(
        each.topic
        for each in partitions
        if each in context.states and not context.online_of(context.states[each].isr, each)
    )
    if kind is Election.UNCLEAN or not needy:
        return needy
    allowed: frozenset[str] = yield ReadUnclean(needy)
    return allowed
