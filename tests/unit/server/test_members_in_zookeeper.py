"""Whole brokers, in this process, as members of clusters in a real ZooKeeper."""

from __future__ import annotations

import json
import shutil
from typing import Any
from uuid import UUID

import pytest

from kbroker.cli.main import main
from kbroker.cluster.consumer_offsets import ConsumerOffsets
from kbroker.cluster.joining import CannotJoin
from kbroker.coordination import paths
from kbroker.errors import ConfigError, ErrorCode
from kbroker.groups.offsets import Offsets as GroupOffsets
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.wire import WireClient
from tests.kit.cluster.members import Members, await_that
from tests.kit.kafka.zookeeper import ZooKeeperProcess


def test_one_member_elects_itself_and_serves(members: Members) -> None:
    broker = members.start(3)
    members.settle(3)
    await_that(lambda: members.cluster(3).is_controller)
    registration = paths.decode_broker("/", members.store.get("/brokers/ids/3")[0])
    assert registration.endpoints == broker.broker.endpoints
    assert registration.kbroker is not None
    assert json.loads(members.store.get(paths.CONTROLLER)[0])["brokerid"] == 3
    assert members.create("t", 2, 1).error_code == 0
    broker.append("t", 1, [b"a", b"b"])
    state = paths.decode_partition_state("/", members.store.get(paths.partition_state_path("t", 1))[0])
    assert (state.leader, state.leader_epoch, state.isr) == (3, 0, (3,))
    members.stop(3)
    assert members.store.children(paths.BROKER_IDS) == []
    assert members.store.exists(paths.CONTROLLER) is None


def test_a_member_that_starts_again_has_its_topics_and_messages(members: Members) -> None:
    members.start(3)
    members.settle(3)
    await_that(lambda: members.cluster(3).is_controller)
    members.create("t", 1, 1, retention__ms="99000")
    members.running[3].append("t", 0, [b"a", b"b"])
    members.stop(3)
    forgetful = WholeBroker(members.folder, {"broker.id": 3, "log.dirs": members.folder / "3"})
    with pytest.raises(ConfigError, match=r"is that of a member of a cluster: set zookeeper\.connect"):
        forgetful.broker.start()
    forgetful.broker.stop()
    broker = members.start(3)
    await_that(lambda: "t" in members.cluster(3).image.topics)
    log = broker.log_of("t", 0)
    await_that(lambda: log.state.role != "stopped")
    assert log.log_end_offset == 2
    assert log.options.retention_ms == 99_000
    broker.append("t", 0, [b"c"])


def test_three_members_replicate_and_one_that_leaves_is_missed_by_nobody(members: Members) -> None:
    for node_id in (1, 2, 3):
        members.start(node_id)
    members.settle(1, 2, 3)
    await_that(lambda: sum(members.cluster(each).is_controller for each in (1, 2, 3)) == 1)
    assert members.create("t", 3, 3, min__insync__replicas="2").error_code == 0
    image = members.cluster(1).image
    leaders = {each.leader for each in image.topics["t"].partitions}
    assert leaders == {1, 2, 3}
    for partition in image.topics["t"].partitions:
        members.running[partition.leader].append("t", partition.partition_id, [b"a", b"b", b"c"])
    await_that(lambda: all(each.log_of("t", 0).log_end_offset == 3 for each in members.running.values()))
    left = next(each for each in (1, 2, 3) if not members.cluster(each).is_controller)
    members.stop(left)
    others = [each for each in (1, 2, 3) if each != left]
    members.settle(*others)
    for node_id in others:
        for partition in members.cluster(node_id).image.topics["t"].partitions:
            assert partition.leader in others
            assert set(partition.isr) == set(others)
            assert set(partition.offline) == {left}
    members.start(left)
    members.settle(1, 2, 3)
    await_that(lambda: all(len(each.isr) == 3 for each in members.cluster(left).image.topics["t"].partitions))


