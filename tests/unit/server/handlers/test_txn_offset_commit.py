"""TxnOffsetCommit, every version, on a broker that a test has for itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

TOPIC = "orders"
VERSIONS = range(SERVED[ApiKey.TXN_OFFSET_COMMIT].min, SERVED[ApiKey.TXN_OFFSET_COMMIT].max + 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    settings: dict[str, object] = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
    with BrokerProcess(settings) as started:
        with WireClient("127.0.0.1", started.port) as client:
            create = M.CreateTopicsRequest(topics=[M.CreateTopicsRequest.CreatableTopic(
                name=TOPIC, num_partitions=2, replication_factor=1)])  # fmt: skip
            assert client.call(ApiKey.CREATE_TOPICS, 5, create).topics[0].error_code == 0
            assert client.call(ApiKey.FIND_COORDINATOR, 1, M.FindCoordinatorRequest(key="any")).error_code == 0
        yield started


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient("127.0.0.1", broker.port) as connected:
        yield connected


def committing(
    transactional_id: str, group: str, *places: tuple[str, int], **fields: object
) -> M.TxnOffsetCommitRequest:
    R = M.TxnOffsetCommitRequest
    topics: dict[str, list[M.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
    for topic, partition_id in places:
        partition = R.TxnOffsetCommitRequestPartition(partition_index=partition_id, committed_offset=5)
        topics.setdefault(topic, []).append(partition)
    listed = [R.TxnOffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
    given = {"transactional_id": transactional_id, "group_id": group, "producer_id": 7, "topics": listed, **fields}
    return R(**given)  # type: ignore[arg-type]


def told(client: WireClient, version: int, message: M.TxnOffsetCommitRequest) -> dict[tuple[str, int], str]:
    answer = client.call(ApiKey.TXN_OFFSET_COMMIT, version, message)
    return {(t.name, p.partition_index): ErrorCode(p.error_code).name for t in answer.topics for p in t.partitions}


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_that_are_not_there_are_told_apart(client: WireClient, version: int) -> None:
    places = [(TOPIC, 0), (TOPIC, 2), ("nowhere", 0)]
    unknown = dict.fromkeys(places[1:], "UNKNOWN_TOPIC_OR_PARTITION")
    assert told(client, version, committing("t", "", *places)) == {(TOPIC, 0): "INVALID_GROUP_ID", **unknown}
    assert told(client, version, committing("t", "g", *places[1:])) == unknown
    assert told(client, version, committing("t", "g")) == {}
