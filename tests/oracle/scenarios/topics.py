"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario

CREATE, DELETE, PARTITIONS = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS
NAME_OF_249 = "x" * 249
INVALID_NAMES = ("", " ", "a b", ".", "..", "a/b", "a:b", "ä", "x" * 250, "a\0b", "a\n")
Creatable = M.CreateTopicsRequest.CreatableTopic
Assignment = M.CreateTopicsRequest.CreatableReplicaAssignment


def creatable(
    name: str, partitions: int = 1, replicas: int = 1, **configs: str | None
) -> M.CreateTopicsRequest.CreatableTopic:
    config = M.CreateTopicsRequest.CreatableTopicConfig
    wanted = [config(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return Creatable(name=name, num_partitions=partitions, replication_factor=replicas, configs=wanted)


def create(
    *topics: M.CreateTopicsRequest.CreatableTopic, timeout_ms: int = 30000, check: bool = False
) -> M.CreateTopicsRequest:
    return M.CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=check)


def by_hand(
    name: str, *assignments: tuple[int, list[int]], partitions: int = -1, replicas: int = -1
) -> M.CreateTopicsRequest.CreatableTopic:
    placed = [Assignment(partition_index=index, broker_ids=brokers) for index, brokers in assignments]
    return Creatable(name=name, num_partitions=partitions, replication_factor=replicas, assignments=placed)


@scenario(CREATE)
def topics(t: Talk) -> None:
    t.ask(create(creatable(t.name("one"))))
    t.ask(create(creatable(t.name("two"), 3), creatable(t.name("three"), 1)))


@scenario(CREATE)
def topics_that_exist(t: Talk) -> None:
    topic = t.topic()
    t.ask(create(creatable(topic)))
    t.ask(create(creatable(topic, partitions=0), creatable(t.name("new"))))


@scenario(CREATE)
def the_same_topic_twice(t: Talk) -> None:
    t.ask(create(creatable(t.name("t")), creatable(t.name("other")), creatable(t.name("t"), 2)))
    t.ask(create(creatable(t.name("t"))))


@scenario(CREATE)
def no_topics(t: Talk) -> None:
    t.ask(create())


@scenario(CREATE)
def names_that_cannot_be(t: Talk) -> None:
    for name in INVALID_NAMES:
        t.ask(create(creatable(name)))


@scenario(CREATE)
def names_that_collide(t: Talk) -> None:
    """Names collide that differ in a dot and an underscore: they are the same in names of metrics."""
    t.ask(create(creatable(t.name("a.b"))))
    t.ask(create(creatable(t.name("a_b"))))
    t.ask(create(creatable(t.name("c.d")), creatable(t.name("c_d"))))


@scenario(CREATE)
def a_long_name(t: Talk) -> None:
    t.ask(create(creatable(t.name("").ljust(249, "x"))))
    t.ask(create(creatable(t.name("").ljust(250, "x"))))


@scenario(CREATE)
def internal_names(t: Talk) -> None:
    t.ask(create(creatable("__consumer_offsets"), creatable("__cluster_metadata")))
    t.ask(create(creatable(t.name("__inside"))))


@scenario(CREATE)
def counts_that_cannot_be(t: Talk) -> None:
    for partitions in (0, -2, -(2**31)):
        t.ask(create(creatable(t.name("t"), partitions)))
    for replicas in (0, -2, 2, 32767):
        t.ask(create(creatable(t.name("t"), 1, replicas)))
    t.ask(create(creatable(t.name("t"), 0, 0)))


@scenario(CREATE, since=4)
def counts_left_to_the_broker(t: Talk) -> None:
    t.ask(create(creatable(t.name("t"), -1, -1)))


@scenario(CREATE, until=3)
def counts_that_older_versions_must_give(t: Talk) -> None:
    t.ask(create(creatable(t.name("t"), -1, -1)))
    t.ask(create(creatable(t.name("u"), 1, -1)))
    t.ask(create(creatable(t.name("v"), -1, 1)))


@scenario(CREATE)
def replicas_by_hand(t: Talk) -> None:
    t.ask(create(by_hand(t.name("one"), (0, [0]))))
    t.ask(create(by_hand(t.name("two"), (1, [0]), (0, [0]))))


@scenario(CREATE)
def replicas_by_hand_that_cannot_be(t: Talk) -> None:
    name = t.name("t")
    for assignments in (
        [(0, [7])],
        [(0, [0, 0])],
        [(0, [])],
        [(1, [0])],
        [(0, [0]), (2, [0])],
        [(0, [0]), (0, [0])],
        [(-1, [0])],
        [(0, [-1])],
        [(0, [0]), (1, [0, 7])],
    ):
        t.ask(create(by_hand(name, *assignments)))
    t.ask(create(by_hand(name, (0, [0]), partitions=1)))
    t.ask(create(by_hand(name, (0, [0]), replicas=1)))
    t.ask(create(by_hand(name, (0, [0]), partitions=1, replicas=1)))


@scenario(CREATE)
def configs(t: Talk) -> None:
    t.ask(
        create(creatable(t.name("one"), retention_ms="1000", cleanup_policy="compact,delete", max_message_bytes="99"))
    )


@scenario(CREATE)
def configs_that_cannot_be(t: Talk) -> None:
    wrong: list[dict[str, str | None]] = [
        {"retention_ms": "soon"},
        {"retention_ms": ""},
        {"retention_ms": "-2"},
        {"segment_bytes": "1"},
        {"segment_bytes": "99999999999"},
        {"cleanup_policy": "burn"},
        {"cleanup_policy": ""},
        {"compression_type": "rar"},
        {"min_insync_replicas": "0"},
        {"unclean_leader_election_enable": "maybe"},
        {"message_timestamp_type": "Tomorrow"},
        {"min_cleanable_dirty_ratio": "1.5"},
        {"no_such_config": "1"},
        {"retention_ms": None},
        {"min_compaction_lag_ms": "10", "max_compaction_lag_ms": "5"},
        {"leader_replication_throttled_replicas": "x"},
        {"leader_replication_throttled_replicas": "0:0,1:0"},
        {"remote_storage_enable": "true"},
        {"local_retention_ms": "5000", "retention_ms": "1000"},
    ]
    for number, one in enumerate(wrong):
        t.ask(create(creatable(t.name(str(number)), **one)))


@scenario(CREATE)
def the_same_config_twice(t: Talk) -> None:
    config = M.CreateTopicsRequest.CreatableTopicConfig
    both = [config(name="retention.ms", value="1000"), config(name="retention.ms", value="2000")]
    t.ask(create(Creatable(name=t.name("t"), num_partitions=1, replication_factor=1, configs=both)))


@scenario(CREATE, since=1)
def only_checked(t: Talk) -> None:
    topic = t.topic()
    t.ask(create(creatable(t.name("new"), 2, retention_ms="5"), check=True))
    t.ask(create(creatable(t.name("new"), retention_ms="x"), creatable(topic), creatable("a b"), check=True))
    t.ask(
        M.MetadataRequest(
            topics=[M.MetadataRequest.MetadataRequestTopic(name=t.name("new"))], allow_auto_topic_creation=False
        )
    )


@scenario(CREATE)
def with_little_time(t: Talk) -> None:
    for number, timeout_ms in enumerate((0, -1)):
        t.ask(create(creatable(t.name(str(number))), timeout_ms=timeout_ms))


@scenario(CREATE, alone=True)
def made_again_after_its_end(t: Talk) -> None:
    topic = t.topic()
    t.do(M.DeleteTopicsRequest(topics=[M.DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30000))
    t.ask(create(creatable(topic)))


def delete(t: Talk, *names: str, timeout_ms: int = 30000) -> M.DeleteTopicsRequest:
    state = M.DeleteTopicsRequest.DeleteTopicState
    return M.DeleteTopicsRequest(
        topics=[state(name=name) for name in names], topic_names=list(names), timeout_ms=timeout_ms
    )


def delete_ids(*topic_ids: bytes) -> M.DeleteTopicsRequest:
    state = M.DeleteTopicsRequest.DeleteTopicState
    return M.DeleteTopicsRequest(
        topics=[state(name=None, topic_id=topic_id) for topic_id in topic_ids], timeout_ms=30000
    )


@scenario(DELETE, alone=True)
def some_topics(t: Talk) -> None:
    one, two = t.topic("one"), t.topic("two", 2)
    t.ask(delete(t, one, two))
    t.ask(delete(t, one))


@scenario(DELETE, alone=True)
def topics_that_are_not_there(t: Talk) -> None:
    t.ask(delete(t, t.name("nowhere"), t.topic()))
    for name in INVALID_NAMES:
        t.ask(delete(t, name))


@scenario(DELETE, alone=True)
def nothing_to_delete(t: Talk) -> None:
    t.ask(delete(t))


@scenario(DELETE, alone=True)
def deleted_twice_at_once(t: Talk) -> None:
    topic = t.topic()
    t.ask(delete(t, topic, topic, t.name("nowhere")))
    t.ask(
        M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    )


@scenario(DELETE, alone=True)
def deleted_with_little_time(t: Talk) -> None:
    for number, timeout_ms in enumerate((0, -1)):
        t.ask(delete(t, t.topic(str(number)), timeout_ms=timeout_ms))


@scenario(DELETE, since=6, alone=True)
def topics_by_id(t: Talk) -> None:
    topic = t.topic()
    t.ask(delete_ids(b"\x05" * 16))
    t.ask(delete_ids(bytes(16)))
    t.ask(delete_ids(t.topic_ids[topic], b"\x06" * 16))
    t.ask(delete_ids(t.topic_ids[topic]))


@scenario(DELETE, since=6, alone=True)
def by_id_and_by_name(t: Talk) -> None:
    topic, other = t.topic(), t.topic("other")
    state = M.DeleteTopicsRequest.DeleteTopicState
    t.ask(M.DeleteTopicsRequest(topics=[state(name=topic, topic_id=t.topic_ids[topic])], timeout_ms=30000))
    both = [state(name=topic), state(name=None, topic_id=t.topic_ids[topic])]
    t.ask(M.DeleteTopicsRequest(topics=both, timeout_ms=30000))
    twice = [state(name=None, topic_id=t.topic_ids[other])] * 2
    t.ask(M.DeleteTopicsRequest(topics=twice, timeout_ms=30000))


def partitions(topics: dict[str, int], check: bool = False, timeout_ms: int = 30000) -> M.CreatePartitionsRequest:
    one = M.CreatePartitionsRequest.CreatePartitionsTopic
    wanted = [one(name=name, count=count, assignments=None) for name, count in topics.items()]
    return M.CreatePartitionsRequest(topics=wanted, timeout_ms=timeout_ms, validate_only=check)


@scenario(PARTITIONS)
def more_partitions(t: Talk) -> None:
    topic, other = t.topic(), t.topic("other", 2)
    t.ask(partitions({topic: 3, other: 4}))
    t.await_leaders(topic, 3)
    t.ask(M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=topic)]))