def test_topics_with_more_than_one_replica_are_flushed_before_acks_unless_a_policy_is_set(members: Members) -> None:
    members.start_all(1, 2)
    assert members.create("two", 1, 2).error_code == 0
    assert members.create("one", 1, 1).error_code == 0
    assert members.create("timed", 1, 2, flush__ms="60000").error_code == 0
    assert members.create("lazy", 1, 2, flush__messages=str(2**63 - 1)).error_code == 0
    for topic, is_flushed in {"two": True, "one": False, "timed": False, "lazy": False}.items():
        await_that(lambda topic=topic: members.leader_of(topic, 0) is not None)
        leader = members.leader_of(topic, 0)
        assert leader is not None
        leader.append(topic, 0, [b"a"])
        for broker in members.running.values():
            log = broker.broker._logs.get(TopicPartition(topic, 0))
            if log is not None:
                await_that(lambda log=log: log.log_end_offset == 1)
                assert log.recovery_point == is_flushed, topic
        keys = [M.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=topic)]
        told = leader.call(ApiKey.DESCRIBE_CONFIGS, 4, M.DescribeConfigsRequest(resources=keys)).results[0].configs
        shown = next(each.value for each in told if each.name == "flush.messages")
        assert (shown == "1") == is_flushed


def test_a_topic_that_gets_a_second_replica_is_flushed_before_acks_from_then_on(members: Members) -> None:
    members.start_all(1, 2)
    assert members.create("grows", 1, 1).error_code == 0
    await_that(lambda: members.leader_of("grows", 0) is not None)
    leader = members.leader_of("grows", 0)
    assert leader is not None
    await_that(lambda: leader.log_of("grows", 0).options.flush_messages > 1)
    moved = M.AlterPartitionReassignmentsRequest.ReassignableTopic(
        name="grows",
        partitions=[M.AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1, 2])],
    )
    request = M.AlterPartitionReassignmentsRequest(topics=[moved])
    assert members.controller.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request).error_code == 0
    await_that(lambda: leader.log_of("grows", 0).options.flush_messages == 1)


def test_a_follower_describes_the_producers_that_its_replica_knows(members: Members) -> None:
    members.start_all(1, 2)
    assert members.create("t", 1, 2).error_code == 0
    await_that(lambda: members.leader_of("t", 0) is not None)
    leader = members.leader_of("t", 0)
    assert leader is not None
    leader.append("t", 0, [b"a"], producer_id=7, producer_epoch=0, base_sequence=0)
    R = M.DescribeProducersRequest
    asked = R(topics=[R.TopicRequest(name="t", partition_indexes=[0])])

    def known_by(broker: WholeBroker) -> list[int]:
        (partition,) = broker.call(ApiKey.DESCRIBE_PRODUCERS, 0, asked).topics[0].partitions
        assert partition.error_code == ErrorCode.NONE
        return [each.producer_id for each in partition.active_producers]

    await_that(lambda: [known_by(broker) for broker in members.running.values()] == [[7], [7]])


def test_features_are_changed_by_the_controller_only(members: Members) -> None:
    members.start_all(1, 2)
    asked = M.UpdateFeaturesRequest(feature_updates=[], timeout_ms=1000)
    told = {
        members.cluster(node_id).is_controller: broker.call(ApiKey.UPDATE_FEATURES, 1, asked).error_code
        for node_id, broker in members.running.items()
    }
    assert told == {True: ErrorCode.NONE, False: ErrorCode.NOT_CONTROLLER}


def test_topics_that_cannot_be_placed_are_refused_and_others_are_made(members: Members) -> None:
    members.start_all(1, 2)
    assert members.create("many", 1, 3).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    C = M.CreateTopicsRequest
    for replicas in ([1, 9], [1, 1], [-1], []):
        made = [C.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)]
        topic = C.CreatableTopic(name="placed", num_partitions=-1, replication_factor=-1, assignments=made)
        answer = members.controller.call(ApiKey.CREATE_TOPICS, 5, C(topics=[topic], timeout_ms=5_000))
        assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, replicas
    assert members.create("good", 1, 2).error_code == 0
    P = M.CreatePartitionsRequest
    for replicas in ([1, 9], [1, 1], [2], []):
        grown = P.CreatePartitionsTopic(
            name="good", count=2, assignments=[P.CreatePartitionsAssignment(broker_ids=replicas)]
        )
        answer = members.controller.call(ApiKey.CREATE_PARTITIONS, 3, P(topics=[grown], timeout_ms=5_000))
        assert answer.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, replicas
    assert sorted(members.store.children(paths.TOPICS)) == ["good"]
    await_that(lambda: members.leader_of("good", 0) is not None)


