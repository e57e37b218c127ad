"""DescribeLogDirs over a broker's own files. tests/oracle/scenarios/log_dirs.py has Kafka's answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker

Sizes = dict[tuple[str, int], int]


def asked(*topics: tuple[str, list[int]]) -> M.DescribeLogDirsRequest:
    one = M.DescribeLogDirsRequest.DescribableLogDirTopic
    return M.DescribeLogDirsRequest(topics=[one(topic=name, partitions=ids) for name, ids in topics])


EVERYTHING = M.DescribeLogDirsRequest(topics=None)


def told(result: Any) -> Sizes:
    return {
        (topic.name, one.partition_index): one.partition_size for topic in result.topics for one in topic.partitions
    }


def on_disk(folder: Path) -> Sizes:
    found: Sizes = {}
    for path in folder.iterdir():
        if path.is_dir():
            topic, _, number = path.name.rpartition("-")
            found[topic, int(number)] = sum(one.stat().st_size for one in path.glob("*.log"))
    return found


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
def settings(folders: list[Path]) -> dict[str, object]:
    return {"log.dirs": ",".join(map(str, folders)), "log.segment.bytes": 5000}


def fill(broker: WholeBroker) -> None:
    broker.create_topic("filled", 3)
    for partition in range(3):
        for _ in range(5 * partition):
            broker.append("filled", partition, [b"x" * 1000])


def test_every_directory_tells_its_partitions_sizes_and_space(
    tmp_path: Path, folders: list[Path], settings: dict[str, object]
) -> None:
    with WholeBroker(tmp_path, settings) as broker:
        fill(broker)
        answer = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, EVERYTHING)
        assert {result.log_dir: told(result) for result in answer.results} == {
            str(folder): on_disk(folder) for folder in folders
        }
        assert sum(told(result)["filled", 2] for result in answer.results if ("filled", 2) in told(result)) > 10_000
        space = os.statvfs(folders[0])
        for result in answer.results:
            assert (result.error_code, result.total_bytes) == (0, space.f_blocks * space.f_frsize)
            assert 0 < result.usable_bytes < result.total_bytes
            assert {(one.offset_lag, one.is_future_key) for each in result.topics for one in each.partitions} == {
                (0, False)
            }


def test_sizes_of_logs_that_nobody_has_used_since_the_start_are_told_without_opening_them(
    tmp_path: Path, folders: list[Path], settings: dict[str, object]
) -> None:
    with WholeBroker(tmp_path, settings) as broker:
        fill(broker)
    with WholeBroker(tmp_path, settings) as broker:
        answer = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, EVERYTHING)
        sizes = {name: size for result in answer.results for name, size in told(result).items()}
        assert sizes == {name: size for folder in folders for name, size in on_disk(folder).items()}
        assert not any(log.is_open for log in broker.broker._logs.logs())
        broker.append("filled", 1, [b"x" * 1000])
        again = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, asked(("filled", [1])))
        (size,) = [size for result in again.results for size in told(result).values()]
        assert size > sizes["filled", 1]


def test_a_directory_that_failed_is_told_with_its_error_beside_the_others(
    tmp_path: Path, folders: list[Path], settings: dict[str, object]
) -> None:
    with WholeBroker(tmp_path, settings) as broker:
        fill(broker)
        broker.broker._logs.directories[1].fail("as a test wants it")
        good, bad = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, EVERYTHING).results
        assert (good.log_dir, good.error_code, told(good)) == (str(folders[0]), 0, on_disk(folders[0]))
        assert (bad.log_dir, bad.error_code) == (str(folders[1]), ErrorCode.KAFKA_STORAGE_ERROR)
        assert (told(bad), bad.total_bytes, bad.usable_bytes) == ({}, -1, -1)


def test_a_partition_named_a_hundred_thousand_times_is_answered_once(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    with WholeBroker(tmp_path, settings) as broker:
        fill(broker)
        once = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, asked(("filled", [1])))
        many = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, asked(*[("filled", [1] * 1000)] * 100))
        assert list(map(told, many.results)) == list(map(told, once.results))
        assert sum(len(topic.partitions) for result in many.results for topic in result.topics) == 1