@scenario(PARTITIONS)
def counts_of_partitions_that_cannot_be(t: Talk) -> None:
    topic = t.topic(partitions=3)
    for count in (3, 2, 1, 0, -1, -(2**31)):
        t.ask(partitions({topic: count}))


@scenario(PARTITIONS)
def partitions_of_topics_that_are_not_there(t: Talk) -> None:
    t.ask(partitions({t.name("nowhere"): 3, t.topic(): 2}))
    for name in INVALID_NAMES:
        t.ask(partitions({name: 3}))


@scenario(PARTITIONS)
def no_partitions(t: Talk) -> None:
    t.ask(partitions({}))


@scenario(PARTITIONS)
def partitions_only_checked(t: Talk) -> None:
    topic = t.topic()
    t.ask(partitions({topic: 3}, check=True))
    t.ask(partitions({topic: 1}, check=True))
    t.ask(M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=topic)]))


@scenario(PARTITIONS)
def partitions_with_little_time(t: Talk) -> None:
    topic = t.topic()
    for timeout_ms in (0, -1):
        t.ask(partitions({topic: 2}, timeout_ms=timeout_ms))


@scenario(PARTITIONS)
def partitions_of_a_topic_twice(t: Talk) -> None:
    topic = t.topic()
    one = M.CreatePartitionsRequest.CreatePartitionsTopic
    both = [one(name=topic, count=count, assignments=None) for count in (2, 3)]
    t.ask(M.CreatePartitionsRequest(topics=both, timeout_ms=30000))


@scenario(PARTITIONS)
def partitions_placed_by_hand(t: Talk) -> None:
    topic = t.topic()
    one = M.CreatePartitionsRequest.CreatePartitionsTopic
    place = M.CreatePartitionsRequest.CreatePartitionsAssignment
    for count, places in (
        (3, [[0]]),
        (2, [[7]]),
        (2, [[0, 0]]),
        (2, [[]]),
        (2, [[0], [0]]),
        (2, []),
        (2, [[0, 7]]),
        (3, [[0], [0]]),
    ):
        wanted = one(name=topic, count=count, assignments=[place(broker_ids=brokers) for brokers in places])
        t.ask(M.CreatePartitionsRequest(topics=[wanted], timeout_ms=30000))


@scenario(PARTITIONS)
def partitions_of_an_internal_topic(t: Talk) -> None:
    t.ask(partitions({"__consumer_offsets": 1}))