def test_a_named_topic_that_needs_more_brokers_than_there_are_is_refused_by_its_replication_factor(
    members: Members,
) -> None:
    for node_id in (1, 2):
        members.start(node_id, default__replication__factor=3)
    members.settle(1, 2)
    topics = [M.MetadataRequest.MetadataRequestTopic(name=name) for name in ("named", "not/a/name")]
    for node_id in (1, 2):
        for version in (1, 12):
            named = M.MetadataRequest(topics=topics, allow_auto_topic_creation=True)
            answer = members.running[node_id].call(ApiKey.METADATA, version, named)
            codes = [topic.error_code for topic in answer.topics]
            assert codes == [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_TOPIC_EXCEPTION]
    asked = M.MetadataRequest(topics=topics[:1], allow_auto_topic_creation=False)
    answer = members.running[1].call(ApiKey.METADATA, 12, asked)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert members.store.children(paths.TOPICS) == []


def test_a_topic_that_is_being_deleted_gets_no_partitions(members: Members) -> None:
    members.start_all(1, 2)
    assert members.create("t", 1, 2).error_code == 0
    away = next(each for each in (1, 2) if not members.cluster(each).is_controller)
    members.stop(away)
    (controller,) = members.running
    members.settle(controller)
    D = M.DeleteTopicsRequest
    members.controller.call(ApiKey.DELETE_TOPICS, 5, D(topic_names=["t"], timeout_ms=1))
    P = M.CreatePartitionsRequest
    topics = [P.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("t", "u")]
    for validate_only in (True, False):
        request = P(topics=topics, timeout_ms=5_000, validate_only=validate_only)
        results = members.controller.call(ApiKey.CREATE_PARTITIONS, 3, request).results
        assert [(each.name, each.error_code, each.error_message) for each in results] == [
            ("t", ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion."),
            ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'u' does not exist."),
        ]
    members.start(away)
    await_that(lambda: "t" not in members.store.children(paths.TOPICS))


def test_a_leader_that_a_client_does_not_reach_is_none_for_it(members: Members) -> None:
    """Metadata says why, and its first version leaves out replicas that the answer's brokers do not have;
    DescribeTopicPartitions, as Kafka's, says only that there is no leader."""
    both = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
    members.start(2)
    members.start(1, listeners="PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0", listener__security__protocol__map=both)
    members.settle(1, 2)
    await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2)))
    C = M.CreateTopicsRequest
    placed = [C.CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in enumerate([[1, 2], [2, 1]])]
    topic = C.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=placed)
    answer = members.controller.call(ApiKey.CREATE_TOPICS, 5, C(topics=[topic], timeout_ms=20_000))
    assert answer.topics[0].error_code == 0
    for partition in (0, 1):
        await_that(lambda partition=partition: members.leader_of("t", partition) is not None)

    def told(port: int) -> list[list[tuple[int, int, list[int], list[int]]]]:
        """Return error, leader, ISR and offline replicas of both partitions by each request."""
        D = M.DescribeTopicPartitionsRequest
        with WireClient("127.0.0.1", port) as client:
            asked = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="t")])
            described = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, D(topics=[D.TopicRequest(name="t")]))
            answers = [client.call(ApiKey.METADATA, version, asked) for version in (5, 12)] + [described]
        assert all(not each.eligible_leader_replicas for each in described.topics[0].partitions)
        rows = [one.topics[0].partitions for one in answers]
        return [[(p.error_code, p.leader_id, p.isr_nodes, p.offline_replicas) for p in row] for row in rows]

    ports = {each.listener: each.port for each in members.running[1].broker.endpoints}
    first_version = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="t")])
    with WireClient("127.0.0.1", ports["OTHER"]) as client:
        oldest = client.call(ApiKey.METADATA, 0, first_version).topics[0].partitions
    assert [(each.error_code, each.leader_id, each.replica_nodes, each.isr_nodes) for each in oldest] == [
        (ErrorCode.REPLICA_NOT_AVAILABLE, 1, [1], [1]),
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1], [1]),
    ]
    at_both = [(0, 1, [1, 2], []), (0, 2, [2, 1], [])]
    assert told(ports["PLAINTEXT"]) == [at_both] * 3
    first = (0, 1, [1, 2], [2])
    assert told(ports["OTHER"]) == [
        [first, (ErrorCode.LEADER_NOT_AVAILABLE, -1, [2, 1], [2])],
        [first, (ErrorCode.LISTENER_NOT_FOUND, -1, [2, 1], [2])],
        [first, (0, -1, [2, 1], [2])],
    ]
    members.stop(1)
    members.settle(2)
    at = TopicPartition("t", 0)
    await_that(lambda: members.cluster(2).image.partition(at).leader == 2)
    assert told(members.running[2].port) == [[(0, 2, [2], [1])] * 2] * 3


