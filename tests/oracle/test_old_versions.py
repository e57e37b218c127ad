"""What Kafka 4.3.1 does with requests of before Kafka 0.11, and what kbroker does with what it does not serve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.headers import decode_response, framed
from kbroker.protocol.messages import RequestHeader
from tests.kit.broker import BrokerProcess, KafkaProcess
from tests.kit.wire import ConnectionClosed, WireClient
from tests.oracle.matrix import KAFKA_SETTINGS, OUR_SETTINGS

NEWEST_OLD_VERSION = 2


class Kafka4Process(KafkaProcess):
    version = "4.3.1"


@pytest.fixture(scope="module")
def kbroker() -> Iterator[BrokerProcess]:
    with BrokerProcess(OUR_SETTINGS) as started:
        yield started


def client(broker: BrokerProcess) -> WireClient:
    return WireClient("127.0.0.1", broker.port)


def ask(broker: BrokerProcess, key: int, version: int, body: bytes, header_version: int) -> bytes | None:
    """The answer without its size; None when the connection is closed instead."""
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="old")
    with client(broker) as asking:
        asking.send_raw(framed(header.encode(header_version) + body))
        try:
            return asking.read_frame()
        except ConnectionClosed:
            return None


def old_produce(version: int) -> bytes:
    data = M.ProduceRequest.PartitionProduceData(index=0, records=b"")
    entry = M.ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return M.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[entry]).encode(version)


def advertised(broker: BrokerProcess) -> dict[int, tuple[int, int]]:
    with client(broker) as asking:
        answer = asking.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest())
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


def test_produce_of_old_formats_is_advertised_and_refused(kbroker: BrokerProcess) -> None:
    assert advertised(kbroker)[ApiKey.PRODUCE][0] == 0
    for version in range(NEWEST_OLD_VERSION + 1):
        answer = ask(kbroker, ApiKey.PRODUCE, version, old_produce(version), 1)
        assert answer is not None
        (partition,) = decode_response(ApiKey.PRODUCE, version, answer)[1].responses[0].partition_responses
        assert partition.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.slow
def test_kafka_4_advertises_produce_of_old_formats_and_closes_the_connection() -> None:
    with Kafka4Process(KAFKA_SETTINGS) as kafka:
        assert advertised(kafka)[ApiKey.PRODUCE][0] == 0
        for version in range(NEWEST_OLD_VERSION + 1):
            assert ask(kafka, ApiKey.PRODUCE, version, old_produce(version), 1) is None


def test_what_kafka_serves_and_kbroker_does_not_closes_the_connection(kbroker: BrokerProcess) -> None:
    for key in ApiKey:
        if key not in SERVED:
            assert ask(kbroker, key, 0, b"", 1) is None, key.name
    for key, served in SERVED.items():
        for version in range(served.min):
            assert ask(kbroker, key, version, b"\0" * 40, 1) is None, key.name
