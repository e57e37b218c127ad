"""Faults on request, as real clients meet them, and what the proxy must not change."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, request_class
from kbroker.protocol.headers import decode_response, encode_request
from kbroker.protocol.records import encode_batch
from kbroker.testing import Broker, BrokerFailed
from kbroker.testing.fault_proxy import FaultProxy, _refusal
from kbroker.testing.reserved_port import ReservedPort
from tests.kit.clients.wire import ConnectionClosed, WireClient

HOST = "127.0.0.1"
WAIT_S = 60
DELAY_S = 0.2


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(faults=True, settings={"auto.create.topics.enable": False}) as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as client:
        yield client


def produce_request(values: list[bytes], acks: int = -1) -> M.ProduceRequest:
    records = encode_batch([(0, None, value) for value in values])
    request = M.ProduceRequest
    data = request.PartitionProduceData(index=0, records=records)
    topic = request.TopicProduceData(name="t", partition_data=[data])
    return request(acks=acks, timeout_ms=10_000, topic_data=[topic])


def produced_count(client: WireClient) -> int:
    request = M.ListOffsetsRequest
    asked = request.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = request.ListOffsetsTopic(name="t", partitions=[asked])
    answer = client.call(ApiKey.LIST_OFFSETS, 5, request(replica_id=-1, topics=[topic]))
    count: int = answer.topics[0].partitions[0].offset
    return count


def metadata(client: WireClient) -> M.MetadataResponse:
    answer: M.MetadataResponse = client.call(ApiKey.METADATA, 9, M.MetadataRequest(topics=None))
    return answer


def deliver_one(broker: Broker, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1, **settings})
    errors: list[object] = []
    producer.produce("t", b"one", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors == [None]


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_producer_gets_through_an_error_code(broker: Broker, client: WireClient) -> None:
    fault = broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    deliver_one(broker)
    assert fault.struck == 2
    assert broker.faults.seen("Produce") == 3
    assert produced_count(client) == 1


def test_a_producer_in_python_gets_through_a_dropped_request(broker: Broker, client: WireClient) -> None:
    fault = broker.faults.drop("Produce")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1)
    assert producer.send("t", b"one").get(WAIT_S).offset == 0
    producer.close()
    assert fault.struck == 1
    assert produced_count(client) == 1


def test_an_idempotent_producer_writes_once_what_it_did_not_hear_of(broker: Broker, client: WireClient) -> None:
    fault = broker.faults.drop("Produce", handled=True)
    deliver_one(broker, **{"enable.idempotence": True, "reconnect.backoff.ms": 1})
    assert fault.struck == 1 and broker.faults.seen("Produce") == 2
    assert produced_count(client) == 1


def test_a_dropped_request_does_not_reach_the_broker_and_a_handled_one_does(broker: Broker) -> None:
    for handled, expected in ((False, 0), (True, 1)):
        broker.faults.drop("Produce", handled=handled)
        with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as dropped, pytest.raises(ConnectionClosed):
            dropped.call(ApiKey.PRODUCE, 9, produce_request([b"x"]))
        with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as client:
            assert produced_count(client) == expected


def test_a_delay_holds_answers_back_until_it_is_cleared(broker: Broker, client: WireClient) -> None:
    fault = broker.faults.delay("Metadata", DELAY_S)
    began = time.monotonic()
    for _ in range(2):
        metadata(client)
    assert time.monotonic() - began >= 2 * DELAY_S
    assert fault.struck == 2
    broker.faults.clear()
    metadata(client)
    assert fault.struck == 2


def test_a_delayed_error_is_both(broker: Broker, client: WireClient) -> None:
    broker.faults.delay("Heartbeat", DELAY_S, times=1)
    broker.faults.error("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
    began = time.monotonic()
    answer = client.call(ApiKey.HEARTBEAT, 4, M.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert time.monotonic() - began >= DELAY_S


def test_all_connections_are_dropped_and_new_ones_are_served(broker: Broker) -> None:
    clients = [WireClient(broker.host, broker.port, timeout_s=WAIT_S) for _ in range(3)]
    for client in clients:
        metadata(client)
    assert broker.faults.drop_connections() == 3
    for client in clients:
        with client, pytest.raises(ConnectionClosed):
            metadata(client)
    with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as client:
        metadata(client)
    assert broker.faults.drop_connections() in (0, 1)  # whether it has seen the last one's end


def test_new_connections_are_dropped_as_often_as_asked(broker: Broker, client: WireClient) -> None:
    metadata(client)
    broker.faults.drop_new_connections(2)
    for _ in range(2):
        with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as dropped, pytest.raises(ConnectionClosed):
            metadata(dropped)
    with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as served:
        metadata(served)
    metadata(client)


def test_new_connections_are_refused_and_open_ones_go_on(broker: Broker, client: WireClient) -> None:
    metadata(client)
    broker.faults.refuse_connections()
    with pytest.raises(ConnectionRefusedError):
        WireClient(broker.host, broker.port)
    metadata(client)
    broker.faults.accept_connections()
    with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as served:
        metadata(served)


def test_a_broker_without_faults_has_none_to_order() -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="faults=True"):
        _ = broker.faults
    broker.close()


def test_an_order_may_let_some_requests_pass_first(broker: Broker, client: WireClient) -> None:
    later = broker.faults.error("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, times=2, after=2)
    latest = broker.faults.error("Heartbeat", ErrorCode.ILLEGAL_GENERATION, times=None, after=3)
    request = M.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    codes = [client.call(ApiKey.HEARTBEAT, 4, request).error_code for _ in range(6)]
    passed = ErrorCode.NOT_COORDINATOR  # it has no groups yet
    wanted = [passed, passed, *[ErrorCode.REBALANCE_IN_PROGRESS] * 2, *[ErrorCode.ILLEGAL_GENERATION] * 2]
    assert codes == wanted
    assert (later.struck, latest.struck) == (2, 2)


def test_wrong_names_are_refused_with_the_nearest_right_one(broker: Broker) -> None:
    faults = broker.faults
    for order, why in (
        (lambda: faults.error("Prodce", "NOT_COORDINATOR"), "'Prodce' is no ApiKey; did you mean 'Produce'"),
        (lambda: faults.error("Produce", "NOT_LEADER"), "'NOT_LEADER' is no ErrorCode; did you mean 'NOT_"),
        (lambda: faults.error("CreateAcls", "NOT_COORDINATOR"), "CreateAcls is not served"),
        (lambda: faults.drop("Produce", times=0), "0 times"),
        (lambda: faults.delay("Produce", 0), "a delay of 0 s"),
        (lambda: faults.drop("Produce", after=-1), "after -1 requests"),
    ):
        with pytest.raises(ValueError, match=why):
            order()


# --- what the proxy keeps as it is ------------------------------------------------------------------------------------


def test_clients_are_told_the_proxys_address(broker: Broker, client: WireClient) -> None:
    (node,) = metadata(client).brokers
    assert (node.host, node.port) == (broker.host, broker.port)


def test_answers_come_in_the_order_of_requests_whoever_made_them(broker: Broker, client: WireClient) -> None:
    broker.faults.delay("Metadata", DELAY_S, times=1)
    broker.faults.error("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=2)
    coordinator = M.FindCoordinatorRequest(key="g")
    plan: list[tuple[ApiKey, int, M.Message]] = [
        (ApiKey.METADATA, 9, M.MetadataRequest(topics=None)),
        (ApiKey.FIND_COORDINATOR, 3, coordinator),
        (ApiKey.PRODUCE, 9, produce_request([b"x"])),
        (ApiKey.FIND_COORDINATOR, 3, coordinator),
        (ApiKey.METADATA, 9, M.MetadataRequest(topics=None)),
    ]
    sent = [(api_key, version, client.send(api_key, version, message)) for api_key, version, message in plan]
    answers = [client.receive(*each) for each in sent]
    assert [answers[1].error_code, answers[3].error_code] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert answers[2].responses[0].partition_responses[0].error_code == 0


def test_a_produce_without_acks_has_no_answer(broker: Broker, client: WireClient) -> None:
    """An error of it drops the connection, as in Kafka; so does a lost answer."""
    for _ in range(3):
        client.send(ApiKey.PRODUCE, 9, produce_request([b"x"], acks=0))
    broker.faults.error("Heartbeat", "REBALANCE_IN_PROGRESS")
    beat = M.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert client.call(ApiKey.HEARTBEAT, 4, beat).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert produced_count(client) == 3
    for order in (
        lambda: broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER"),
        lambda: broker.faults.drop("Produce", handled=True),
    ):
        order()
        with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as dropped, pytest.raises(ConnectionClosed):
            dropped.send(ApiKey.PRODUCE, 9, produce_request([b"x"], acks=0))
            metadata(dropped)


def test_large_requests_and_answers_go_through_unchanged() -> None:
    value = bytes(range(256)) * (20 << 12)
    with Broker(faults=True, settings={"message.max.bytes": 40 << 20}) as broker:
        broker.create_topic("t")
        with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as client:
            answer = client.call(ApiKey.PRODUCE, 9, produce_request([value]))
            assert answer.responses[0].partition_responses[0].error_code == 0
            request = M.FetchRequest
            wanted = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
            topic = request.FetchTopic(topic="t", partitions=[wanted])
            fetched = client.call(
                ApiKey.FETCH, 11, request(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=[topic])
            )
    assert value in fetched.responses[0].partitions[0].records


def test_a_hundred_connections_at_once(broker: Broker) -> None:
    def use(_: int) -> int:
        with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as client:
            client.call(ApiKey.PRODUCE, 9, produce_request([b"x"]))
            return len(metadata(client).brokers)

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(use, range(100))) == [1] * 100
    with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as client:
        assert produced_count(client) == 100


def test_more_requests_in_flight_than_are_kept_are_all_answered(broker: Broker, client: WireClient) -> None:
    broker.faults.delay("Metadata", DELAY_S, times=1)
    sent = [client.send(ApiKey.METADATA, 9, M.MetadataRequest(topics=None)) for _ in range(300)]
    for correlation_id in sent:
        client.receive(ApiKey.METADATA, 9, correlation_id)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, bytes(12)], ids=["http", "ones", "zeros"])
def test_what_is_no_request_is_left_to_the_broker_which_closes(broker: Broker, data: bytes) -> None:
    with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
        client.sendall(data)
        assert client.recv(1) == b""


def test_what_is_no_request_goes_through_byte_by_byte() -> None:
    sent = b"GET / HTTP/1.1\r\n\r\n"
    port = ReservedPort(HOST)
    with socket.create_server((HOST, 0)) as target:
        proxy = FaultProxy((HOST, port.port), target.getsockname(), 100)
        proxy.open()
        with socket.create_connection((HOST, port.port), timeout=WAIT_S) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            server, _ = target.accept()
            with server, server.makefile("rb") as received:
                assert received.read() == sent
        proxy.close()
    port.release()


def test_a_client_that_goes_in_the_middle_of_a_request_ends_its_connection(broker: Broker) -> None:
    with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
        client.sendall(bytes.fromhex("00000100 0012 0000 00000007"))
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_a_client_that_sends_no_more_hears_all_its_answers(broker: Broker, client: WireClient) -> None:
    sent = [client.send(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest()) for _ in range(3)]
    client.socket.shutdown(socket.SHUT_WR)
    for correlation_id in sent:
        client.receive(ApiKey.API_VERSIONS, 0, correlation_id)


def test_stop_kill_and_start_are_those_of_the_broker(broker: Broker, client: WireClient) -> None:
    client.call(ApiKey.PRODUCE, 9, produce_request([b"kept"]))
    broker.kill()
    with pytest.raises(ConnectionClosed):
        metadata(client)
    with pytest.raises(ConnectionRefusedError):
        WireClient(broker.host, broker.port)
    broker.start()
    with WireClient(broker.host, broker.port, timeout_s=WAIT_S) as again:
        assert produced_count(again) == 1


def test_open_connections_end_silently_with_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(faults=True) as broker:
        client = WireClient(broker.host, broker.port, timeout_s=WAIT_S)
        metadata(client)
    with client, pytest.raises(ConnectionClosed):
        metadata(client)
    assert caplog.records == []


def test_a_broker_inside_of_the_process_has_faults_too() -> None:
    with Broker(inprocess=True, faults=True) as broker:
        broker.create_topic("t")
        fault = broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER")
        deliver_one(broker)
        assert fault.struck == 1


def test_a_broker_with_faults_that_cannot_start_leaves_nothing() -> None:
    with pytest.raises(BrokerFailed), Broker(faults=True, settings={"num.partitions": 0}):
        raise AssertionError("the block begins")


@pytest.mark.parametrize("api_key", SERVED, ids=lambda api_key: api_key.label)
def test_every_version_of_every_api_can_be_answered_with_an_error(api_key: ApiKey) -> None:
    for version in range(SERVED[api_key].min, SERVED[api_key].max + 1):
        message = request_class(api_key)()
        if api_key is ApiKey.PRODUCE:
            message = M.ProduceRequest(acks=-1)
        frame = encode_request(api_key, version, 7, "c", message)
        answer = _refusal(frame, ErrorCode.UNSUPPORTED_VERSION)
        spoken = 0 if api_key is ApiKey.API_VERSIONS else version
        assert decode_response(api_key, spoken, answer[4:])[0] == 7