def test_other_members_than_the_controller_say_so(members: Members) -> None:
    members.start(1)
    members.settle(1)
    members.start(2)
    members.settle(1, 2)
    await_that(lambda: members.cluster(1).is_controller)
    other = members.running[2]
    wanted = [M.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    answer = other.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=wanted, timeout_ms=1000))
    assert answer.topics[0].error_code == 41
    answer = other.call(ApiKey.DELETE_TOPICS, 5, M.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
    assert answer.responses[0].error_code == 41
    topics = [M.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)]
    answer = other.call(ApiKey.CREATE_PARTITIONS, 3, M.CreatePartitionsRequest(topics=topics, timeout_ms=1000))
    assert answer.results[0].error_code == 41


def test_any_member_makes_topics_that_are_named_and_alters_configs_for_all(members: Members) -> None:
    members.start_all(1, 2)
    other = next(each for each in (1, 2) if not members.cluster(each).is_controller)
    named = M.MetadataRequest(
        topics=[M.MetadataRequest.MetadataRequestTopic(name="named")], allow_auto_topic_creation=True
    )
    first = members.running[other].call(ApiKey.METADATA, 9, named).topics[0]
    assert first.error_code in (0, 5), "it is there, or it is being made"
    await_that(lambda: all("named" in members.cluster(each).image.topics for each in (1, 2)))
    resource = M.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2,
        resource_name="named",
        configs=[
            M.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="77000")
        ],
    )
    request = M.IncrementalAlterConfigsRequest(resources=[resource])
    answer = members.running[other].call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0
    for node_id in (1, 2):
        await_that(
            lambda node_id=node_id: members.cluster(node_id).image.topics["named"].configs == {"retention.ms": "77000"}
        )
    (leader,) = {each.leader for each in members.cluster(1).image.topics["named"].partitions}
    await_that(lambda: members.running[leader].log_of("named", 0).options.retention_ms == 77_000)


def test_a_partition_without_a_leader_gets_one_when_unclean_elections_become_allowed(members: Members) -> None:
    """The controller hears of the setting: nothing else happens to the partition."""
    members.start_all(1, 2)
    for name in ("a", "b"):
        assert members.create(name, 1, 2).error_code == 0
        await_that(lambda name=name: members.leader_of(name, 0) is not None)
    members.stop(1)
    members.settle(2)
    members.stop(2)
    members.start(1)
    members.settle(1)
    await_that(lambda: all(name in members.cluster(1).image.topics for name in ("a", "b")))

    def leaders() -> list[int]:
        topics = members.cluster(1).image.topics
        return [topics[name].partitions[0].leader for name in ("a", "b")]

    await_that(lambda: 2 not in leaders())  # a new controller tells first what it has found, then what it decides
    assert leaders() == [-1, -1], "the last of the ISR is away"
    for kind, resource, name in ((2, "a", "a"), (4, "", "b")):
        config = M.IncrementalAlterConfigsRequest.AlterableConfig(
            name="unclean.leader.election.enable", config_operation=0, value="true"
        )
        changed = M.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=resource, configs=[config]
        )
        request = M.IncrementalAlterConfigsRequest(resources=[changed])
        answer = members.running[1].call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert answer.responses[0].error_code == 0
        await_that(lambda name=name: members.cluster(1).image.topics[name].partitions[0].leader == 1)


