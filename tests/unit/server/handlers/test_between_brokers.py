"""Requests between brokers, at a broker that has no others."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol.api import SERVED, ApiKey, request_class
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import call, services_on

BETWEEN_BROKERS = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
)


@pytest.mark.parametrize("key", BETWEEN_BROKERS, ids=lambda key: key.label)
def test_nobody_directs_a_broker_that_is_alone(cluster: Cluster, key: ApiKey) -> None:
    services = services_on(cluster)
    for version in range(SERVED[key].min, SERVED[key].max + 1):
        answer = call(services, key, version, request_class(key)())
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, version
