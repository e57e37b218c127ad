"""OffsetForLeaderEpoch: the answers that Apache Kafka 3.9 gave to the same requests."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.models.fetch_machine import produce_request

EPOCH = SmallBroker.leader_epoch


@pytest.fixture(scope="module")
def broker(broker: SmallBroker) -> SmallBroker:
    # Partition 0: two records of epoch 1, three of epoch 4. Partition 1: none.
    broker.create_topic("t", 2)
    with WireClient("127.0.0.1", broker.port) as client:
        client.call(ApiKey.PRODUCE, 9, produce_request("t", 0, encode_batch([(1, None, b"x")] * 2)))
        broker.log("t", 0).be_alone(4)
        client.call(ApiKey.PRODUCE, 9, produce_request("t", 0, encode_batch([(1, None, b"x")] * 3)))
    return broker


def ask(client: WireClient, version: int, leader_epoch: int, topic: str = "t", **fields: Any) -> tuple[int, int, int]:
    """Ask; return (error code, leader epoch, end offset)."""
    fields = {"partition": 0, "leader_epoch": leader_epoch} | fields
    part = M.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(**fields)
    asked = M.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])
    request = M.OffsetForLeaderEpochRequest(topics=[asked])
    if version >= 3:
        request.replica_id = -1
    (answer,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request).topics[0].partitions
    assert answer.partition == fields["partition"]
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", range(5))
def test_where_an_epoch_ends(client: WireClient, version: int) -> None:
    expected = {
        -1: (0, -1, -1),
        -5: (0, -5, 0),
        0: (0, 0, 0),
        1: (0, 1, 2),
        3: (0, 1, 2),
        4: (0, 4, 5),
        5: (0, -1, -1),
    }
    for epoch, (error, found, end) in expected.items():
        assert ask(client, version, epoch) == (error, found if version >= 1 else -1, end)


@pytest.mark.parametrize("version", range(5))
def test_an_empty_log_ends_at_0(client: WireClient, version: int) -> None:
    assert ask(client, version, EPOCH, partition=1) == (0, EPOCH if version >= 1 else -1, 0)


@pytest.mark.parametrize("version", range(5))
def test_errors(client: WireClient, version: int) -> None:
    assert ask(client, version, 0, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert ask(client, version, 0, topic="nobody") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    if version >= 2:
        assert ask(client, version, 1, current_leader_epoch=4) == (0, 1, 2)
        assert ask(client, version, 1, current_leader_epoch=3) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
        assert ask(client, version, 1, current_leader_epoch=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
