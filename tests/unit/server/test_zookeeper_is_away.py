"""What clients of a member see while its ZooKeeper is away, and afterwards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.wire import WireClient
from tests.kit.cluster.members import WAIT_S, Members, await_that
from tests.kit.kafka.zookeeper import ZooKeeperProcess


def kept(broker: WholeBroker, name: str, value: str) -> Any:
    """Set how long a topic keeps its records; return the result. It has a connection of its own."""
    R = M.IncrementalAlterConfigsRequest
    config = R.AlterableConfig(name="retention.ms", config_operation=0, value=value)
    changed = R.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
    with WireClient("127.0.0.1", broker.port, timeout_s=WAIT_S) as client:
        return client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, R(resources=[changed])).responses[0]


def test_while_zookeeper_is_away_changes_are_refused_or_wait_and_all_else_goes_on(
    tmp_path: Path, own_zookeeper: ZooKeeperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """AlterConfigs tells it; new topics wait for the controller, which makes them afterwards. In Kafka both wait."""
    members = Members(own_zookeeper, tmp_path)
    broker = members.start(1, zookeeper__session__timeout__ms=2_000)
    members.settle(1)
    await_that(lambda: members.cluster(1).is_controller)
    members.create("t", 1, 1)
    own_zookeeper.kill()
    await_that(lambda: "is lost" in caplog.text)
    C = M.CreateTopicsRequest
    wanted = C.CreatableTopic(name="late", num_partitions=1, replication_factor=1)
    with WireClient("127.0.0.1", broker.port, timeout_s=WAIT_S) as creator:
        asked = creator.send(ApiKey.CREATE_TOPICS, 5, C(topics=[wanted], timeout_ms=30_000))
        began = time.monotonic()
        for _ in range(3):
            refused = kept(broker, "t", "77000")
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "ZooKeeper" in refused.error_message
            broker.append("t", 0, [b"a"])
        assert time.monotonic() - began < 3 * 2.0 + 4.0, "each waits for zookeeper.session.timeout.ms"
        assert caplog.text.count("the controller waits for the store") == 1
        assert caplog.text.count("is lost") == 2, "the broker's session, and the one that looks on"
        own_zookeeper.start()
        assert creator.receive(ApiKey.CREATE_TOPICS, 5, asked).topics[0].error_code == ErrorCode.NONE
    await_that(lambda: kept(broker, "t", "78000").error_code == ErrorCode.NONE)
    await_that(lambda: broker.log_of("t", 0).options.retention_ms == 78_000)
    await_that(lambda: members.cluster(1).is_controller)
    assert members.create("next", 1, 1).error_code == ErrorCode.NONE
    for topic in ("t", "late", "next"):
        broker.append(topic, 0, [b"b"])
    members.close()
