"""Requests between brokers, at a broker that has no others."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol.api import SERVED, ApiKey, request_class
from tests.kit.cluster.apis import BETWEEN_BROKERS
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import call, services_on


@pytest.mark.parametrize("key", BETWEEN_BROKERS, ids=lambda key: key.label)
def test_nobody_directs_a_broker_that_is_alone(cluster: Cluster, key: ApiKey) -> None:
    services = services_on(cluster)
    for version in range(SERVED[key].min, SERVED[key].max + 1):
        answer = call(services, key, version, request_class(key)())
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, version
