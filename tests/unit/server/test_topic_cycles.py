"""Topics that come and go leave nothing behind: no entry anywhere, and no memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.coordination import paths
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.whole import WholeBroker
from tests.kit.parts.processors import wait_until

GROUP = "g"
AT_ONCE = 20
CYCLES = 25
PARTITION_SIZE = 256
"""Bytes: the core keeps more for a partition; other activity in a process, such as SQLite's cache, takes less."""
SETTINGS: dict[str, object] = {
    "log.segment.delete.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "auto.create.topics.enable": "false",
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[WholeBroker]:
    with WholeBroker(tmp_path, SETTINGS) as started:
        find = M.FindCoordinatorRequest(coordinator_keys=[GROUP])
        assert started.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code == 0
        yield started


def cycle(running: WholeBroker, number: int) -> None:
    """Make, write, read, commit to, describe and delete topics, with new names each time."""
    names = [f"t{number}-{at}" for at in range(AT_ONCE)]
    C, P, F, O = M.CreateTopicsRequest, M.ProduceRequest, M.FetchRequest, M.OffsetCommitRequest  # noqa: E741
    create = C(
        timeout_ms=5000, topics=[C.CreatableTopic(name=t, num_partitions=1, replication_factor=1) for t in names]
    )
    assert not any(topic.error_code for topic in running.call(ApiKey.CREATE_TOPICS, 5, create).topics)
    batch = encode_batch([(0, None, b"x")], producer_id=number, producer_epoch=0, base_sequence=0)
    parts = [P.PartitionProduceData(index=0, records=batch)]
    produce = P(acks=1, timeout_ms=5000, topic_data=[P.TopicProduceData(name=t, partition_data=parts) for t in names])
    responses = running.call(ApiKey.PRODUCE, 9, produce).responses
    assert not any(part.error_code for topic in responses for part in topic.partition_responses)
    wanted = [F.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    topics = [F.FetchTopic(topic=t, partitions=wanted) for t in names]
    running.call(ApiKey.FETCH, 12, F(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics))
    offsets = [O.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    commit = O(group_id=GROUP, topics=[O.OffsetCommitRequestTopic(name=t, partitions=offsets) for t in names])
    assert not any(t.partitions[0].error_code for t in running.call(ApiKey.OFFSET_COMMIT, 7, commit).topics)
    running.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=None))
    delete = M.DeleteTopicsRequest(topic_names=names, timeout_ms=5000)
    assert not any(topic.error_code for topic in running.call(ApiKey.DELETE_TOPICS, 5, delete).responses)


def entries(running: WholeBroker) -> dict[str, int]:
    """Return how many entries each place has that knows topics by name or id."""
    broker = running.broker
    logs, topics = broker._logs, broker._cluster
    (home,) = logs._homes
    (shard,) = broker._coordinators.groups.get().shards.active()
    image = topics.image
    return {
        "topics": len(image.topics),
        "ids": len(image.names),
        "topics to be deleted": len(topics._doomed),
        "logs": len(logs.logs()),
        "logs of the directory": home.log_count,
        "logs that were there": len(home._departed),
        "partition table": len(logs.partition_table),
        "jobs": len(logs._scheduler._queue),
        "open segments": len(logs._open_segments),
        "offsets": len(shard.groups[GROUP].offsets.committed) if GROUP in shard.groups else 0,
        "files": sum(1 for _ in Path(home.path).iterdir()),
        **{path: len(broker._home.session.children(path)) for path in (paths.TOPICS, paths.TOPIC_CONFIGS)},
        "marks of deletion": len(broker._home.session.children(paths.DELETE_TOPICS)),
    }


def settle(running: WholeBroker, jobs: int) -> None:
    """Wait until deleted files are removed, and write the checkpoints, which are otherwise written once a minute."""
    logs = running.broker._logs
    home = Path(logs._homes[0].path)
    wait_until(lambda: len(logs._scheduler._queue) == jobs and not list(home.glob("*-delete")), "files are removed")
    logs.write_checkpoints()


def test_no_registry_knows_a_topic_that_is_gone(running: WholeBroker) -> None:
    jobs = len(running.broker._logs._scheduler._queue)
    settle(running, jobs)
    before = entries(running)
    for number in range(5):
        cycle(running, number)
    settle(running, jobs)
    assert entries(running) == before


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of glibc; `allocated` is its uordblks."""

    _fields_ = [("others", ctypes.c_size_t * 7), ("allocated", ctypes.c_size_t), ("more", ctypes.c_size_t * 2)]


def allocated() -> tuple[int, int]:
    """Return the blocks of Python's allocator and the bytes of malloc, which the compiled core uses."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("this libc does not say what is allocated")
    if not sys.getallocatedblocks():
        pytest.skip("Python takes its memory from malloc too (PYTHONMALLOC): the core's cannot be told from it")
    libc.mallinfo2.restype = _Mallinfo2
    return sys.getallocatedblocks(), libc.mallinfo2().allocated


def test_topics_that_come_and_go_take_no_memory_with_them(running: WholeBroker) -> None:
    jobs = len(running.broker._logs._scheduler._queue)
    for number in range(CYCLES):
        cycle(running, number)
    settle(running, jobs)
    blocks, size = allocated()
    for number in range(CYCLES, 2 * CYCLES):
        cycle(running, number)
    settle(running, jobs)
    blocks_after, size_after = allocated()
    assert blocks_after - blocks < AT_ONCE * CYCLES, "an object stays for each topic"
    assert size_after - size < AT_ONCE * CYCLES * PARTITION_SIZE, "memory of the core stays for each topic"
