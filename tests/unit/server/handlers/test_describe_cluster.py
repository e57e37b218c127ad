"""DescribeCluster; the answers are those of Apache Kafka 3.9.1."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import Caller
from tests.unit.server.handlers.conftest import Ask


@pytest.mark.parametrize("version", [0, 1])
def test_the_cluster_is_described_as_the_caller_reaches_it(cluster: Cluster, ask: Ask, version: int) -> None:
    caller = Caller(local_host="broker.example", local_port=19092)
    response = ask(ApiKey.DESCRIBE_CLUSTER, version, M.DescribeClusterRequest(), caller)
    assert (response.error_code, response.error_message) == (0, None)
    assert (response.cluster_id, response.controller_id) == (cluster.topics.cluster_id, 1)
    brokers = [(each.broker_id, each.host, each.port, each.rack) for each in response.brokers]
    assert brokers == [(1, "broker.example", 19092, None)]
    assert response.cluster_authorized_operations == -(2**31)


def test_authorized_operations_are_told_to_those_who_ask(ask: Ask) -> None:
    message = M.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert ask(ApiKey.DESCRIBE_CLUSTER, 1, message).cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code", "text"),
    [
        (
            2,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        ),
        (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 7"),
    ],
)
def test_controllers_are_not_to_be_asked_for(ask: Ask, endpoint_type: int, code: ErrorCode, text: str) -> None:
    response = ask(ApiKey.DESCRIBE_CLUSTER, 1, M.DescribeClusterRequest(endpoint_type=endpoint_type))
    assert (response.error_code, response.error_message, response.brokers) == (code, text, [])
