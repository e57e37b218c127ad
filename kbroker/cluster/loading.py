"""The metadata image out of the coordination store: few calls, whole levels of the tree at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.cluster.image import NO_LEADER, MetadataImage, Partition, Topic
from kbroker.coordination import paths
from kbroker.coordination.store import Store
from kbroker.model import NO_UUID

# With 5,000 partitions most states and configs are the same bytes: one parse serves them all.
_States = dict[bytes, paths.PartitionRegistration]


def load_image(store: Store, cluster_id: str) -> tuple[MetadataImage, dict[str, Topic]]:
    """(Topics and broker configs, topics whose deletion was begun). Brokers are for their registry to add."""
    topics = {topic.name: topic for topic in _load_topics(store, store.children(paths.TOPICS))}
    doomed = {name: topics.pop(name) for name in store.children(paths.DELETE_TOPICS) if name in topics}
    entities = store.children(paths.BROKER_CONFIGS)
    broker_configs = _load_configs(store, {entity: paths.broker_config_path(entity) for entity in entities})
    names = {topic.topic_id: topic.name for topic in topics.values() if topic.topic_id != NO_UUID}
    return MetadataImage(cluster_id, topics=topics, names=names, broker_configs=broker_configs), doomed


def _load_topics(store: Store, names: list[str]) -> Iterable[Topic]:
    assignments = {}
    for name, found in zip(names, store.get_many([paths.topic_path(name) for name in names]), strict=True):
        if found is not None:
            assignments[name] = paths.decode_topic(paths.topic_path(name), found[0])
    configs = _load_configs(store, {name: paths.topic_config_path(name) for name in assignments})
    state_paths = [
        paths.partition_state_path(name, partition_id)
        for name, assignment in assignments.items()
        for partition_id in assignment.replicas
    ]
    states = dict(zip(state_paths, store.get_many(state_paths), strict=True))
    decoded: _States = {}
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
                # A controller died between the topic and its first states; until one takes it up, nobody leads.
                partitions.append(Partition(partition_id, NO_LEADER, 0, replicas, (), state_version=-1))
                continue
            data, stat = found
            state = decoded.get(data) or decoded.setdefault(data, paths.decode_partition_state(path, data))
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
        yield Topic(name, assignment.topic_id, tuple(partitions), configs[name])


def _load_configs(store: Store, path_of: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    decoded: dict[bytes, Mapping[str, str]] = {}
    configs: dict[str, Mapping[str, str]] = {}
    for (name, path), found in zip(path_of.items(), store.get_many(list(path_of.values())), strict=True):
        data = b"" if found is None else found[0]
        configs[name] = decoded.get(data) or decoded.setdefault(data, paths.decode_config(path, data))
    return configs