def test_a_session_that_expires_costs_no_message_and_comes_back(members: Members) -> None:
    members.start_all(1, 2)
    members.create("t", 2, 2)
    for node_id in (2, 1):  # the controller is one of them
        cluster = members.cluster(node_id)
        epoch = cluster.broker_epoch
        members.server.expire(members.running[node_id].broker._home.session.session)
        await_that(lambda cluster=cluster, epoch=epoch: cluster.broker_epoch > epoch)
        members.settle(1, 2)
        await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2)))
        await_that(lambda: all(members.leader_of("t", each) for each in (0, 1)))
    for partition_id in (0, 1):
        leader = members.leader_of("t", partition_id)
        assert leader is not None
        leader.append("t", partition_id, [b"a"])


def test_a_member_whose_inter_broker_listener_the_others_lack_is_refused(members: Members) -> None:
    members.start(1)
    members.settle(1)
    bad = members.made(
        2,
        listeners="INSIDE://127.0.0.1:0",
        listener__security__protocol__map="INSIDE:PLAINTEXT",
        inter__broker__listener__name="INSIDE",
    )
    with pytest.raises(CannotJoin, match="listener INSIDE"):
        bad.broker.start()
    bad.broker.stop()
    assert members.store.children(paths.BROKER_IDS) == ["1"]


def test_a_taken_id_is_refused_and_the_first_one_serves_on(members: Members) -> None:
    one = members.start(1)
    members.settle(1)
    other = members.made(1, log__dirs=members.folder / "other", zookeeper__session__timeout__ms=500)
    with pytest.raises(CannotJoin, match=r"broker\.id=1 is registered already"):
        other.broker.start()
    other.broker.stop()
    assert one.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest()).error_code == 0


def test_log_directories_of_another_cluster_are_refused(members: Members, zookeeper: ZooKeeperProcess) -> None:
    members.start(1)
    members.settle(1)
    members.stop(1)
    elsewhere = Members(zookeeper, members.folder)
    lost = elsewhere.made(1)
    with pytest.raises(CannotJoin, match="it holds no cluster"):
        lost.broker.start()
    lost.broker.stop()
    elsewhere.start(2)
    moved = elsewhere.made(1)
    with pytest.raises(CannotJoin, match="the log directories belong to cluster"):
        moved.broker.start()
    moved.broker.stop()
    elsewhere.close()


