"""Nodes are written as Kafka 3.9.1 in ZooKeeper mode writes them; the texts here were read from one."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordination import paths
from kbroker.model import NO_UUID, Endpoint, TopicPartition

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


def test_a_recovering_leader_is_told_as_kafka_tells_it() -> None:
    state = paths.PartitionRegistration(1, 5, (1,), 7, leader_recovery_state=1)
    data = b'{"controller_epoch":7,"leader":1,"version":1,"leader_recovery_state":1,"leader_epoch":5,"isr":[1]}'
    assert paths.encode_partition_state(state) == data
    assert paths.decode_partition_state("/s", data) == state


def test_adding_and_removing_replicas_are_named_only_where_there_are_some() -> None:
    data = (
        b'{"partitions":{"0":[1,2,3],"1":[1,2,3]},"topic_id":"AAAAAAAAAAEAAAAAAAAAAg","adding_replicas":{"0":[3]},'
        b'"removing_replicas":{"0":[4]},"version":3}'
    )
    replicas = (1, 2, 3)
    given = paths.TopicAssignment(UUID(int=2**64 + 2), {0: replicas, 1: replicas}, {0: (3,), 1: ()}, {0: (4,), 1: ()})
    assert paths.encode_topic(given) == data
    assert paths.decode_topic("/t", data) == given._replace(adding={0: (3,)}, removing={0: (4,)})


def test_a_kbroker_says_in_its_registration_that_it_is_one() -> None:
    broker = paths.decode_broker("/brokers/ids/3", BROKER)
    assert broker.kbroker is None
    ours = broker._replace(kbroker="1.2.3")
    assert json.loads(paths.encode_broker(ours)) == json.loads(BROKER) | {"kbroker": "1.2.3"}
    assert paths.decode_broker("/brokers/ids/3", paths.encode_broker(ours)) == ours


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
        (paths.encode_controller_epoch(5), b"5"),
        (paths.encode_config_change("topics/foo"), b'{"version":2,"entity_path":"topics/foo"}'),
        (paths.encode_log_dir_event(4), b'{"version":1,"broker":4,"event":1}'),
        (
            paths.encode_partitions([TopicPartition("t", 1), TopicPartition("u", 0)]),
            b'{"version":1,"partitions":[{"topic":"t","partition":1},{"topic":"u","partition":0}]}',
        ),
        (
            paths.encode_reassignment({TopicPartition("t", 1): (1, 2), TopicPartition("u", 0): (3,)}),
            b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[1,2]},'
            b'{"topic":"u","partition":0,"replicas":[3]}]}',
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


def test_nodes_of_the_admin_and_of_notifications_are_read_back() -> None:
    some = [TopicPartition("t", 1), TopicPartition("u", 0)]
    assert paths.decode_partitions("/p", paths.encode_partitions(some)) == some
    wanted = {TopicPartition("t", 1): (1, 2), TopicPartition("u", 0): (3,)}
    assert paths.decode_reassignment("/r", paths.encode_reassignment(wanted)) == wanted
    assert paths.decode_log_dir_event("/l", paths.encode_log_dir_event(4)) == paths.LogDirEvent(4)
    assert paths.decode_config_change("/c", paths.encode_config_change("users/u/clients/c")) == "users/u/clients/c"
    assert paths.decode_controller_epoch("/e", paths.encode_controller_epoch(7)) == 7
    assert paths.sequence_of("config_change_0000000012") == 12


def test_older_versions_of_the_nodes_are_read() -> None:
    change = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    assert paths.decode_config_change("/c", change) == "topics/t"
    assert paths.decode_controller("/controller", b"7") == paths.ControllerRegistration(7, -1)
    without_kraft = b'{"version":1,"brokerid":3,"timestamp":"12"}'
    assert paths.decode_controller("/controller", without_kraft) == paths.ControllerRegistration(3, 12)
    feature = b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'
    assert paths.decode_feature("/feature", feature) == paths.FeatureNode(True, {"f": 3})
    assert paths.decode_feature("/feature", b'{"features":{"f":2},"version":2,"status":0}') == (False, {"f": 2})


def test_a_kraft_controller_is_known_by_its_epoch() -> None:
    data = b'{"version":2,"brokerid":3000,"timestamp":"12","kraftControllerEpoch":4}'
    assert paths.decode_controller("/controller", data) == paths.ControllerRegistration(3000, 12, 4)
    assert paths.decode_controller("/c", paths.encode_controller(3, 12)) == paths.ControllerRegistration(3, 12, -1)


@pytest.mark.parametrize(
    "name",
    ["", "config_change_", "config_change_00000000x2", "12", "config_change_\u0661" * 10, "config_change_2147483648"],
)
def test_what_is_no_sequential_node_is_named(name: str) -> None:
    with pytest.raises(paths.StoreCorrupt):
        paths.sequence_of(name)


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
        paths.decode_feature,
        paths.decode_config_change,
        paths.decode_partitions,
        paths.decode_reassignment,
        paths.decode_log_dir_event,
    ):
        with pytest.raises(paths.StoreCorrupt, match="/some/node"):
            decode("/some/node", data)


WILD = [
    "null", "true", "-2", "1e999", "-1e999", "NaN", "1.5", "2147483648", "9" * 400, '"x"', '"\u0661"', '"\\ud800"',
    "{}", "[[]]", "[-1]", "[2147483648]", "[1e999]", '["1"]', '"' + "y" * 40_000 + '"', '{"0": [1e999]}', '{"-1": [1]}',
    '{"2147483648": [1]}', '{"20000": [1]}', '{"01": [1]}', '{"0": []}', '{"0": null}', '{"\\ud800": "x"}',
    '{"x": "\\ud800"}', '[{"topic": 1, "partition": 0}]', '[{"topic": "t", "partition": 1e999, "replicas": [1]}]',
    '["L://h:x"]', '["L://h:70000"]', '["L://h:-1"]', '["\\ud800://h:1"]', "[5]",
]  # fmt: skip
WHOLE = {
    paths.decode_topic: TOPIC,
    paths.decode_partition_state: STATE,
    paths.decode_broker: BROKER,
    paths.decode_controller: paths.encode_controller(3, 12),
    paths.decode_cluster_id: paths.encode_cluster_id("id"),
    paths.decode_producer_id_block: paths.encode_producer_id_block(paths.ProducerIdBlock(3, 0, 999)),
    paths.decode_feature: paths.encode_feature(),
    paths.decode_config: paths.encode_config({"a": "b"}),
    paths.decode_config_change: paths.encode_config_change("topics/t"),
    paths.decode_partitions: paths.encode_partitions([TopicPartition("t", 1)]),
    paths.decode_reassignment: paths.encode_reassignment({TopicPartition("t", 1): (1, 2)}),
    paths.decode_log_dir_event: paths.encode_log_dir_event(4),
}


@pytest.mark.parametrize("decode", WHOLE, ids=lambda each: each.__name__)
def test_a_field_with_another_value_is_read_into_what_the_protocol_has_room_for_or_named(decode: Any) -> None:
    fields = json.loads(WHOLE[decode])
    for name in fields:
        for value in WILD:
            others = {key: other for key, other in fields.items() if key != name}
            data = json.dumps(others)[:-1] + (", " if others else "") + f"{json.dumps(name)}: {value}" + "}"
            try:
                found = decode("/some/node", data.encode())
            except paths.StoreCorrupt as error:
                assert "/some/node" in str(error)
            else:
                assert all(-(2**63) <= each < 2**63 for each in numbers_in(found)), (name, value)
                assert all(len(each.encode()) <= 32767 for each in texts_in(found)), (name, value)


def numbers_in(found: Any) -> Iterator[int]:
    if isinstance(found, int):
        yield found
    for each in parts_of(found):
        yield from numbers_in(each)


def texts_in(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    for each in parts_of(found):
        yield from texts_in(each)


def parts_of(found: Any) -> Iterator[Any]:
    if isinstance(found, dict):
        yield from found.keys()
        yield from found.values()
    elif isinstance(found, tuple | list):
        yield from found


def test_what_a_newer_release_adds_to_a_node_is_not_looked_at() -> None:
    for decode, data in WHOLE.items():
        newer = json.dumps(json.loads(data) | {"version": 99, "later": {"a": [1]}}).encode()
        assert decode("/n", newer) == decode("/n", data), decode  # type: ignore[operator]


def test_brokers_are_those_whose_names_are_ids() -> None:
    names = ["7", "0", "x", "\u00b2", "\u0663", "-1", "01", "2147483648", "2147483647", ""]
    assert paths.broker_ids_of(names) == [7, 0, 2147483647]


def test_a_replica_that_is_named_twice_counts_once() -> None:
    assert paths.decode_topic("/t", b'{"version":1,"partitions":{"0":[1,2,1]}}').replicas == {0: (1, 2)}


def test_a_controller_epoch_or_a_leader_epoch_that_none_can_follow_is_no_epoch() -> None:
    with pytest.raises(paths.StoreCorrupt):
        paths.decode_controller_epoch("/e", b"2147483647")
    with pytest.raises(paths.StoreCorrupt):
        paths.decode_partition_state("/s", STATE.replace(b'"leader_epoch":0', b'"leader_epoch":2147483647'))


@pytest.mark.parametrize("data", [b"", b"{", b"-1", b"x", b"{}", b"99999999999999999999"])
def test_what_is_no_controller_is_named_by_its_path(data: bytes) -> None:
    for decode in (paths.decode_controller, paths.decode_controller_epoch):
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
