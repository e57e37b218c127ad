"""Error responses against those that Kafka's request classes build for the same request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, request_class, response_class
from kbroker.protocol.error_responses import BUILDERS, error_response
from tests.kit.kafka.codec import NEWER, KafkaCodec
from tests.kit.models.message import check_messages


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCodec]:
    with KafkaCodec() as codec:
        yield codec


@pytest.fixture(scope="module")
def newer_kafka() -> Iterator[KafkaCodec]:
    with KafkaCodec(NEWER) as codec:
        yield codec


LATER = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.PRODUCE: 12,
    ApiKey.END_TXN: 5,
    ApiKey.WRITE_TXN_MARKERS: 2,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
}
"""The first version that only the newer release has."""


def canonical(value: Any) -> Any:
    """A response without what Kafka leaves to its hash maps: order, repetitions, topics without partitions. Of a text
    only whether there is one: Kafka often puts its own in place of the given one."""
    if isinstance(value, list):
        parts: set[str] = set()
        for part in map(canonical, value):
            partitions = part.pop("partitions", [None])
            parts.update(f"{part} {partition}" for partition in partitions)
        return sorted(parts)
    if isinstance(value, M.Struct):
        fields = {name: canonical(getattr(value, name)) for name in type(value).__slots__}  # type: ignore[attr-defined]
        if "partition_responses" in fields:
            fields["partitions"] = fields.pop("partition_responses")
        if "error_message" in fields:
            fields["error_message"] = fields["error_message"] is not None
        return fields
    return value


@pytest.mark.parametrize("api_key", [key for key in SERVED if LATER.get(key, 1)], ids=lambda key: key.label)
def test_an_error_response_is_what_kafka_answers(kafka: KafkaCodec, api_key: ApiKey) -> None:
    check_responses(kafka, api_key, range(SERVED[api_key].min, LATER.get(api_key, SERVED[api_key].max + 1)))


@pytest.mark.parametrize("api_key", LATER, ids=lambda key: key.label)
def test_an_error_response_is_what_a_newer_kafka_answers(newer_kafka: KafkaCodec, api_key: ApiKey) -> None:
    check_responses(newer_kafka, api_key, range(LATER[api_key], SERVED[api_key].max + 1))


def check_responses(kafka: KafkaCodec, api_key: ApiKey, versions: range) -> None:
    response = response_class(api_key)
    for version in versions:

        def check(request: Any, version: int = version) -> None:
            for topic in request.topic_data if api_key == ApiKey.PRODUCE else ():
                for partition in topic.partition_data:
                    partition.records = partition.records or b""  # Kafka's request class chokes on null
            for broker in request.live_brokers if api_key == ApiKey.UPDATE_METADATA else ():
                for endpoint in broker.endpoints:
                    endpoint.security_protocol &= 3  # it knows no others
            for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNSUPPORTED_VERSION):
                theirs = kafka.refuse(api_key, version, request.encode(version), code, "a reason")
                ours = error_response(api_key, version, request, code, "a reason")
                if theirs is None or ours is None:
                    assert theirs == ours
                    continue
                left = response.decode(ours.encode(version), version)
                right = response.decode(theirs, version)
                assert canonical(left) == canonical(right)

        check_messages(request_class(api_key), version, check)


def test_every_served_api_can_say_an_error_without_a_text() -> None:
    for api_key, served in SERVED.items():
        for version in range(served.min, served.max + 1):
            request = request_class(api_key)()
            response = error_response(api_key, version, request, ErrorCode.NOT_CONTROLLER)
            if api_key == ApiKey.PRODUCE:
                assert response is None  # acks is 0 by default
            else:
                assert response is not None
                response.encode(version)
    assert BUILDERS.keys() == SERVED.keys()


def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones() -> None:
    response = error_response(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest(), ErrorCode.UNSUPPORTED_VERSION)
    assert response is not None
    assert response.encode(0) == bytes.fromhex("0023 00000001 0012 0000 0004")


def test_clients_are_told_no_details_of_our_own_mistakes() -> None:
    request = M.DescribeClusterRequest()
    told: Any = error_response(ApiKey.DESCRIBE_CLUSTER, 1, request, ErrorCode.INVALID_REQUEST, "a reason")
    kept: Any = error_response(ApiKey.DESCRIBE_CLUSTER, 1, request, ErrorCode.UNKNOWN_SERVER_ERROR, "a reason")
    assert (told.error_message, kept.error_message) == ("a reason", None)