def test_rubbish_in_the_nodes_of_a_running_cluster_stops_nothing_else(members: Members) -> None:
    members.start_all(1, 2)
    assert members.create("t", 2, 2, retention__ms="99000").error_code == 0
    assert members.create("bad", 1, 2).error_code == 0
    rubbish = b'{"\xff'
    members.store.set(paths.topic_config_path("bad"), rubbish)
    members.store.create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change("topics/bad"), sequential=True)
    members.store.create(paths.CONFIG_CHANGE_PREFIX, rubbish, sequential=True)
    members.store.create(paths.broker_config_path("2"), rubbish)
    members.store.create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change("brokers/2"), sequential=True)
    members.store.create(paths.topic_path("rubbish"), rubbish)
    members.store.create(paths.topic_path("a name that cannot be"), paths.encode_topic(one_partition(1)))
    members.store.create(f"{paths.BROKER_IDS}/\u00b2", rubbish)
    members.store.create(paths.broker_path(9), rubbish, ephemeral=True)
    members.store.create(paths.LOG_DIR_EVENT_PREFIX, rubbish, sequential=True)
    members.store.create(paths.ISR_CHANGE_PREFIX, rubbish, sequential=True)
    members.store.create(paths.REASSIGN_PARTITIONS, rubbish)
    members.store.create(paths.PREFERRED_REPLICA_ELECTION, rubbish)
    members.store.set(paths.FEATURE, rubbish)
    members.store.set(paths.PRODUCER_ID_BLOCK, rubbish)

    assert members.create("later", 1, 2).error_code == 0
    await_that(lambda: members.leader_of("later", 0) is not None)
    assert not members.cluster(1).image.topics["bad"].configs_given
    members.stop(1)
    members.settle(2)
    await_that(lambda: members.cluster(2).is_controller)
    for name in ("t", "bad", "later"):
        await_that(lambda name=name: members.cluster(2).image.topics[name].partitions[0].leader == 2)
        members.running[2].append(name, 0, [b"a"])
    members.store.set(paths.FEATURE, paths.encode_feature())
    members.start(1)
    members.settle(1, 2)
    for name in ("t", "bad", "later"):
        await_that(lambda name=name: members.leader_of(name, 0) is not None)
    members.store.set(paths.topic_config_path("bad"), paths.encode_config({"retention.ms": "77000"}))
    await_that(lambda: all(each.log_of("bad", 0).options.retention_ms == 77_000 for each in members.running.values()))


def one_partition(node_id: int) -> paths.TopicAssignment:
    return paths.TopicAssignment(UUID(int=77), {0: (node_id,)}, {}, {})


def test_requests_of_the_controller_from_anybody_cannot_leave_the_log_directories(members: Members) -> None:
    broker = members.start(1)
    members.settle(1)
    await_that(lambda: members.cluster(1).is_controller)
    members.create("t", 1, 1)
    R = M.LeaderAndIsrRequest

    def told(topic: str, *, epoch: int, **fields: Any) -> list[int]:
        state = R.LeaderAndIsrPartitionState(leader=1, leader_epoch=9, isr=[1], replicas=[1], is_new=True, **fields)
        named = R.LeaderAndIsrTopicState(topic_name=topic, topic_id=bytes(16), partition_states=[state])
        answer = broker.call(
            ApiKey.LEADER_AND_ISR, 7, R(controller_id=5, controller_epoch=epoch, broker_epoch=-1, topic_states=[named])
        )
        return [answer.error_code, *(each.error_code for topic in answer.topics for each in topic.partition_errors)]

    before = sorted(path.name for path in members.folder.rglob("*"))
    assert told("t", epoch=0) == [11, 11]
    for name in ("../../outside", "..", "a/b", "x" * 300, ""):
        assert told(name, epoch=1) == [0, 17]
    assert told("t", epoch=1, partition_index=-1) == [0, 17]
    assert sorted(path.name for path in members.folder.rglob("*")) == before
    broker.append("t", 0, [b"a"])


