"""Nodes are written as Kafka 3.9.1 in ZooKeeper mode writes them; the texts here were read from one."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordination import paths
from kbroker.model import NO_UUID, Endpoint

TOPIC = (
    b'{"partitions":{"0":[3],"1":[3]},"topic_id":"pi_sGiBiQiChniVrKpxhHg","adding_replicas":{},'
    b'"removing_replicas":{},"version":3}'
)
STATE = b'{"controller_epoch":1,"leader":3,"version":1,"leader_epoch":0,"isr":[3]}'
BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
    b'"endpoints":["PLAINTEXT://127.0.0.1:39192"],"rack":"r1","jmx_port":-1,"port":39192,"host":"127.0.0.1",'
    b'"version":5,"timestamp":"1795262862062"}'
)


def test_a_topics_assignment_is_kafkas() -> None:
    assignment = paths.decode_topic("/brokers/topics/tt", TOPIC)
    assert assignment == paths.TopicAssignment(UUID("a62fec1a-2062-4220-a19e-256b2a9c611e"), {0: (3,), 1: (3,)}, {}, {})
    assert paths.encode_topic(assignment) == TOPIC


def test_a_topic_of_an_older_kafka_has_no_id() -> None:
    assignment = paths.decode_topic("/t", b'{"version":1,"partitions":{"1":[2,1],"0":[1,2]}}')
    assert assignment == paths.TopicAssignment(NO_UUID, {1: (2, 1), 0: (1, 2)}, {}, {})


def test_a_partitions_state_is_kafkas() -> None:
    state = paths.PartitionRegistration(leader=3, leader_epoch=0, isr=(3,), controller_epoch=1)
    assert paths.decode_partition_state("/s", STATE) == state
    assert paths.encode_partition_state(state) == STATE


def test_a_brokers_registration_is_kafkas() -> None:
    broker = paths.BrokerRegistration((Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 39192),), "r1", 1795262862062)
    assert paths.decode_broker("/brokers/ids/3", BROKER) == broker
    assert json.loads(paths.encode_broker(broker)) == json.loads(BROKER)


def test_a_registration_with_ipv6_and_own_listener_names_is_read_back() -> None:
    broker = paths.BrokerRegistration(
        (Endpoint("INSIDE", "SASL_SSL", "::1", 1), Endpoint("OUT", "SSL", "h", 2)), None, 5
    )
    assert paths.decode_broker("/b", paths.encode_broker(broker)) == broker
    assert json.loads(paths.encode_broker(broker))["endpoints"] == ["INSIDE://[::1]:1", "OUT://h:2"]
    assert json.loads(paths.encode_broker(broker))["port"] == -1


def test_a_registration_of_kafka_0_8_is_read() -> None:
    data = b'{"jmx_port":-1,"timestamp":"1233345666","host":"localhost","version":1,"port":9092}'
    assert paths.decode_broker("/b", data).endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)


@pytest.mark.parametrize(
    ("written", "data"),
    [
        (paths.encode_config({"retention.ms": "1000"}), b'{"version":1,"config":{"retention.ms":"1000"}}'),
        (paths.encode_config({}), b'{"version":1,"config":{}}'),
        (paths.encode_cluster_id("QAKdw32KQeevgsK7F9b98w"), b'{"version":"1","id":"QAKdw32KQeevgsK7F9b98w"}'),
        (paths.encode_feature(), b'{"features":{},"version":2,"status":1}'),
        (
            paths.encode_controller(3, 1795262862155),
            b'{"version":2,"brokerid":3,"timestamp":"1795262862155","kraftControllerEpoch":-1}',
        ),
        (
            paths.encode_producer_id_block(paths.ProducerIdBlock(3, 0, 999)),
            b'{"version":1,"broker":3,"block_start":"0","block_end":"999"}',
        ),
    ],
)
def test_small_nodes_are_kafkas(written: bytes, data: bytes) -> None:
    assert written == data


def test_configs_ids_and_blocks_are_read_back() -> None:
    assert paths.decode_config("/c", paths.encode_config({"a": 'ü,"'})) == {"a": 'ü,"'}
    assert paths.decode_config("/c", b"") == {}
    assert paths.decode_cluster_id("/i", b'{"version":"1","id":"QAKdw32KQeevgsK7F9b98w"}') == "QAKdw32KQeevgsK7F9b98w"
    block = paths.ProducerIdBlock(1, 1000, 1999)
    assert paths.decode_producer_id_block("/p", paths.encode_producer_id_block(block)) == block


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"7", b"{}", b"[" * 100_000, b'{"partitions":{"x":[1]}}', b"\xff\xfe"]
)
def test_rubbish_is_named_by_its_path_whoever_reads_it(data: bytes) -> None:
    for decode in (
        paths.decode_topic,
        paths.decode_partition_state,
        paths.decode_broker,
        paths.decode_cluster_id,
        paths.decode_producer_id_block,
    ):
        with pytest.raises(paths.StoreCorrupt, match="/some/node"):
            decode("/some/node", data)


@pytest.mark.parametrize("data", [b"", b"x", b"5.0", b"0x5", b"9223372036854775808", b"-9223372036854775809"])
def test_what_is_no_offset_is_named_by_its_path(data: bytes) -> None:
    with pytest.raises(paths.StoreCorrupt, match="/some/node"):
        paths.decode_consumer_offset("/some/node", data)


@given(st.uuids())
def test_uuids_are_22_characters_and_read_back(value: UUID) -> None:
    text = paths.encode_uuid(value)
    assert len(text) == 22
    assert paths.decode_uuid(text) == value


@pytest.mark.parametrize("text", ["", "short", "x" * 23, "!" * 22])
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|characters"):
        paths.decode_uuid(text)
