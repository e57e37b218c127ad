"""Decides whether a topic may be created or grow, and where its partitions go; `topics.py` carries it out.

Checks are in the order of Kafka's controller and have its error messages.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kbroker.cluster.image import MetadataImage, Topic
from kbroker.cluster.topic_configs import validate_topic_configs
from kbroker.errors import ConfigError, ErrorCode, ProtocolError
from kbroker.model import number_key
from kbroker.rules.placement import place_replicas
from kbroker.rules.topic_names import collision_key, topic_name_problem

METADATA_LOG_TOPIC = "__cluster_metadata"
"""The name of a KRaft cluster's metadata log; no topic may have it."""

MAX_PARTITIONS_PER_REQUEST = 10_000

MIN_IN_SYNC = "min.insync.replicas"
TOO_MANY_PARTITIONS = ProtocolError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")

Replicas = tuple[int, ...]


class NewTopic(NamedTuple):
    """A topic to be created. -1 means the broker's default. `assignment`: (partition id, replicas), as requested."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignment: tuple[tuple[int, Replicas], ...] = ()
    configs: Mapping[str, str | None] = MappingProxyType({})


class MorePartitions(NamedTuple):
    """A topic that is to have `partition_count` partitions.

    `assignments` are the replicas of each new one; None: the broker places them.
    """

    topic: str
    partition_count: int
    assignments: Sequence[Replicas] | None = None


class TopicDefaults(NamedTuple):
    """The defaults of new topics: num.partitions and default.replication.factor."""

    partition_count: int = 1
    replication_factor: int = 1


def sized_to_cluster(new: NewTopic, broker_count: int) -> NewTopic:
    """Return `new` with a replication factor, and a min.insync.replicas, that so many brokers can give."""
    factor = min(new.replication_factor, max(1, broker_count))
    configs = dict(new.configs)
    if wish := configs.get(MIN_IN_SYNC):
        configs[MIN_IN_SYNC] = str(min(int(wish), factor))
    return NewTopic(new.name, new.partition_count, factor, configs=configs)


def check_name(name: str, image: MetadataImage, doomed: Collection[str]) -> None:
    """Raise ProtocolError if a topic of that name may not be created now.

    `doomed` are the names of topics whose deletion is not finished.
    """
    if name == METADATA_LOG_TOPIC:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    problem = topic_name_problem(name)
    if problem is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in image.topics:
        raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if name in doomed:
        raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    key = collision_key(name)
    other = _colliding(name, image) or next((each for each in doomed if collision_key(each) == key), None)
    if other is not None:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _colliding(name: str, image: MetadataImage) -> str | None:
    if "." not in name and "_" not in name:
        return None
    by_key = image.derived.get("collision keys")
    if by_key is None:
        by_key = {collision_key(topic): topic for topic in image.topics}
        image.derived["collision keys"] = by_key
    found: str | None = by_key.get(collision_key(name))
    return found


def check_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configs. Raises ProtocolError (INVALID_CONFIG) if one is null or wrong."""
    try:
        validate_topic_configs(configs)
    except ConfigError as error:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return {name: text for name, text in configs.items() if text is not None}


def partition_count(new: NewTopic, defaults: TopicDefaults) -> int:
    """Return how many partitions are requested for a new topic; not more than 0 if the request is invalid."""
    if new.assignment:
        return len(new.assignment)
    return defaults.partition_count if new.partition_count == -1 else new.partition_count


def are_too_many(wanted: Iterable[NewTopic], defaults: TopicDefaults) -> bool:
    """Return whether new topics have more partitions together than one request may ask for."""
    return sum(max(partition_count(new, defaults), 0) for new in wanted) > MAX_PARTITIONS_PER_REQUEST


def plan_replicas(
    new: NewTopic, image: MetadataImage, defaults: TopicDefaults, randomness: random.Random
) -> list[Replicas]:
    """The replicas of each partition of a new topic. Raises ProtocolError if they cannot be placed as requested."""
    if new.assignment:
        return _manual(new, image)
    if new.replication_factor == 0 or new.replication_factor < -1:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if new.partition_count == 0 or new.partition_count < -1:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    count = partition_count(new, defaults)
    factor = defaults.replication_factor if new.replication_factor == -1 else new.replication_factor
    return _place(image, count, factor, randomness.randrange(1 << 16), randomness.randrange(1 << 16), 0)


def _place(
    image: MetadataImage, count: int, factor: int, first_index: int, shift: int, first_partition_id: int
) -> list[Replicas]:
    brokers = image.brokers
    if factor > len(brokers):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            f"reached because only {len(brokers)} broker(s) are registered.",
        )
    racks = {node_id: broker.rack for node_id, broker in brokers.items()}
    return place_replicas(
        racks, count, factor, first_index=first_index, shift=shift, first_partition_id=first_partition_id
    )


def _manual(new: NewTopic, image: MetadataImage) -> list[Replicas]:
    if new.replication_factor != -1:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if new.partition_count != -1:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    planned: dict[bytes, Replicas] = {}
    factor = 0
    for partition_id, replicas in new.assignment:
        if number_key(partition_id) in planned:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {partition_id}")
        _check_replicas(replicas, image, factor)
        factor = len(replicas)
        planned[number_key(partition_id)] = replicas
    in_order = [planned[key] for key in map(number_key, range(len(planned))) if key in planned]
    if len(in_order) < len(planned):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return in_order


def _check_replicas(replicas: Replicas, image: MetadataImage, factor: int) -> None:
    """Check one partition's requested replicas. `factor`: how many the other partitions have; 0 for the first."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id in seen:
            raise _bad_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        seen.add(broker_id)
    if factor and len(replicas) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )


def _bad_assignment(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def plan_more_partitions(
    topic: Topic, count: int, assignments: Sequence[Replicas] | None, image: MetadataImage, randomness: random.Random
) -> list[Replicas]:
    """The replicas of each new partition, so that `topic` has `count`. Raises ProtocolError if that cannot be."""
    present = len(topic.partitions)
    if count == present:
        raise ProtocolError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase.",
        )
    added = count - present
    if added > MAX_PARTITIONS_PER_REQUEST:
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    if assignments is None:
        first_index, shift = randomness.randrange(1 << 16), randomness.randrange(1 << 16)
        return _place(image, added, topic.replication_factor, first_index, shift, present)
    if len(assignments) != added:
        raise _bad_assignment(
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) "
            "were specified."
        )
    for replicas in assignments:
        _check_replicas(replicas, image, topic.replication_factor)
    return list(assignments)