@pytest.mark.parametrize("takes_records", [False, True])
def test_a_leader_epoch_that_anybody_makes_up_costs_one_replica_until_its_broker_starts_again(
    members: Members, takes_records: bool
) -> None:
    """A follower is told that it leads. As in Kafka, the controller's own roles are too old for it from then on.

    What the true leader acknowledges is not lost. If the false one has taken records, its log is to be removed: the
    leader knows no end of an epoch that is higher than its own, in Kafka too.
    """
    for node_id in (1, 2):
        members.start(node_id, replica__lag__time__max__ms=2_000)
    members.settle(1, 2)
    await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2)))
    assert members.create("t", 1, 2).error_code == 0
    await_that(lambda: members.leader_of("t", 0) is not None)
    leader = members.leader_of("t", 0)
    assert leader is not None
    leader.append("t", 0, [b"a", b"b"])
    leader_id = 1 if leader is members.running[1] else 2
    false_id = 3 - leader_id
    false = members.running[false_id]
    R = M.LeaderAndIsrRequest
    state = R.LeaderAndIsrPartitionState(leader=false_id, leader_epoch=900, isr=[false_id], replicas=[1, 2])
    topic_id = members.cluster(false_id).image.topics["t"].topic_id.bytes
    topic = R.LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
    epoch = false.broker._home.partitions.controller_epoch
    request = R(controller_id=9, controller_epoch=epoch, broker_epoch=-1, topic_states=[topic])
    answer = false.call(ApiKey.LEADER_AND_ISR, 7, request)
    assert [each.error_code for topic in answer.topics for each in topic.partition_errors] == [0]
    assert false.log_of("t", 0).epochs[-1] == (900, 2)
    if takes_records:
        false.append("t", 0, [b"false"])
    leader.append("t", 0, [b"c"])
    at = TopicPartition("t", 0)
    await_that(lambda: members.cluster(false_id).image.partition(at).isr == (leader_id,))
    members.stop(false_id)
    if takes_records:
        shutil.rmtree(members.folder / str(false_id) / "t-0")
    members.start(false_id, replica__lag__time__max__ms=2_000)
    members.settle(1, 2)
    await_that(lambda: members.leader_of("t", 0) is leader)
    leader.append("t", 0, [b"d"])
    logs = [broker.log_of("t", 0) for broker in members.running.values()]
    assert [log.log_end_offset for log in logs] == [4, 4]
    assert logs[0].read(0, 1 << 20, to_log_end=True) == logs[1].read(0, 1 << 20, to_log_end=True)
    assert logs[0].epochs == logs[1].epochs


