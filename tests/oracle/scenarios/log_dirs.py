"""DescribeLogDirs, AlterReplicaLogDirs."""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.requests import records

NONE_SUCH = 999


def ask(t: Talk, *names: str, partitions: tuple[int, ...] = (0,), every: bool = False) -> None:
    """Compare only the scenario's own topics, and whether the sizes of the file system can be."""
    one = M.DescribeLogDirsRequest.DescribableLogDirTopic

    def keep_own(response: Any) -> None:
        for result in response.results:
            result.topics = [topic for topic in result.topics if topic.name.startswith(t.prefix) and topic.partitions]
            is_absolute = result.log_dir.startswith("/")
            result.log_dir = "<absolute>" if is_absolute else result.log_dir
            if result.usable_bytes > 0:
                result.total_bytes = result.usable_bytes = int(result.total_bytes >= result.usable_bytes)

    topics = None if every else [one(topic=name, partitions=list(partitions)) for name in names]
    t.ask(M.DescribeLogDirsRequest(topics=topics), keep=keep_own)


@scenario(ApiKey.DESCRIBE_LOG_DIRS)
def sizes_of_partitions(t: Talk) -> None:
    topic, other = t.topic(partitions=3), t.topic("other")
    t.produce(topic, records(3), records(30, 100), partition=1)
    t.produce(other, *(records(1, 300) for _ in range(5)))
    ask(t, every=True)
    ask(t, topic, partitions=(0, 1, 2))
    ask(t, topic, other, partitions=(1,))
    ask(t)


@scenario(ApiKey.DESCRIBE_LOG_DIRS)
def partitions_named_twice_or_wrong(t: Talk) -> None:
    topic = t.topic(partitions=2)
    ask(t, topic, topic, partitions=(1, 1, 0, 1))
    ask(t, topic, t.name("nowhere"), "", "a b", partitions=(0, NONE_SUCH, -1))


@scenario(ApiKey.ALTER_REPLICA_LOG_DIRS)
def moves_that_cannot_be(t: Talk) -> None:
    R = M.AlterReplicaLogDirsRequest
    topic = t.topic()

    def move(path: str, *rows: tuple[str, list[int]]) -> None:
        topics = [R.AlterReplicaLogDirTopic(name=name, partitions=ids) for name, ids in rows]
        t.ask(R(dirs=[R.AlterReplicaLogDir(path=path, topics=topics)]))

    move("/nowhere", (topic, [0]))
    move("", (topic, [0]))
    move("relative", (topic, [NONE_SUCH]), (t.name("nowhere"), [0]))
    t.ask(R(dirs=[]))
