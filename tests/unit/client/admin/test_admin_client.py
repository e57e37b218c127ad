"""AdminClient against kbroker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kbroker.client.admin.admin_client import EARLIEST, AdminClient
from kbroker.client.admin.results import NewTopic
from kbroker.client.consumer.group_metadata import OffsetAndMetadata
from kbroker.client.errors import BrokerError, ClientClosed, ConnectionFailed, PartialFailure
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.scripted import Peer, ScriptedBroker
from tests.kit.brokers.whole import WholeBroker


@pytest.fixture(scope="module")
def admin(broker: WholeBroker) -> Iterator[AdminClient]:
    with AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}", client_id="admin") as made:
        yield made


def produce(broker: WholeBroker, topic: str, partition: int, times: int) -> None:
    for _ in range(times):
        request = M.ProduceRequest
        data = request.PartitionProduceData
        part = data(index=partition, records=encode_batch([(0, None, b"value")]))
        answer = broker.call(
            ApiKey.PRODUCE,
            9,
            request(
                acks=-1, timeout_ms=10_000, topic_data=[request.TopicProduceData(name=topic, partition_data=[part])]
            ),
        )
        assert answer.responses[0].partition_responses[0].error_code == 0


def commit(broker: WholeBroker, group: str, topic: str, partition: int, offset: int) -> None:
    request = M.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="here"
    )
    message = request(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    answer = broker.call(ApiKey.OFFSET_COMMIT, 8, message)
    assert answer.topics[0].partitions[0].error_code == 0


def test_topics_come_grow_and_go(admin: AdminClient) -> None:
    admin.create_topic("orders", 3, 1, {"retention.ms": "1000"})
    assert "orders" in admin.list_topics()
    described = admin.describe_topics(["orders"])["orders"]
    assert [each.partition for each in described.partitions] == [0, 1, 2]
    assert described.partitions[0].leader in described.partitions[0].in_sync
    assert len(described.topic_id) == 16 and any(described.topic_id)
    with pytest.raises(BrokerError, match="topic 'orders'") as raised:
        admin.create_topic("orders")
    assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert not raised.value.retriable
    admin.create_partitions("orders", 5)
    assert len(admin.describe_topics(["orders"])["orders"].partitions) == 5
    with pytest.raises(BrokerError):
        admin.create_partitions("orders", 2)
    admin.delete_topics(["orders"])
    assert "orders" not in admin.list_topics()
    with pytest.raises(BrokerError) as raised:
        admin.describe_topics(["orders"])
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.describe_topics([]) == {}


def test_validation_creates_nothing(admin: AdminClient) -> None:
    admin.create_topic("tried", 1, validate_only=True)
    assert "tried" not in admin.list_topics()
    with pytest.raises(BrokerError, match=r"retention\.ms"):
        admin.create_topic("tried", 1, configs={"retention.ms": "soon"}, validate_only=True)


def test_settings_are_altered_and_taken_back(admin: AdminClient) -> None:
    admin.create_topic("settings", 1)
    before = admin.describe_topic_config("settings")["retention.ms"]
    assert before.is_default
    admin.alter_topic_config("settings", {"retention.ms": "77"})
    changed = admin.describe_topic_config("settings")["retention.ms"]
    assert (changed.value, changed.source, changed.is_default) == ("77", "DYNAMIC_TOPIC_CONFIG", False)
    admin.alter_topic_config("settings", {"retention.ms": None})
    assert admin.describe_topic_config("settings")["retention.ms"] == before
    with pytest.raises(BrokerError, match="topic 'settings'"):
        admin.alter_topic_config("settings", {"retention.ms": "soon"})
    admin.alter_topic_config("settings", append={"cleanup.policy": "compact"})
    assert admin.describe_topic_config("settings")["cleanup.policy"].value == "delete,compact"
    admin.alter_topic_config("settings", {"retention.ms": "9"}, subtract={"cleanup.policy": "delete"})
    found = admin.describe_topic_configs(["settings"])["settings"]
    assert (found["cleanup.policy"].value, found["retention.ms"].value) == ("compact", "9")
    assert admin.describe_topic_configs([]) == {}
    only = admin.describe_topic_configs(["settings"], only=["retention.ms"])
    assert only == {"settings": {"retention.ms": found["retention.ms"]}}


def test_of_several_topics_each_has_its_own_answer(admin: AdminClient) -> None:
    admin.create_topic("there", 1)
    with pytest.raises(
        PartialFailure, match=r"2 of 3 failed: topic 'there': TOPIC_ALREADY_EXISTS.*; topic 'a b'"
    ) as told:
        admin.create_topics([NewTopic("there", 1), NewTopic("a b", 1), NewTopic("fine", 1)])
    assert {name: error.code for name, error in told.value.errors.items()} == {
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert (told.value.code, told.value.results) == (ErrorCode.TOPIC_ALREADY_EXISTS, {"fine": None})
    assert "fine" in admin.list_topics()
    assert admin.create_topics([]) is None
    # Each is a sentence of a broker's, and what follows it is another.
    with pytest.raises(PartialFailure, match=r"topic-partition; topic 'y': .*topic-partition \(create the topic"):
        admin.delete_topics(["x", "y"])


def test_a_broker_that_takes_all_settings_at_once_keeps_the_others(broker: WholeBroker) -> None:
    with AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}") as older:
        connection = older._thread.call(older._cluster.any_connection())
        del connection.served[ApiKey.INCREMENTAL_ALTER_CONFIGS]  # as before Kafka 2.3
        older.create_topic("older", 1, configs={"max.message.bytes": "5000"})
        before = older.describe_topic_config("older")
        older.alter_topic_config("older", {"retention.ms": "77"}, validate_only=True)
        assert older.describe_topic_config("older") == before
        older.alter_topic_config("older", {"retention.ms": "77"})
        found = older.describe_topic_config("older")
        assert {name: each.value for name, each in found.items() if not each.is_default} == {
            "max.message.bytes": "5000",
            "retention.ms": "77",
        }
        older.alter_topic_config("older", {"max.message.bytes": None})
        assert older.describe_topic_config("older")["max.message.bytes"].is_default
        assert older.describe_topic_config("older")["retention.ms"].value == "77"
        with pytest.raises(BrokerError, match=r"cleanup\.policy can only be set as a whole") as raised:
            older.alter_topic_config("older", append={"cleanup.policy": "compact"})
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            older.alter_topic_config("not-there", {"retention.ms": "77"})


def test_what_an_old_version_cannot_say_is_unsupported(broker: WholeBroker) -> None:
    with AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}") as older:
        assert isinstance(older.list_groups(states=["Empty"]), list)
        for connection in older._cluster._connections.values():
            connection.served[ApiKey.LIST_GROUPS] = (0, 3)  # as before Kafka 2.6
        with pytest.raises(BrokerError, match=r"serves ListGroups up to version 3 only: .*states_filter") as raised:
            older.list_groups(states=["Empty"])
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert isinstance(older.list_groups(), list)


def test_settings_of_brokers_and_groups(admin: AdminClient) -> None:
    node_id = admin.describe_cluster().controller_id
    admin.alter_broker_config(node_id, {"log.retention.ms": "7200000"})
    assert admin.describe_broker_config(node_id)["log.retention.ms"].source == "DYNAMIC_BROKER_CONFIG"
    admin.alter_broker_config(node_id, {"log.retention.ms": None})
    admin.alter_broker_config(None, {"log.retention.ms": "7200000"})
    assert admin.describe_broker_config(None)["log.retention.ms"].value == "7200000"
    assert admin.describe_broker_config(node_id)["log.retention.ms"].source == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    admin.alter_broker_config(None, {"log.retention.ms": None})
    admin.alter_group_config("some", {"consumer.session.timeout.ms": "50000"})
    assert admin.describe_group_config("some")["consumer.session.timeout.ms"].value == "50000"


def test_the_cluster_is_described(admin: AdminClient, broker: WholeBroker) -> None:
    described = admin.describe_cluster()
    assert [(each.host, each.port) for each in described.brokers] == [("127.0.0.1", broker.port)]
    assert described.controller_id == described.brokers[0].node_id
    assert described.cluster_id


def test_offsets_are_listed_and_records_deleted(admin: AdminClient, broker: WholeBroker) -> None:
    admin.create_topic("records", 2)
    produce(broker, "records", 1, 3)
    both = [("records", 0), ("records", 1)]
    ends = admin.list_offsets(both)
    assert ends[TopicPartition("records", 0)].offset == 0
    end = ends[TopicPartition("records", 1)].offset
    assert end > 0
    assert admin.list_offsets(both, EARLIEST)[TopicPartition("records", 1)].offset == 0
    assert admin.list_offsets([("records", 1)], at=0)[TopicPartition("records", 1)].offset == 0
    assert admin.delete_records({("records", 1): 1}) == {TopicPartition("records", 1): 1}
    assert admin.list_offsets(both, EARLIEST)[TopicPartition("records", 1)].offset == 1
    assert admin.delete_records({("records", 1): -1}) == {TopicPartition("records", 1): end}
    with pytest.raises(BrokerError, match="records-1"):
        admin.delete_records({("records", 1): end + 1})


def test_groups_are_listed_and_deleted_with_what_they_committed(admin: AdminClient, broker: WholeBroker) -> None:
    admin.create_topic("committed", 1)
    assert admin.committed("readers") == {}
    commit(broker, "readers", "committed", 0, 5)
    assert "readers" in [group.group_id for group in admin.list_groups()]
    assert admin.committed("readers") == {TopicPartition("committed", 0): OffsetAndMetadata(5, "here")}
    assert admin.committed("nobody") == {}
    admin.delete_group("readers")
    assert "readers" not in [group.group_id for group in admin.list_groups()]
    with pytest.raises(BrokerError) as raised:
        admin.delete_group("readers")
    assert raised.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_are_altered_while_it_has_no_members(admin: AdminClient, broker: WholeBroker) -> None:
    admin.create_topic("moved", 2)
    admin.alter_offsets("movers", {("moved", 0): 3, TopicPartition("moved", 1): 0})
    assert {each: found.offset for each, found in admin.committed("movers").items()} == {
        ("moved", 0): 3,
        ("moved", 1): 0,
    }
    with (
        AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}", default_api_timeout_ms=300) as hasty,
        pytest.raises(BrokerError, match="group 'movers', ghost-0: UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        hasty.alter_offsets("movers", {("ghost", 0): 3})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_described_with_their_members(admin: AdminClient, broker: WholeBroker, protocol: str) -> None:
    from confluent_kafka import Consumer

    dead = admin.describe_group("described")
    assert (dead.state, dead.members) == ("Dead", ())
    topic, group = f"described-{protocol}", f"described-{protocol}"
    admin.create_topic(topic, 2)
    options = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "group.id": group, "client.id": "c1"}
    consumer = Consumer({**options, "group.protocol": protocol, "group.instance.id": "i1"})
    consumer.subscribe([topic])
    try:
        while not consumer.assignment():
            consumer.poll(0.05)
        found = admin.describe_group(group)
        assert (found.group_id, found.state, found.group_type) == (group, "Stable", protocol)
        assert (found.protocol_type, found.coordinator) == ("consumer", admin.describe_cluster().controller_id)
        assert found.assignor == {"classic": "range", "consumer": "uniform"}[protocol]
        (member,) = found.members
        assert (member.instance_id, member.client_id) == ("i1", "c1")
        assert member.partitions == ((topic, 0), (topic, 1))
        with pytest.raises(BrokerError, match=f"group '{group}'"):
            admin.delete_group(group)
        with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
            admin.alter_offsets(group, {(topic, 0): 1})
    finally:
        consumer.close()


def test_transactional_ids_are_listed_and_described(admin: AdminClient, broker: WholeBroker) -> None:
    with pytest.raises(BrokerError, match="transactional id 'nobody'") as raised:
        admin.describe_transaction("nobody")
    assert raised.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    begun = broker.call(
        ApiKey.INIT_PRODUCER_ID, 4, M.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=5_000)
    )
    assert begun.error_code == 0
    described = admin.describe_transaction("tx")
    assert (described.state, described.producer_id, described.timeout_ms) == ("Empty", begun.producer_id, 5_000)
    assert (described.started_ms, described.partitions) == (-1, ())
    assert [each.transactional_id for each in admin.list_transactions()] == ["tx"]
    assert admin.list_transactions(["Ongoing"]) == []
    with pytest.raises(BrokerError, match="no transaction has the state Odd"):
        admin.list_transactions(["Odd"])


def test_several_threads_use_one_client(admin: AdminClient) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(5):
                name = f"thread-{number}-{round_}"
                admin.create_topic(name, 1)
                assert name in admin.list_topics()
                admin.delete_topics([name])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_wrong_options_are_refused_before_anything_is_begun() -> None:
    before = threading.active_count()
    with pytest.raises(
        TypeError, match=r"AdminClient has no option 'bootstrap_server'; the nearest is 'bootstrap_servers'"
    ):
        AdminClient(bootstrap_server="a")
    with pytest.raises(ValueError, match=r"bootstrap\.servers is missing"):
        AdminClient()
    with pytest.raises(ValueError, match=r"needs sasl\.username"):
        AdminClient(bootstrap_servers="a", security_protocol="SASL_SSL")
    assert threading.active_count() == before


def test_a_closed_client_says_so(broker: WholeBroker) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    admin.close()
    admin.close()
    with pytest.raises(ClientClosed):
        admin.list_topics()


def test_a_broker_that_is_not_there_is_noticed_at_once_when_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            AdminClient(bootstrap_servers=address, default_api_timeout_ms=600_000) as admin,
            pytest.raises(ConnectionFailed, match=f"cannot connect to {address}: connection refused"),
        ):
            admin.check_connection()


def test_a_listener_that_closes_at_the_first_request_is_not_asked_again() -> None:
    """A listener that asks for SASL closes so."""

    def script(peer: Peer) -> None:
        peer.serve_versions()

    with ScriptedBroker(script) as broker:
        address = f"127.0.0.1:{broker.port}"
        with (
            AdminClient(bootstrap_servers=address, default_api_timeout_ms=600_000) as admin,
            pytest.raises(ConnectionFailed, match=r"closed the connection .*security\.protocol=PLAINTEXT"),
        ):
            admin.check_connection()


def test_a_cluster_that_is_not_there_is_an_error_in_time() -> None:
    with ScriptedBroker(Peer.request) as broker:
        address = f"127.0.0.1:{broker.port}"
        with (
            AdminClient(bootstrap_servers=address, default_api_timeout_ms=200) as admin,
            pytest.raises(ConnectionFailed, match=address),
        ):
            admin.create_topic("a")


def test_a_string_is_no_list_of_names(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("x", 1), NewTopic("y", 1)])
    for call in (admin.delete_topics, admin.describe_topics, admin.delete_groups, admin.fence_producers):
        with pytest.raises(TypeError, match=r"a list of .*, not the string 'xy'"):
            call("xy")
    assert {"x", "y"} <= set(admin.list_topics())
    with pytest.raises(TypeError, match=r"\(topic, number\), not 'x'"):
        admin.list_offsets(["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="NewTopic objects, not 'z'"):
        admin.create_topics(["z"])  # type: ignore[list-item]
