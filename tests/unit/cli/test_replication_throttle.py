"""Which replicas a throttle names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kbroker.cli.replication_throttle import FOLLOWERS, LEADERS, throttled_replicas
from kbroker.client.admin.results import PartitionDescription, Reassignment, TopicDescription
from kbroker.cluster.topic_configs import validate_topic_configs
from kbroker.model import TopicPartition

MOST_BYTES = 32_767
"""The longest value of a setting that Apache Kafka takes."""


class CountedPartitions(tuple[PartitionDescription, ...]):
    """Partitions of a topic that count how many of them are looked at."""

    steps = 0

    def __iter__(self) -> Iterator[PartitionDescription]:
        for each in super().__iter__():
            CountedPartitions.steps += 1
            yield each


def topic(partitions: int) -> TopicDescription:
    found = (PartitionDescription(each, 1, 0, (1, 2, 3), (1, 2, 3)) for each in range(partitions))
    return TopicDescription("views", bytes(16), False, tuple(found))


def test_replicas_of_now_are_throttled_as_leaders_and_new_ones_as_followers() -> None:
    plan = {TopicPartition("views", 0): [1, 2, 4]}
    moving = {TopicPartition("views", 1): Reassignment((1, 2, 3), (3,), ())}
    found = throttled_replicas(plan, {"views": topic(3)}, moving)
    assert found == {"views": {LEADERS: "0:1,0:2,0:3,1:1,1:2", FOLLOWERS: "0:4,1:3"}}


def test_more_replicas_than_a_setting_can_name_are_all_replicas_of_the_topic() -> None:
    for partitions in (1_000, 2_000, 3_000, 10_000):
        plan = {TopicPartition("views", each): [1, 2, 4] for each in range(partitions)}
        settings = throttled_replicas(plan, {"views": topic(partitions)}, {})["views"]
        assert max(map(len, settings.values())) <= MOST_BYTES
        assert (settings[LEADERS] == "*") == (partitions > 1_000)
        assert (settings[FOLLOWERS] == "*") == (partitions > 3_000)
        validate_topic_configs(settings)


def test_each_partition_of_a_topic_is_looked_at_once() -> None:
    plan = {TopicPartition("views", each): [1, 2, 4] for each in range(100)}
    counted = replace(topic(100), partitions=CountedPartitions(topic(100).partitions))
    CountedPartitions.steps = 0
    throttled_replicas(plan, {"views": counted}, {})
    assert CountedPartitions.steps == 100
