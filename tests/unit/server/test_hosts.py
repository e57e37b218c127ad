"""What the clients of one host leave behind takes no more than the host's share, whichever request makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.wire import WireClient
from tests.kit.models.fetch_machine import fetch_request, partition_request

SETTINGS = {
    "kbroker.groups.max": 2,
    "kbroker.transactional.ids.max": 2,
    "kbroker.zookeeper.offsets.max.nodes": 8,
    "max.incremental.fetch.session.cache.slots": 2,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def commit(client: WireClient, group_id: str, version: int = 2) -> int:
    at = M.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = M.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[at])
    answer = client.call(ApiKey.OFFSET_COMMIT, version, M.OffsetCommitRequest(group_id=group_id, topics=[topic]))
    code: int = answer.topics[0].partitions[0].error_code
    return code


def commit_transactional(client: WireClient, group_id: str) -> int:
    at = M.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = M.TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group_id,
        producer_id=1,
        producer_epoch=0,
        topics=[M.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[at])],
    )
    code: int = client.call(ApiKey.TXN_OFFSET_COMMIT, 2, request).topics[0].partitions[0].error_code
    return code


def join(client: WireClient, group_id: str) -> int:
    protocol = M.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = M.JoinGroupRequest(
        group_id=group_id, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
        protocols=[protocol],
    )  # fmt: skip
    code: int = client.call(ApiKey.JOIN_GROUP, 2, request).error_code
    return code


def beat(client: WireClient, group_id: str) -> int:
    request = M.ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    code: int = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, request).error_code
    return code


def init(client: WireClient, transactional_id: str) -> int:
    request = M.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
    code: int = client.call(ApiKey.INIT_PRODUCER_ID, 1, request).error_code
    return code


def new_session(client: WireClient) -> int:
    request = fetch_request(12, [partition_request("t", 0, 0)], session_epoch=0)
    session_id: int = client.call(ApiKey.FETCH, 12, request).session_id
    return session_id


class Hosts(NamedTuple):
    """A client on each of two hosts."""

    greedy: WireClient
    modest: WireClient


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Clients of a broker with a topic, whose coordinators are ready."""
    with WholeBroker(tmp_path, SETTINGS) as broker:
        broker.create_topic("t", 1)
        for key_type in (0, 1):
            request = M.FindCoordinatorRequest(key="x", key_type=key_type)
            assert broker.call(ApiKey.FIND_COORDINATOR, 1, request).error_code == 0
        greedy = WireClient("127.0.0.1", broker.port, source=("127.0.0.2", 0))
        modest = WireClient("127.0.0.1", broker.port, source=("127.0.0.3", 0))
        with greedy, modest:
            yield Hosts(greedy, modest)


@pytest.mark.parametrize("make", [commit, join, beat])
def test_groups(hosts: Hosts, make: Callable[[WireClient, str], int]) -> None:
    assert make(hosts.greedy, "a") == 0
    for make_another in (commit, commit_transactional, join, beat):
        assert make_another(hosts.greedy, "b") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert make(hosts.modest, "b") == 0


def test_transactional_ids(hosts: Hosts) -> None:
    assert [init(hosts.greedy, name) for name in "xyx"] == [0, ErrorCode.POLICY_VIOLATION, 0]
    assert init(hosts.modest, "y") == 0


def test_nodes_of_old_offsets(hosts: Hosts) -> None:
    assert [commit(hosts.greedy, name, 0) for name in "aba"] == [0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, 0]
    assert commit(hosts.modest, "b", 0) == 0


def test_fetch_sessions(hosts: Hosts) -> None:
    made = [
        new_session(client) != 0 for client in (hosts.greedy, hosts.greedy, hosts.greedy, hosts.modest, hosts.modest)
    ]
    assert made == [True, True, False, True, False]
