"""What a broker that is alone answers where a controller would elect leaders or move replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.cluster.controller_requests import ElectionOutcome, PartitionOutcome
from kbroker.cluster.image import MetadataImage
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.outcomes import NOT_MOVED, NOT_NEEDED, target_problem
from kbroker.rules.controller.values import Assignment

NO_SUCH_PARTITION = "The partition does not exist."


def elect_leaders(image: MetadataImage, asked: Iterable[TopicPartition]) -> dict[TopicPartition, ElectionOutcome]:
    """Return the outcome of elections: this broker leads, or nobody can, because a log directory has failed."""
    outcomes = {}
    for each in asked:
        partition = image.partition(each)
        if partition is None:
            outcomes[each] = ElectionOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_PARTITION)
        elif partition.leader >= 0:
            outcomes[each] = ElectionOutcome(ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED)
        else:
            outcomes[each] = ElectionOutcome(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return outcomes


def alter_reassignments(
    image: MetadataImage, targets: Mapping[TopicPartition, tuple[int, ...] | None]
) -> dict[TopicPartition, PartitionOutcome]:
    """Return the outcome of reassignments: the replica is where it is to be, or it cannot be there."""
    outcomes = {}
    for each, target in targets.items():
        partition = image.partition(each)
        present = Assignment(() if partition is None else partition.replicas)
        if target is None:
            outcomes[each] = PartitionOutcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, NOT_MOVED)
        elif (problem := target_problem(present, target, image.brokers.keys())) is not None:
            outcomes[each] = PartitionOutcome(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
        elif partition is None:
            outcomes[each] = PartitionOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_PARTITION)
        else:
            outcomes[each] = PartitionOutcome(ErrorCode.NONE)
    return outcomes
