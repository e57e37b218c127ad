"""AlterReplicaLogDirs over a broker's own files. tests/oracle/test_client_log_dirs.py has Kafka's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker
from tests.kit.parts.processors import wait_until

R = M.AlterReplicaLogDirsRequest
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def asked(path: object, *topics: tuple[str, list[int]]) -> R:
    named = [R.AlterReplicaLogDirTopic(name=name, partitions=ids) for name, ids in topics]
    return R(dirs=[R.AlterReplicaLogDir(path=str(path), topics=named)])


def errors(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.topic_name, one.partition_index): ErrorCode(one.error_code)
        for topic in answer.results
        for one in topic.partitions
    }


def places(broker: WholeBroker) -> dict[tuple[int, bool], tuple[str, int]]:
    """For each partition of topic "moved", whether it is a copy, its directory and its lag."""
    answer = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, M.DescribeLogDirsRequest(topics=None))
    return {
        (one.partition_index, bool(one.is_future_key)): (result.log_dir, one.offset_lag)
        for result in answer.results
        for topic in result.topics
        if topic.name == "moved"
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_replicas_move_and_the_copy_is_shown_meanwhile(tmp_path: Path, version: int) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with WholeBroker(tmp_path, {"log.dirs": f"{one},{two}", RATE: 0}) as broker:
        broker.create_topic("moved", 2)
        for _ in range(10):
            broker.append("moved", 0, [b"x" * 100])
        before = places(broker)
        here = before[0, False][0]
        target = str(two if here == str(one) else one)
        broker.broker._logs.moves.throttle.record(1)
        answer = broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, asked(target, ("moved", [0])))
        assert errors(answer) == {("moved", 0): ErrorCode.NONE}
        assert places(broker) == {**before, (0, True): (target, 10)}
        broker.broker._logs.moves.set_rate((1 << 63) - 1)
        wait_until(lambda: places(broker) == {**before, (0, False): (target, 0)}, "the move")
        broker.append("moved", 0, [b"on"])
        log = broker.broker._logs.get(TopicPartition("moved", 0))
        assert log is not None
        assert log.log_end_offset == 11


def test_what_cannot_move_is_answered_as_kafka_does(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with WholeBroker(tmp_path, {"log.dirs": f"{one},{two}"}) as broker:
        broker.create_topic("moved", 1)
        wrong = broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, asked("/nowhere", ("moved", [0]), ("none", [0])))
        assert set(errors(wrong).values()) == {ErrorCode.LOG_DIR_NOT_FOUND}
        wrong = broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, asked(two, ("moved", [7, -1]), ("none", [0])))
        assert set(errors(wrong).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        broker.create_topic("none", 1)
        log = broker.broker._logs.get(TopicPartition("none", 0))
        assert log is not None
        assert log.directory.path == str(two)
        here = Path(places(broker)[0, False][0])
        same = broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, asked(here, ("moved", [0])))
        assert errors(same) == {("moved", 0): ErrorCode.NONE}
        assert (0, True) not in places(broker)
        broker.broker._logs.directories[1].fail("as a test wants it")
        failed = broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, asked(two, ("moved", [0])))
        assert errors(failed) == {("moved", 0): ErrorCode.KAFKA_STORAGE_ERROR}
