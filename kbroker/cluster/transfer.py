"""Plans the transfer of a cluster from Apache Kafka with ZooKeeper to a single kbroker, and back.

The contents of both stores go in, operations come out: nothing is written here. A transfer is idempotent, so one that
was cut short can be repeated. Values that only grow (epochs, producer ids) are never lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kbroker.cluster.carried_nodes import AS_THEY_ARE, CannotCarry, CarriedNodes, Nodes, Source, differing
from kbroker.cluster.client_quotas import roots_with_quotas
from kbroker.cluster.members import random_id
from kbroker.cluster.topic_configs import TOPIC_CONFIGS, validate_topic_configs
from kbroker.coordination import paths
from kbroker.coordination.paths import PartitionRegistration, TopicAssignment
from kbroker.coordination.store import Create, Delete, Operation, SetData, parent_of
from kbroker.errors import ConfigError
from kbroker.model import NO_UUID, TopicPartition
from kbroker.rules.topic_names import listed

MOST_NAMES = 20
"""How many names one message gives."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """Options of a transfer.

    `only_replica`: for partitions with several replicas, this broker's becomes the only one. `allow_empty`: partitions
    without a log here begin empty.
    """

    broker_id: int
    only_replica: bool = False
    allow_empty: bool = False


@dataclass(slots=True)
class Plan:
    """The operations to be written, their counts, and notes for the operator."""

    operations: list[Operation] = field(default_factory=list)
    topic_count: int = 0
    partition_count: int = 0
    notes: list[str] = field(default_factory=list)


def plan_import(
    zookeeper: CarriedNodes,
    store: CarriedNodes,
    target: Source,
    found: Mapping[TopicPartition, UUID | None],
    options: TransferOptions,
) -> Plan:
    """Plan the transfer from ZooKeeper into the store of a broker.

    `found` are the logs in the broker's directories, with their topic ids. What is only in the store stays. Configs and
    offsets that both have are the store's if its controller epoch is higher, since the broker has then run after the
    last controller in ZooKeeper; else ZooKeeper's. Raises CannotCarry, with the reason, if the transfer is refused.
    """
    if zookeeper.cluster_id is None:
        raise CannotCarry(f"there is no cluster in that ZooKeeper: {paths.CLUSTER_ID} is missing; is the chroot right?")
    _refuse_other_cluster(store.cluster_id, zookeeper.cluster_id)
    if str(options.broker_id) in zookeeper.live_brokers:
        raise CannotCarry(f"broker {options.broker_id} is running: stop it before its topics are carried over")
    _refuse_unfinished(zookeeper, options)
    plan = Plan()
    topics, known = zookeeper.topics(), store.topics()
    _check_replicas(zookeeper, topics, options, plan)
    _check_logs(_without_doomed(topics, zookeeper), found, options, plan)
    only_here = sorted(set(known) - set(topics))
    if only_here:
        plan.notes.append(f"topics that only the store has are kept: {_named(only_here)}")
    wanted = _that_only_grows(zookeeper, store)
    wanted[paths.CLUSTER_ID] = zookeeper.nodes[paths.CLUSTER_ID]
    coming: Nodes = {}
    for name, topic in topics.items():
        topic_id = _topic_id_of(name, topic, known.get(name), found)
        kept = known[name].replicas if name in known else {}
        replicas = dict.fromkeys(sorted({*topic.replicas, *kept}), (options.broker_id,))
        wanted |= _topic_nodes(name, topic_id, replicas, zookeeper, store, options.broker_id, epoch_step=1)
        coming[paths.topic_config_path(name)] = _checked_config(name, zookeeper, plan)
    for root in (*AS_THEY_ARE, paths.DELETE_TOPICS, paths.CONSUMERS):
        coming |= zookeeper.below(root)
    stays = store.nodes if store.controller_epoch > zookeeper.controller_epoch else {}
    wanted |= {path: data for path, data in coming.items() if path not in stays}
    if zookeeper.acl_count:
        plan.notes.append(f"{zookeeper.acl_count} ACL nodes are not carried over: kbroker has no access control yet")
    if quotas := roots_with_quotas(zookeeper.nodes):
        plan.notes.append(f"client quotas ({', '.join(quotas)}) are kept for the way back: kbroker enforces none yet")
    return _finished(plan, wanted, store, target)


def plan_export(
    store: CarriedNodes,
    zookeeper: CarriedNodes,
    target: Source,
    found: Mapping[TopicPartition, UUID | None],
    options: TransferOptions,
) -> Plan:
    """Plan the transfer from the store of a broker into ZooKeeper, which may be empty.

    Topics that are only in ZooKeeper are removed there, with their configs. Raises CannotCarry, with the reason, if the
    transfer is refused.
    """
    if store.cluster_id is None:
        raise CannotCarry("there is no cluster in that directory: no kbroker has been started on it")
    _refuse_other_cluster(zookeeper.cluster_id, store.cluster_id)
    if zookeeper.live_brokers:
        raise CannotCarry(f"broker {', '.join(zookeeper.live_brokers)} is registered in that ZooKeeper: stop it first")
    _refuse_unfinished(zookeeper, options)
    if zookeeper.cluster_id is not None and zookeeper.controller_epoch > store.controller_epoch:
        raise CannotCarry(
            f"that ZooKeeper has been in use since the store took over from it (controller epoch "
            f"{zookeeper.controller_epoch}, in the store {store.controller_epoch}): import first"
        )
    plan = Plan()
    topics, others = store.topics(), zookeeper.topics()
    _check_replicas(store, topics, options, plan)
    _check_replicas(zookeeper, others, options, plan)
    _check_logs(_without_doomed(topics, store), found, options, plan)
    gone = [name for name in others if name not in topics]
    on_disk = sorted(set(gone) & {at.topic for at in found})
    if on_disk:
        raise CannotCarry(f"on disk and in ZooKeeper, and not in the store: {_named(on_disk)}; import first")
    wanted = _that_only_grows(zookeeper, store)
    for name, topic in topics.items():
        there = others.get(name)
        if there is not None and there.topic_id not in (NO_UUID, topic.topic_id):
            plan.notes.append(f"topic {name} takes the place of an earlier one of that name")
        replicas = dict.fromkeys(topic.replicas, (options.broker_id,))
        wanted |= _topic_nodes(name, topic.topic_id, replicas, store, zookeeper, options.broker_id, epoch_step=0)
        config = store.nodes.get(paths.topic_config_path(name))
        if config is not None:
            wanted[paths.topic_config_path(name)] = config
        elif paths.topic_config_path(name) not in zookeeper.nodes:
            plan.notes.append(f"the settings of topic {name} are not known: Kafka takes its defaults for it")
    for root in (*AS_THEY_ARE, paths.DELETE_TOPICS, paths.CONSUMERS):
        wanted |= store.below(root)
    removed = [path for name in gone for path in _nodes_of_topic(name, zookeeper)]
    finished = _finished(plan, wanted, zookeeper, target, removed)
    if zookeeper.cluster_id is None:
        # The cluster id is written last, so that Kafka, whose directory has this id, does not start on half a transfer.
        data = store.nodes[paths.CLUSTER_ID]
        finished.operations += _operations({paths.CLUSTER_ID: data}, zookeeper.nodes, target, _parents(finished))
    return finished


# --- what is refused --------------------------------------------------------------------------------------------------


def _refuse_other_cluster(there: str | None, coming: str) -> None:
    if there is not None and there != coming:
        raise CannotCarry(f"it holds cluster {there} already, not {coming}")


def _refuse_unfinished(zookeeper: CarriedNodes, options: TransferOptions) -> None:
    if zookeeper.is_migrating:
        raise CannotCarry("the cluster of that ZooKeeper is on its way to KRaft: finish that, or take it back")
    if zookeeper.is_reassigning and not options.only_replica:
        raise CannotCarry("partitions are being reassigned: finish that, or cancel it")


def _check_replicas(
    nodes: CarriedNodes, topics: Mapping[str, TopicAssignment], options: TransferOptions, plan: Plan
) -> None:
    """Refuse partitions with replicas on other brokers, unless the options allow them."""
    elsewhere, shared, behind = [], [], []
    for at, replicas in _partitions(topics):
        if options.broker_id not in replicas:
            elsewhere.append(f"{at} (on {', '.join(map(str, replicas))})")
        elif len(replicas) > 1:
            shared.append(f"{at} (on {', '.join(map(str, replicas))})")
            state = _state(nodes, at)
            if state is not None and options.broker_id not in state.isr:
                behind.append(str(at))
    if elsewhere and not (options.only_replica and options.allow_empty):
        raise CannotCarry(
            f"broker {options.broker_id} has no replica of {_named(elsewhere)}; --broker-id names another broker, "
            "--only-replica with --allow-empty lets them begin empty"
        )
    if shared and not options.only_replica:
        raise CannotCarry(
            f"other brokers have replicas too of {_named(shared)}; --only-replica leaves the one of broker "
            f"{options.broker_id} as the only one"
        )
    if behind:
        plan.notes.append(f"broker {options.broker_id} was not in sync and may lack records of {_named(behind)}")


def _check_logs(
    topics: Mapping[str, TopicAssignment],
    found: Mapping[TopicPartition, UUID | None],
    options: TransferOptions,
    plan: Plan,
) -> None:
    """Refuse partitions without a log, unless the options allow it, and logs of an earlier topic of the same name."""
    missing = [str(at) for at, _ in _partitions(topics) if at not in found]
    if missing and not options.allow_empty:
        raise CannotCarry(f"no log directory has {_named(missing)}; --allow-empty lets them begin empty")
    others = [
        str(at)
        for at, topic_id in found.items()
        if at.topic in topics
        and topic_id not in (None, NO_UUID)
        and topics[at.topic].topic_id not in (NO_UUID, topic_id)
    ]
    if others:
        raise CannotCarry(f"of an earlier topic of the same name, by its id, is the log of {_named(others)}")
    strays = [str(at) for at in found if at.topic not in topics or at.partition_id not in topics[at.topic].replicas]
    if strays:
        plan.notes.append(f"on disk and of no topic: {_named(strays)}")


def _checked_config(name: str, zookeeper: CarriedNodes, plan: Plan) -> bytes:
    path = paths.topic_config_path(name)
    data = zookeeper.nodes.get(path) or paths.encode_config({})
    configs = paths.decode_config(path, data)
    unknown = sorted(set(configs) - set(TOPIC_CONFIGS))
    if unknown:
        plan.notes.append(f"topic {name} has settings that kbroker does not know: {_named(unknown)}")
    try:
        validate_topic_configs({key: text for key, text in configs.items() if key in TOPIC_CONFIGS})
    except ConfigError as error:
        raise CannotCarry(f"topic {name}: {error}") from None
    return data


# --- what is carried --------------------------------------------------------------------------------------------------


def _that_only_grows(one: CarriedNodes, other: CarriedNodes) -> Nodes:
    wanted = {paths.CONTROLLER_EPOCH: str(max(one.controller_epoch, other.controller_epoch)).encode()}
    blocks = [block for block in (one.producer_ids, other.producer_ids) if block is not None]
    if blocks:
        wanted[paths.PRODUCER_ID_BLOCK] = paths.encode_producer_id_block(max(blocks, key=lambda block: block.last))
    return wanted


def _topic_nodes(
    name: str,
    topic_id: UUID,
    replicas: Mapping[int, tuple[int, ...]],
    source: CarriedNodes,
    target: CarriedNodes,
    broker_id: int,
    *,
    epoch_step: int,
) -> Nodes:
    """The nodes of a topic and its partitions, all led by the one broker.

    A partition's leader epoch is the source's plus `epoch_step` (0 if the source has none), and at least the target's.
    """
    assignment = TopicAssignment(topic_id, dict(replicas), {}, {})
    path = paths.topic_path(name)
    before = source.nodes.get(path)
    is_same = before is not None and paths.decode_topic(path, before) == assignment
    wanted = {path: before if is_same and before is not None else paths.encode_topic(assignment)}
    wanted[paths.partitions_path(name)] = b""
    for partition_id in replicas:
        at = TopicPartition(name, partition_id)
        wanted[paths.partition_path(name, partition_id)] = b""
        state, there = _state(source, at), _state(target, at)
        epoch = 0 if state is None else state.leader_epoch + epoch_step
        if there is not None:
            epoch = max(epoch, there.leader_epoch)
        controller_epoch = max(source.controller_epoch, target.controller_epoch)
        if state is not None and epoch == state.leader_epoch:
            controller_epoch = state.controller_epoch
        elif there is not None and epoch == there.leader_epoch:
            controller_epoch = there.controller_epoch
        led = PartitionRegistration(broker_id, epoch, (broker_id,), controller_epoch)
        wanted[paths.partition_state_path(name, partition_id)] = paths.encode_partition_state(led)
    return wanted


def _topic_id_of(
    name: str, topic: TopicAssignment, known: TopicAssignment | None, found: Mapping[TopicPartition, UUID | None]
) -> UUID:
    """Return the topic's id. A topic of a Kafka before 2.8 has no id; it gets the store's, its logs', or a new one."""
    if known is not None and topic.topic_id not in (NO_UUID, known.topic_id):
        raise CannotCarry(f"topic {name} has id {known.topic_id} in the store and {topic.topic_id} in ZooKeeper")
    if topic.topic_id != NO_UUID:
        return topic.topic_id
    if known is not None:
        return known.topic_id
    on_disk = (topic_id for at, topic_id in found.items() if at.topic == name)
    return next((topic_id for topic_id in on_disk if topic_id), None) or random_id()


