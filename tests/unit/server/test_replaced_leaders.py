"""What readers are answered by a leader that another broker has replaced, and that has not heard of it."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.replication.partitions import ReplicatedPartitions
from tests.kit.brokers.whole import WholeBroker
from tests.kit.cluster.members import WAIT_S, Members, await_that
from tests.kit.logs.home import batch_of


def test_a_leader_that_was_replaced_and_not_told_sends_no_reader_back(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of such a leader ends before what readers have read elsewhere. They are not to begin anew for that."""
    members.start_all(1, 2)
    assert members.create("t", 1, 2).error_code == 0
    await_that(lambda: members.leader_of("t", 0) is not None)
    replaced = members.leader_of("t", 0)
    assert replaced is not None
    left = replaced.broker._cluster.node_id
    other = 3 - left
    may_come, take_roles = threading.Event(), ReplicatedPartitions.leader_and_isr

    def take_none(partitions: ReplicatedPartitions, request: Any, version: int) -> Any:
        if partitions._node_id == left:
            assert may_come.wait(WAIT_S)
        return take_roles(partitions, request, version)

    monkeypatch.setattr(ReplicatedPartitions, "leader_and_isr", take_none)
    try:
        R = M.AlterPartitionReassignmentsRequest
        wanted = R.ReassignablePartition(partition_index=0, replicas=[other, left])
        request = R(topics=[R.ReassignableTopic(name="t", partitions=[wanted])], timeout_ms=20_000)
        assert members.controller.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request).error_code == 0
        chosen = M.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])
        # The answer waits for the metadata of the controller, which may be the broker that is not told.
        elect = M.ElectLeadersRequest(topic_partitions=[chosen], timeout_ms=1)
        members.controller.call(ApiKey.ELECT_LEADERS, 2, elect)
        log = members.running[other].log_of("t", 0)
        await_that(lambda: log.state.role == "leader" and log.leader_epoch > 0)
        log.append(batch_of([b"a", b"b", b"c"]), wait=False)
        assert replaced.log_of("t", 0).state.role == "leader"
        assert beyond_the_end(replaced, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        told: queue.SimpleQueue[ErrorCode] = queue.SimpleQueue()
        replaced.broker._home._lead_checks.check(TopicPartition("t", 0), told.put)
        assert told.get(timeout=WAIT_S) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert beyond_the_end(replaced, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert beyond_the_end(members.running[other], 9) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await_that(lambda: beyond_the_end(members.running[other], 9) == ErrorCode.OFFSET_OUT_OF_RANGE)
    finally:
        may_come.set()


def beyond_the_end(broker: WholeBroker, offset: int) -> int:
    """Return what a reader is answered that asks for this offset."""
    part = M.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = M.FetchRequest.FetchTopic(topic="t", partitions=[part])
    answer = broker.call(ApiKey.FETCH, 11, M.FetchRequest(replica_id=-1, max_wait_ms=0, topics=[topic]))
    return int(answer.responses[0].partitions[0].error_code)
