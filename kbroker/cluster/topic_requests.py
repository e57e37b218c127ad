"""What a broker asks its controller to do with topics, as values: planned and checked, for `Controller.ask`.

The answer is a mapping from topic names to error codes. It comes when the nodes are written; the partitions get their
leaders afterwards, and the metadata says so. A broker that is not the controller answers NOT_CONTROLLER for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker.coordination.paths import TopicAssignment
from kbroker.errors import ErrorCode


class PlannedTopic(NamedTuple):
    """A new topic: its id and replicas, and its own configs."""

    assignment: TopicAssignment
    configs: Mapping[str, str]


class CreateTopics(NamedTuple):
    """Topics to create, by name. TOPIC_ALREADY_EXISTS for one that exists, or whose deletion is not finished."""

    topics: Mapping[str, PlannedTopic]


class GrowTopics(NamedTuple):
    """Replicas of new partitions, by topic and partition id.

    INVALID_PARTITIONS if one exists already or there would be a gap; REASSIGNMENT_IN_PROGRESS as in Kafka;
    INVALID_TOPIC_EXCEPTION for a topic whose deletion is not finished.
    """

    topics: Mapping[str, Mapping[int, tuple[int, ...]]]


class DeleteTopics(NamedTuple):
    """Topics to delete. UNKNOWN_TOPIC_OR_PARTITION for one that does not exist."""

    names: Sequence[str]


TopicRequest = CreateTopics | GrowTopics | DeleteTopics
TopicCodes = Mapping[str, ErrorCode]
AskForTopics = Callable[[TopicRequest, Callable[[TopicCodes], None]], None]
"""Asks the controller of this broker. The second argument is called once, on any thread; it must not block."""
