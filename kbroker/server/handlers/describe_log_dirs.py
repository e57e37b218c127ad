"""DescribeLogDirs, key 35, versions 0 to 4: the log directories, and the partitions in each with their sizes (KIP-113).

Of a replica that moves to another directory the copy is told too, with how many offsets it lacks. Of any other replica
the lag is 0, as in Kafka.
Leaves out: nothing.

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
    in_directory: dict[str, list[tuple[Log, Log]]] = defaultdict(list)
    for log in _wanted(services, message):
        directory, copy = log.directory, log.copy
        in_directory[directory.path].append((log, log))
        if copy is not None and copy.directory is not directory:
            in_directory[copy.directory.path].append((log, copy))
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


def _describe(path: str, logs: list[tuple[Log, Log]]) -> Described:
    """Describe a directory. `logs`: pairs of a log and what of it is there, itself or its copy."""
    topics: dict[str, list[M.DescribeLogDirsResponse.DescribeLogDirsPartition]] = defaultdict(list)
    try:
        for log, here in logs:
            topic, partition_id = log.topic_partition
            with contextlib.suppress(FileNotFoundError):  # the topic was deleted, or the copy is the log now
                part = _Response.DescribeLogDirsPartition(
                    partition_index=partition_id,
                    partition_size=here.size,
                    offset_lag=0 if here is log else max(log.state.log_end_offset - here.state.log_end_offset, 0),
                    is_future_key=here is not log,
                )
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