def test_offsets_of_before_kafka_0_9_are_one_for_all_members_and_never_expire(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[str] = []
    monkeypatch.setattr(ConsumerOffsets, "expire", lambda self: expired.append("zookeeper"))
    expire = GroupOffsets.expire
    monkeypatch.setattr(GroupOffsets, "expire", lambda self: (expired.append("topic"), expire(self))[1])
    for node_id in (1, 2):
        members.start(node_id, offsets__retention__check__interval__ms=20)
    members.settle(1, 2)
    await_that(lambda: any(members.cluster(each).is_controller for each in (1, 2)))
    members.create("t", 1, 2)
    await_that(lambda: members.leader_of("t", 0) is not None)
    C, F = M.OffsetCommitRequest, M.OffsetFetchRequest
    part = C.OffsetCommitRequestPartition(partition_index=0, committed_offset=17)
    commit = C(group_id="g", topics=[C.OffsetCommitRequestTopic(name="t", partitions=[part])])
    answer = members.running[1].call(ApiKey.OFFSET_COMMIT, 0, commit)
    assert answer.topics[0].partitions[0].error_code == 0
    node = paths.consumer_offset_path("g", "t", 0)
    assert members.store.get(node)[0] == b"17"
    fetch = F(group_id="g", topics=[F.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])

    def fetched(node_id: int) -> tuple[int, int]:
        (found,) = members.running[node_id].call(ApiKey.OFFSET_FETCH, 0, fetch).topics[0].partitions
        return found.committed_offset, found.error_code

    assert fetched(2) == (17, 0)
    members.store.set(node, b"rubbish")
    assert fetched(2) == (-1, -1)
    members.store.set(node, b"18")
    assert fetched(1) == (18, 0)
    find = M.FindCoordinatorRequest(key="g")

    def coordinators() -> set[int]:
        answers = [members.running[each].call(ApiKey.FIND_COORDINATOR, 1, find) for each in members.running]
        return {answer.node_id if answer.error_code == 0 else -1 for answer in answers}

    await_that(lambda: coordinators() in ({1}, {2}))
    (first,) = coordinators()
    await_that(lambda: expired.count("topic") >= 3)
    assert "zookeeper" not in expired, "others commit there unseen"
    members.stop(first)
    await_that(lambda: coordinators() == {3 - first})
    assert fetched(3 - first) == (18, 0)


def test_quotas_that_are_not_enforced_are_told_when_they_are_set_and_when_a_member_joins(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    def count() -> int:
        return caplog.text.count("the cluster has client quotas (/config/users), which kbroker does not enforce yet")

    members.start(1)
    members.store.create("/config/users/u", paths.encode_config({"producer_byte_rate": "1024"}))
    members.store.create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change("users/u"), sequential=True)
    await_that(lambda: count() == 1)
    members.start(2)
    assert count() == 2


def test_an_id_is_generated_and_kept(members: Members) -> None:
    broker = members.start(-1)
    assert broker.broker.node_id == 1001
    members.running.pop(-1).__exit__(None, None, None)
    again = members.start(-1)
    assert again.broker.node_id == 1001


def test_a_broker_that_was_alone_is_carried_into_a_cluster_and_back(members: Members) -> None:
    data = members.folder / "1"

    def alone() -> WholeBroker:
        return WholeBroker(members.folder, {"broker.id": 1, "log.dirs": data})

    with alone() as broker:
        broker.create_topic("t", 2)
        broker.append("t", 1, [b"a", b"b"])
        cluster_id = broker.broker._cluster.cluster_id
        topic_id = broker.broker._cluster.image.topics["t"].topic_id
    refused_as_a_member(members, 1)

    transfer = ["--zookeeper", members.address, "--data", str(data)]
    assert main(["cluster", "export", *transfer, "--dry-run"]) == 0
    refused_as_a_member(members, 1)
    assert main(["cluster", "export", *transfer]) == 0
    refused_alone(alone())
    assert main(["cluster", "export", *transfer]) == 1, "the store is aside"
    members.start(1)
    members.settle(1)
    await_that(lambda: "t" in members.cluster(1).image.topics)
    assert members.cluster(1).cluster_id == cluster_id
    assert members.cluster(1).image.topics["t"].topic_id == topic_id
    log = members.running[1].log_of("t", 1)
    await_that(lambda: log.state.role != "stopped")
    assert log.log_end_offset == 2
    members.running[1].append("t", 1, [b"c"])
    assert members.create("made.there", 1, 1).error_code == 0
    members.stop(1)

    refused_alone(alone())
    assert main(["cluster", "import", *transfer]) == 0
    at = TopicPartition("t", 1)
    with alone() as broker:
        cluster = broker.broker._cluster
        assert set(cluster.image.topics) == {"t", "made.there"}
        assert broker.log_of("t", 1).log_end_offset == 3
        broker.append("t", 1, [b"d"])
        cluster.add_partitions("t", 3)
        cluster.set_topic_configs("t", lambda _: {"retention.ms": "-1"})
        broker.broker._consumer_offsets.commit("g", {at: 4})
        epoch = cluster.image.topics["t"].partitions[1].leader_epoch
    refused_as_a_member(members, 1)
    tree_epoch, _ = members.store.get(paths.CONTROLLER_EPOCH)
    members.store.set(paths.CONTROLLER_EPOCH, b"50")
    refused_as_a_member(members, 1)  # also if another broker has been a controller there since
    members.store.set(paths.CONTROLLER_EPOCH, tree_epoch)

    assert main(["cluster", "export", *transfer]) == 0
    members.start(1)
    members.settle(1)
    await_that(lambda: "t" in members.cluster(1).image.topics)
    topic = members.cluster(1).image.topics["t"]
    assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "-1"})
    assert topic.partitions[1].leader_epoch >= epoch
    assert ConsumerOffsets(members.store).fetch("g", at) == 4


def refused_as_a_member(members: Members, node_id: int) -> None:
    """Start a broker whose store nobody has carried into the cluster, and see that nothing is done."""
    store = members.folder / str(node_id) / "coordination.sqlite"
    before = store.read_bytes()
    broker = members.made(node_id)
    with pytest.raises(CannotJoin, match=rf"{store} has topics and settings of this broker alone.*cluster export"):
        broker.broker.start()
    broker.broker.stop()
    assert store.read_bytes() == before


def refused_alone(broker: WholeBroker) -> None:
    with pytest.raises(ConfigError, match=r"is that of a member of a cluster: .*kbroker cluster import"):
        broker.broker.start()
    broker.broker.stop()
