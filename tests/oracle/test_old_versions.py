"""The advertised versions of before Kafka 0.11 are served; a version that is not served closes the connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.headers import framed
from kbroker.protocol.messages import RequestHeader
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.kafka.process import KafkaProcess
from tests.oracle.matrix import KAFKA_SETTINGS, OUR_SETTINGS
from tests.oracle.scenarios.old_messages import flat, messages_in
from tests.oracle.scenarios.requests import FetchTopic, fetch, fetch_partition, produce

OLD_PRODUCE, OLD_FETCH = range(3), range(4)


class Kafka4Process(KafkaProcess):
    version = "4.3.1"


@pytest.fixture(scope="module")
def kbroker() -> Iterator[BrokerProcess]:
    with BrokerProcess({**OUR_SETTINGS, "auto.create.topics.enable": "true"}) as started:
        yield started


def client(broker: BrokerProcess) -> WireClient:
    return WireClient("127.0.0.1", broker.port)


def ask(broker: BrokerProcess, key: int, version: int, body: bytes, header_version: int) -> bytes | None:
    """Return the answer without its size; None if the connection is closed instead."""
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="old")
    with client(broker) as asking:
        asking.send_raw(framed(header.encode(header_version) + body))
        try:
            return asking.read_frame()
        except ConnectionClosed:
            return None


def advertised(broker: BrokerProcess) -> dict[int, tuple[int, int]]:
    with client(broker) as asking:
        answer = asking.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest())
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


def test_produce_and_fetch_of_every_old_version_are_advertised_and_served(kbroker: BrokerProcess) -> None:
    assert (advertised(kbroker)[ApiKey.PRODUCE][0], advertised(kbroker)[ApiKey.FETCH][0]) == (0, 0)
    with client(kbroker) as asking:
        asking.call(ApiKey.METADATA, 0, M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="old")]))
        for version in OLD_PRODUCE:
            made = asking.call(ApiKey.PRODUCE, version, produce("old", flat(2, magic=min(version, 1))))
            assert made.responses[0].partition_responses[0].base_offset == 2 * version
        for version in OLD_FETCH:
            request = fetch([FetchTopic(topic="old", partitions=[fetch_partition(offset=1)])])
            if version < 3:
                request.max_bytes = 0x7FFFFFFF
            (found,) = asking.call(ApiKey.FETCH, version, request).responses[0].partitions
            seen = [(one.offset, one.magic) for one in messages_in(found.records)]
            assert seen == [(offset, 0 if version < 2 else 1) for offset in range(1, 6)]


@pytest.mark.slow
def test_kafka_4_advertises_produce_of_old_formats_and_closes_the_connection() -> None:
    with Kafka4Process(KAFKA_SETTINGS) as kafka:
        assert advertised(kafka)[ApiKey.PRODUCE][0] == 0
        for version in OLD_PRODUCE:
            assert ask(kafka, ApiKey.PRODUCE, version, produce("t", b"").encode(version), 1) is None


def test_what_kafka_serves_and_kbroker_does_not_closes_the_connection(kbroker: BrokerProcess) -> None:
    for key in ApiKey:
        if key not in SERVED:
            assert ask(kbroker, key, 0, b"", 1) is None, key.name
    for key, served in SERVED.items():
        for version in range(served.min):
            assert ask(kbroker, key, version, b"\0" * 40, 1) is None, key.name
