"""DescribeLogDirs, key 35, versions 0 to 4: the log directories, and the partitions in each with their sizes (KIP-113).

Leaves out: replicas that move to another directory. Of any other replica the lag is 0, as in Kafka.

v0  first
v1  the throttle is applied after the response (KIP-219)
v2  flexible (KIP-482)
v3  an error code at the top (KIP-784)
v4  total and usable bytes of the directory's file system (KIP-827)
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.storage.disk_space import space_of

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services
    from kbroker.storage.log import Log

_Response = M.DescribeLogDirsResponse
Described = M.DescribeLogDirsResponse.DescribeLogDirsResult


def handle(services: Services, request: Request, message: M.DescribeLogDirsRequest) -> M.DescribeLogDirsResponse:
    """Answer the request; a partition named twice is answered once.

    May block: it reads the file sizes of logs that are not open.
    """
    in_directory: dict[str, list[Log]] = defaultdict(list)
    for log in _wanted(services, message):
        in_directory[log.directory.path].append(log)
    return _Response(
        results=[
            _offline(each.path) if each.is_offline else _describe(each.path, in_directory[each.path])
            for each in services.logs.directories
        ]
    )


def _wanted(services: Services, message: M.DescribeLogDirsRequest) -> Iterable[Log]:
    if message.topics is None:
        return services.logs.logs()
    named = (TopicPartition(topic.topic, number) for topic in message.topics for number in topic.partitions)
    return dict.fromkeys(log for log in map(services.logs.get, named) if log is not None)


def _describe(path: str, logs: list[Log]) -> Described:
    topics: dict[str, list[M.DescribeLogDirsResponse.DescribeLogDirsPartition]] = defaultdict(list)
    try:
        for log in logs:
            topic, partition_id = log.topic_partition
            with contextlib.suppress(FileNotFoundError):  # the topic was deleted meanwhile
                part = _Response.DescribeLogDirsPartition(partition_index=partition_id, partition_size=log.size)
                topics[topic].append(part)
    except OSError:
        return _offline(path)
    space = space_of(path)
    if space is None:
        return _offline(path)
    return Described(
        log_dir=str(Path(path).absolute()),
        topics=[
            _Response.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
        total_bytes=space.total,
        usable_bytes=space.free,
    )


def _offline(path: str) -> Described:
    return Described(log_dir=str(Path(path).absolute()), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