def _nodes_of_topic(name: str, nodes: CarriedNodes) -> list[str]:
    path = paths.topic_path(name)
    own = [path, paths.topic_config_path(name), paths.delete_topic_path(name)]
    return [each for each in nodes.nodes if each in own or each.startswith(path + "/")]


def _finished(plan: Plan, wanted: Nodes, there: CarriedNodes, target: Source, removed: Iterable[str] = ()) -> Plan:
    plan.topic_count = sum(path.startswith(paths.TOPICS) and path.count("/") == 3 for path in wanted)
    plan.partition_count = sum(path.startswith(paths.TOPICS) and path.endswith("/state") for path in wanted)
    plan.operations += [Delete(path) for path in sorted(removed, reverse=True)]
    plan.operations += _operations(wanted, there.nodes, target, set())
    return plan


def _operations(wanted: Nodes, there: Nodes, target: Source, made: set[str]) -> list[Operation]:
    """The operations that create missing nodes, with their parents, and set changed ones.

    `made` has the paths of nodes that exist by then.
    """
    changed = differing(wanted, there)
    above = dict.fromkeys(parent for path in changed for parent in _ancestors(path) if parent not in made)
    missing = {path for path, node in zip(above, target.get_many(list(above)), strict=True) if node is None}
    operations: list[Operation] = []
    for path in sorted({*changed, *missing}):
        is_there = path in there or (path in above and path not in missing)
        operations.append(SetData(path, wanted[path]) if is_there else Create(path, wanted.get(path, b"")))
    return operations


def _parents(plan: Plan) -> set[str]:
    return {each.path for each in plan.operations if isinstance(each, Create)}


def _ancestors(path: str) -> Iterable[str]:
    while (path := parent_of(path)) != "/":
        yield path


# --- shared -----------------------------------------------------------------------------------------------------------


def _without_doomed(topics: Mapping[str, TopicAssignment], nodes: CarriedNodes) -> dict[str, TopicAssignment]:
    """The topics that are not marked for deletion."""
    return {name: topic for name, topic in topics.items() if paths.delete_topic_path(name) not in nodes.nodes}


def _partitions(topics: Mapping[str, TopicAssignment]) -> Iterable[tuple[TopicPartition, tuple[int, ...]]]:
    for name, topic in topics.items():
        for partition_id, replicas in topic.replicas.items():
            yield TopicPartition(name, partition_id), replicas


def _state(nodes: CarriedNodes, at: TopicPartition) -> PartitionRegistration | None:
    path = paths.partition_state_path(at.topic, at.partition_id)
    data = nodes.nodes.get(path)
    return None if data is None else paths.decode_partition_state(path, data)


def _named(names: list[str]) -> str:
    return listed(names, MOST_NAMES)
