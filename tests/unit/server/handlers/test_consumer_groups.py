"""Groups of the newer protocol (KIP-848) over a real connection.

tests/compat/test_consumer_group_oracle.py compares their answers with Kafka 4.3.
"""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient


def join(client: WireClient, version: int, group_id: str, member_epoch: int = 0) -> int:
    """Join with a heartbeat; return its error."""
    message = M.ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=member_epoch,
        rebalance_timeout_ms=1000,
        topic_partitions=[],
        subscribed_topic_names=["t"],
    )
    return int(client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, message).error_code)


@pytest.mark.parametrize(
    ("protocols", "told", "described"),
    [
        ("classic,consumer", ErrorCode.NONE, [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]),
        ("classic", ErrorCode.UNSUPPORTED_VERSION, [ErrorCode.UNSUPPORTED_VERSION] * 2),
    ],
)
def test_a_broker_that_is_told_to_serve_classic_groups_only_refuses_others(
    protocols: str, told: ErrorCode, described: list[ErrorCode]
) -> None:
    settings: dict[str, object] = {"group.coordinator.rebalance.protocols": protocols}
    with BrokerProcess(settings) as broker, WireClient("127.0.0.1", broker.port) as client:
        client.call(ApiKey.FIND_COORDINATOR, 4, M.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        for version in (0, 1):
            assert join(client, version, "g") == told
            asked = M.ConsumerGroupDescribeRequest(group_ids=["g", "none", "g"], include_authorized_operations=True)
            groups = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, version, asked).groups
            assert [one.group_id for one in groups] == ["g", "none"]
            assert [one.error_code for one in groups] == described
            assert [one.authorized_operations > 0 for one in groups] == [told is ErrorCode.NONE, False]
            join(client, version, "g", -1)
