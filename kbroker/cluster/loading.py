"""Loads the metadata image from the coordination store, in few calls that each read a whole level of the tree.

A broker that is alone has written all nodes itself: one that cannot be read raises StoreCorrupt. In a cluster others
write too: a member passes over such nodes (`member_nodes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kbroker.cluster.image import NO_LEADER, MetadataImage, Partition, Topic
from kbroker.coordination import paths
from kbroker.coordination.store import Store
from kbroker.model import NO_UUID

# Most nodes of one kind have the same data, or differ only in the topic id, so one parse serves them all. With 5,000
# topics that halves the time.
_TOPIC_ID = b'"topic_id":"'
_ID_LENGTH = 22

PassOver = Callable[[paths.StoreCorrupt], None]
"""Told of each node that cannot be read and is left out therefore."""


def _raise(error: paths.StoreCorrupt) -> None:
    raise error


def load_image(store: Store, cluster_id: str) -> tuple[MetadataImage, dict[str, Topic]]:
    """Load an image with topics and configs, and the topics whose deletion has begun, by name.

    The image has no brokers yet: these come from the registry.
    """
    topics = {topic.name: topic for topic in _load_topics(store, store.children(paths.TOPICS))}
    doomed = {name: topics.pop(name) for name in store.children(paths.DELETE_TOPICS) if name in topics}
    broker_configs, group_configs = load_broker_configs(store), load_group_configs(store)
    names = {topic.topic_id: topic.name for topic in topics.values() if topic.topic_id != NO_UUID}
    image = MetadataImage(
        cluster_id, topics=topics, names=names, broker_configs=broker_configs, group_configs=group_configs
    )
    return image, doomed


def load_broker_configs(store: Store, pass_over: PassOver = _raise) -> dict[str, Mapping[str, str]]:
    """Load the dynamic configs of brokers, by id or paths.DEFAULT_ENTITY."""
    entities = store.children(paths.BROKER_CONFIGS)
    found = load_configs(store, {entity: paths.broker_config_path(entity) for entity in entities}, pass_over)
    return {entity: configs for entity, configs in found.items() if configs is not None}


def load_group_configs(store: Store, pass_over: PassOver = _raise) -> dict[str, Mapping[str, str]]:
    """Load the configs of groups, by group id."""
    groups: dict[str, str] = {}
    for name in store.children(paths.GROUP_CONFIGS) if store.exists(paths.GROUP_CONFIGS) else []:
        try:
            groups[paths.group_of_config(name)] = f"{paths.GROUP_CONFIGS}/{name}"
        except paths.StoreCorrupt as error:
            pass_over(error)
    found = load_configs(store, groups, pass_over)
    return {group_id: configs for group_id, configs in found.items() if configs is not None}


def _load_topics(store: Store, names: list[str]) -> Iterable[Topic]:
    assignments = load_assignments(store, names)
    configs = load_configs(store, {name: paths.topic_config_path(name) for name in assignments})
    state_paths = [
        paths.partition_state_path(name, partition_id)
        for name, assignment in assignments.items()
        for partition_id in assignment.replicas
    ]
    states = dict(zip(state_paths, store.get_many(state_paths), strict=True))
    decoded: dict[bytes, paths.PartitionRegistration] = {}
    for name, assignment in assignments.items():
        ids = sorted(assignment.replicas)
        if ids != list(range(len(ids))) or not ids:
            raise paths.StoreCorrupt(paths.topic_path(name), f"its partitions are {ids}")
        partitions = []
        for partition_id in ids:
            path = paths.partition_state_path(name, partition_id)
            found = states[path]
            replicas = assignment.replicas[partition_id]
            if found is None:
                # A controller died after it had created the topic's node and before the states: there is no leader yet.
                partitions.append(Partition(partition_id, NO_LEADER, 0, replicas, (), state_version=-1))
                continue
            data, stat = found
            if data not in decoded:
                decoded[data] = paths.decode_partition_state(path, data)
            state = decoded[data]
            partitions.append(
                Partition(
                    partition_id,
                    state.leader,
                    state.leader_epoch,
                    replicas,
                    state.isr,
                    state_version=stat.version,
                )
            )
        own = configs[name]
        yield Topic(name, assignment.topic_id, tuple(partitions), own or {}, configs_given=own is not None)


def load_assignments(store: Store, names: list[str], pass_over: PassOver = _raise) -> dict[str, paths.TopicAssignment]:
    """Load the assignments of those of the topics that exist."""
    decoded: dict[tuple[bytes, bytes], paths.TopicAssignment] = {}
    assignments = {}
    topic_paths = [paths.topic_path(name) for name in names]
    for name, path, found in zip(names, topic_paths, store.get_many(topic_paths), strict=True):
        if found is None:
            continue
        before, mark, behind = found[0].partition(_TOPIC_ID)
        rest = (before, behind[_ID_LENGTH:])
        try:
            if mark and rest in decoded:
                topic_id = paths.decode_topic_id(path, behind[:_ID_LENGTH])
                assignments[name] = decoded[rest]._replace(topic_id=topic_id)
            else:
                assignments[name] = decoded[rest] = paths.decode_topic(path, found[0])
        except paths.StoreCorrupt as error:
            pass_over(error)
    return assignments


def load_configs(
    store: Store, path_of: Mapping[str, str], pass_over: PassOver = _raise
) -> dict[str, Mapping[str, str] | None]:
    """Load the configs of each name; None if its node does not exist."""
    decoded: dict[bytes, Mapping[str, str]] = {}
    configs: dict[str, Mapping[str, str] | None] = {}
    for (name, path), found in zip(path_of.items(), store.get_many(list(path_of.values())), strict=True):
        if found is None:
            configs[name] = None
            continue
        data = found[0]
        try:
            if data not in decoded:
                decoded[data] = paths.decode_config(path, data)
            configs[name] = decoded[data]
        except paths.StoreCorrupt as error:
            pass_over(error)
    return configs
