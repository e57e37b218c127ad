"""Decides what a single broker shows of itself in ZooKeeper, for clients and tools that look there.

It shows topics, partitions and configs from its own store, in Kafka's layout; the store stays authoritative. The
functions here read both and return what has to be written; the caller writes it. Not shown: offsets of consumers
(/consumers belongs to them), the last block of producer ids, requests of tools (/admin).
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.cluster.carried_nodes import AS_THEY_ARE, MIGRATION, Nodes, Source, names_below, paths_below
from kbroker.cluster.image import NO_LEADER, MetadataImage, Topic
from kbroker.coordination import paths
from kbroker.coordination.store import Create, Delete, Operation, SetData
from kbroker.errors import ConfigError
from kbroker.rules.topic_names import listed

MOST_NAMES = 5
"""How many names one message gives."""


class CannotRegister(ConfigError):
    """ZooKeeper belongs to another cluster or cannot be used; nothing was changed in it."""


def check_cluster(zookeeper: Source, store: Source, node_id: int) -> None:
    """Raise CannotRegister if the broker must not write to this ZooKeeper.

    That is so if it holds another cluster, newer data than the store, other brokers, or a cluster that moves to KRaft.
    """
    ours, there = _cluster_id(store), _cluster_id(zookeeper)
    if there is not None and there != ours:
        raise CannotRegister(
            f"it holds cluster {there}, this broker is of cluster {ours}: give another chroot, or take that cluster "
            "over with `kbroker cluster import`"
        )
    if there is None and names_below(zookeeper, paths.TOPICS):
        raise CannotRegister("it holds topics of a cluster without an id: give another chroot")
    strange = _strange_topics(zookeeper, store, node_id)
    if _number(zookeeper, paths.CONTROLLER_EPOCH) > _number(store, paths.CONTROLLER_EPOCH) or strange:
        raise CannotRegister(
            "another broker has used it since, and what it wrote is not known here"
            f"{f' ({listed(strange, MOST_NAMES)})' if strange else ''}: run `kbroker cluster import` first"
        )
    if zookeeper.get_many([MIGRATION])[0] is not None:
        raise CannotRegister("the cluster in it is on its way to KRaft")
    others = [name for name in names_below(zookeeper, paths.BROKER_IDS) if name != str(node_id)]
    if others:
        raise CannotRegister(
            f"broker {listed(sorted(others), MOST_NAMES)} is registered in it, and kbroker stands alone"
        )


def _strange_topics(zookeeper: Source, store: Source, node_id: int) -> list[str]:
    """Topics that are not in the store and have a replica on another broker."""
    unknown = sorted(set(names_below(zookeeper, paths.TOPICS)) - set(names_below(store, paths.TOPICS)))
    strange = []
    for name, found in zip(unknown, zookeeper.get_many([paths.topic_path(name) for name in unknown]), strict=True):
        if found is not None:
            replicas = paths.decode_topic(paths.topic_path(name), found[0]).replicas
            if any(brokers != (node_id,) for brokers in replicas.values()):
                strange.append(name)
    return strange


def changes(store: Source, zookeeper: Source, image: MetadataImage, shown: MetadataImage | None) -> list[Operation]:
    """The operations after which ZooKeeper shows `image`.

    `shown` is the image that it shows now; None: not known, so that all of its nodes are read.
    """
    known = {} if shown is None else shown.topics
    topics = [topic for name, topic in image.topics.items() if known.get(name) is not topic]
    names = set(known)
    wanted = _nodes_of(store, topics)
    removed: list[str] = []
    if shown is None:
        names = {*names_below(zookeeper, paths.TOPICS), *names_below(zookeeper, paths.TOPIC_CONFIGS)}
        wanted |= _read(store, [paths.CONTROLLER_EPOCH])
    if shown is None or shown.broker_configs is not image.broker_configs:
        settings = _read(store, [path for root in AS_THEY_ARE for path in paths_below(store, root)])
        there = [path for root in AS_THEY_ARE for path in paths_below(zookeeper, root)]
        removed += [path for path in there if path not in settings]
        wanted |= settings
    for name in names - image.topics.keys():
        removed += [*_tree(zookeeper, paths.topic_path(name)), *_tree(zookeeper, paths.topic_config_path(name))]
    there_now = _read(zookeeper, wanted)
    for topic in topics:
        path = paths.topic_path(topic.name)
        if there_now.get(path, wanted.get(path)) != wanted.get(path):  # it may have had more partitions before
            below = paths_below(zookeeper, paths.partitions_path(topic.name))
            removed += [each for each in below if each not in wanted]
    operations: list[Operation] = [Delete(path) for path in sorted(removed, reverse=True)]
    for path in sorted(wanted):
        if path not in there_now:
            operations.append(Create(path, wanted[path]))
        elif there_now[path] != wanted[path]:
            operations.append(SetData(path, wanted[path]))
    return operations


def _nodes_of(store: Source, topics: Iterable[Topic]) -> Nodes:
    """The nodes of the topics. Partitions whose log directory has failed are shown without a leader."""
    wanted: list[str] = []
    leaderless = []
    for topic in topics:
        name = topic.name
        wanted += [paths.topic_path(name), paths.topic_config_path(name), paths.partitions_path(name)]
        for partition in topic.partitions:
            state_path = paths.partition_state_path(name, partition.partition_id)
            wanted += [paths.partition_path(name, partition.partition_id), state_path]
            if partition.leader == NO_LEADER:
                leaderless.append(state_path)
    nodes = _read(store, wanted)
    for path in leaderless:
        if path in nodes:
            state = paths.decode_partition_state(path, nodes[path])
            nodes[path] = paths.encode_partition_state(state._replace(leader=NO_LEADER))
    return nodes


def _tree(source: Source, root: str) -> list[str]:
    return [*_read(source, [root]), *paths_below(source, root)]


def _read(source: Source, wanted: Iterable[str]) -> Nodes:
    """The existing nodes among `wanted`, by path."""
    asked = list(wanted)
    return {path: each[0] for path, each in zip(asked, source.get_many(asked), strict=True) if each is not None}


def _cluster_id(source: Source) -> str | None:
    data = _read(source, [paths.CLUSTER_ID]).get(paths.CLUSTER_ID)
    return None if data is None else paths.decode_cluster_id(paths.CLUSTER_ID, data)


def _number(source: Source, path: str) -> int:
    data = _read(source, [path]).get(path, b"0")
    if not data.isdigit():
        raise paths.StoreCorrupt(path, "no number")
    return int(data)
