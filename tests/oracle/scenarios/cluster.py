"""DescribeCluster, DescribeTopicPartitions, FindCoordinator."""

from __future__ import annotations

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario

CLUSTER, PARTITIONS, FIND = ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.FIND_COORDINATOR
KEYS_SINCE = 4


@scenario(CLUSTER)
def the_cluster(t: Talk) -> None:
    t.ask(M.DescribeClusterRequest())
    t.ask(M.DescribeClusterRequest(include_cluster_authorized_operations=True))


@scenario(CLUSTER, since=1)
def endpoints(t: Talk) -> None:
    for kind in (0, 1, 2, 3, -1):
        t.ask(M.DescribeClusterRequest(endpoint_type=kind))


def partitions(
    *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> M.DescribeTopicPartitionsRequest:
    one = M.DescribeTopicPartitionsRequest.TopicRequest
    start = (
        None
        if cursor is None
        else M.DescribeTopicPartitionsRequest.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    )
    return M.DescribeTopicPartitionsRequest(
        topics=[one(name=name) for name in names], response_partition_limit=limit, cursor=start
    )


@scenario(PARTITIONS)
def partitions_of_topics(t: Talk) -> None:
    one, two = t.topic("one", 3), t.topic("two")
    t.ask(partitions(one))
    t.ask(partitions(two, one, one))
    t.ask(partitions("__consumer_offsets"))


@scenario(PARTITIONS)
def partitions_of_topics_that_are_not_there(t: Talk) -> None:
    t.ask(partitions(t.name("nowhere"), t.topic()))
    t.ask(partitions("", "a b", "..", "x" * 250))


@scenario(PARTITIONS)
def pages(t: Talk) -> None:
    one, two = t.topic("one", 3), t.topic("two", 3)
    both = (two, one)
    for limit in (1, 2, 3, 4, 6, 7, 0, -1, 5000):
        t.ask(partitions(*both, limit=limit))
    for cursor in (
        (one, 0),
        (one, 2),
        (one, 3),
        (two, 1),
        (two, 7),
        (t.name("a"), 0),
        (t.name("p"), 0),
        (t.name("z"), 0),
        (one, -1),
        ("", 0),
    ):
        t.ask(partitions(*both, limit=2, cursor=cursor))


@scenario(PARTITIONS)
def of_all_topics(t: Talk) -> None:
    mine = [t.topic("one"), t.topic("two")]

    def only_mine(answer: M.DescribeTopicPartitionsResponse) -> None:
        answer.topics = [topic for topic in answer.topics if topic.name in mine]
        answer.next_cursor = None

    t.ask(partitions(limit=2000), keep=only_mine)
    t.ask(partitions(limit=2000, cursor=(mine[1], 0)), keep=only_mine)


def find(t: Talk, *keys: str, kind: int = 0) -> None:
    if t.version >= KEYS_SINCE:
        t.ask(M.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys)))
    else:
        for key in keys:
            t.ask(M.FindCoordinatorRequest(key_type=kind, key=key))


@scenario(FIND)
def of_groups(t: Talk) -> None:
    find(t, t.name("one"), t.name("two"))
    find(t, t.name("one"), t.name("one"))
    find(t, "x" * 5000, "ä b")


@scenario(FIND)
def of_the_empty_group(t: Talk) -> None:
    find(t, "")
    find(t, "", t.name("one"))


@scenario(FIND, since=KEYS_SINCE)
def of_no_group(t: Talk) -> None:
    find(t)


@scenario(FIND, since=1)
def of_a_transaction(t: Talk) -> None:
    find(t, t.name("txn"), kind=1)
    find(t, "", kind=1)


@scenario(FIND, since=1)
def of_what_there_is_not(t: Talk) -> None:
    for kind in (3, 9, -1):
        find(t, t.name("one"), kind=kind)


@scenario(FIND, since=1)
def of_a_share_partition(t: Talk) -> None:
    find(t, "group:AAAAAAAAAAAAAAAAAAAAAQ:0", kind=2)
    find(t, "group", kind=2)
