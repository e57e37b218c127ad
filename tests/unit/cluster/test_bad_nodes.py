"""Nodes that somebody has written rubbish into, or a newer release: one is passed over, and everything else goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.cluster import members
from kbroker.cluster.config_notifications import notification
from kbroker.cluster.controller import BrokerRefuses
from kbroker.cluster.controller_requests import (
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ListReassignments,
)
from kbroker.cluster.joining import CannotJoin, InterBrokerListeners
from kbroker.cluster.membership import RETRY_S, Membership, MembershipOptions
from kbroker.cluster.new_topics import TopicDefaults
from kbroker.cluster.shared_topics import SharedTopics
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore, store_path
from kbroker.coordination.store import Create, Delete, SetData, Store, StoreUnavailable
from kbroker.errors import ConfigError, ErrorCode
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.server.member import check_broker_config
from tests.kit.logs.home import ManualClock
from tests.kit.parts.control_cluster import ControlCluster

RUBBISH = b"\xff{"
ID = UUID(int=77)
R = M.UpdateMetadataRequest


# --- what a member reads ---------------------------------------------------------------------------------------------


class Watching:
    """A member's topics and its membership over one store, which a test writes into."""

    def __init__(self, folder: Path):
        self.embedded = EmbeddedStore(store_path(str(folder)))
        self.admin = self.embedded.connect()
        members.ensure_layout(self.admin)
        self.clock = ManualClock()
        self.updated: dict[str, Any] = {}
        self.stopped = ""
        self.registered_times = 0
        self.topics: SharedTopics | None = None

    def join(self, *, steps: bool = True) -> Membership:
        options = MembershipOptions("zk:1", 0.02, InterBrokerListeners("PLAINTEXT"), "9.9")
        self.membership = Membership(options, self.embedded.connect, self.clock, self)
        session = self.membership.connect(1, None)
        self.topics = self.made(session)
        self.membership.register([Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9001)], None)
        if steps:
            self.membership.step()
        return self.membership

    def made(self, session: Store) -> SharedTopics:
        topics = SharedTopics(
            session,
            1,
            "cluster",
            defaults=TopicDefaults(2, 1),
            internal_topics={},
            exact_internal_topics=(),
            ask=lambda request, answered: None,
            is_controller=lambda: False,
            is_deleting=lambda name: False,
            is_moving=lambda name: False,
            clock=self.clock,
            check_broker_config=check_broker_config,
        )
        topics.serve(self)
        return topics

    def tell(self, *names: str) -> None:
        """Be the controller: tell the member of topics."""
        assert self.topics is not None
        request = R(controller_id=2, controller_epoch=5)
        state = R.UpdateMetadataPartitionState(partition_index=0, leader=1, leader_epoch=0, isr=[1], replicas=[1])
        request.topic_states = [
            R.UpdateMetadataTopicState(topic_name=name, topic_id=ID.bytes, partition_states=[state]) for name in names
        ]
        for name in names:
            if self.admin.exists(paths.topic_path(name)) is None:
                self.admin.create(paths.topic_path(name))
        self.topics.update(request)

    def put(self, path: str, data: bytes) -> None:
        """Write a node, and the notification where it is one of configs."""
        write = SetData(path, data) if self.admin.exists(path) else Create(path, data)
        note = [notification(path.removeprefix("/config/"))] if path.startswith("/config/") else []
        self.admin.multi([write, *note])
        assert self.membership.woken.wait(30)
        self.membership.step()

    def end_session(self) -> None:
        """End the member's session. Return when the member knows: other events set `woken` too."""
        session = self.membership._session_or_fail()
        heard = threading.Event()
        session.on_end(heard.set)  # after the member's own
        self.embedded.expire(session.session_id)
        assert heard.wait(30)

    def topic(self, name: str) -> Any:
        assert self.topics is not None
        return self.topics.image.topics[name]

    # cluster.membership.Member, and cluster.shared_topics.MemberHost

    def session_ended(self) -> None:
        pass

    def registered(self, store: Store, broker_epoch: int) -> None:
        assert self.topics is not None
        self.registered_times += 1
        self.topics.registered(store, broker_epoch)

    def configs_changed(self, entity_paths: Any) -> None:
        assert self.topics is not None
        self.topics.configs_changed(entity_paths)

    def group_configs_changed(self) -> None:
        assert self.topics is not None
        self.topics.group_configs_changed()

    def brokers_changed(self, kbroker_versions: Any) -> None:
        assert self.topics is not None
        self.updated["brokers"] = dict(kbroker_versions)
        self.topics.brokers_changed(kbroker_versions)

    def must_stop(self, reason: str) -> None:
        self.stopped = reason

    def topics_changed(self, changed: Any, removed: Any) -> None:
        pass

    def update_topic(self, topic: Any) -> None:
        self.updated[topic.name] = dict(topic.configs)

    def update_broker_configs(self, configs: Any) -> None:
        if configs.get("log.retention.ms") == "7":
            raise ConfigError("these do not go together")
        self.updated["configs"] = dict(configs)

    def update_group_configs(self, group_id: str) -> None:
        self.updated["group"] = group_id


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    made = Watching(tmp_path)
    yield made
    made.embedded.stop()


def test_a_topics_configs_that_cannot_be_read_keep_no_other_topic_from_being_served(
    watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    watching.join()
    watching.admin.create(paths.topic_config_path("bad"), RUBBISH)
    watching.admin.create(paths.topic_config_path("good"), paths.encode_config({"retention.ms": "5"}))
    watching.tell("bad", "good")
    assert (watching.topic("good").configs, watching.topic("good").configs_given) == ({"retention.ms": "5"}, True)
    assert (watching.topic("bad").configs, watching.topic("bad").configs_given) == ({}, False), "deletes nothing"
    assert watching.topics is not None
    assert watching.topics.step() == watching.topics.step() == 1.0
    assert sum("/config/topics/bad" in each.message for each in caplog.records) == 1, "told once"
    watching.admin.set(paths.topic_config_path("bad"), paths.encode_config({"retention.ms": "6"}))
    assert watching.topics.step() is None, "read again without being told"
    assert (watching.topic("bad").configs, watching.topic("bad").configs_given) == ({"retention.ms": "6"}, True)


def test_configs_that_cannot_be_read_are_replaced_by_whoever_alters_them(watching: Watching) -> None:
    watching.join()
    topics = watching.topics
    assert topics is not None
    for path in (paths.topic_config_path("t"), paths.broker_config_path("1")):
        watching.admin.create(path, RUBBISH)
    watching.admin.create(paths.GROUP_CONFIGS)
    watching.admin.create(paths.group_config_path("g"), RUBBISH)
    watching.tell("t")
    topics.set_topic_configs("t", lambda topic: {**topic.configs, "retention.ms": "5"})
    assert watching.topic("t").configs == {"retention.ms": "5"}
    assert watching.topic("t").configs_given
    topics.set_broker_configs("1", lambda configs: {**configs, "log.retention.ms": "6"})
    assert topics.dynamic_broker_configs() == {"log.retention.ms": "6"}
    topics.set_group_configs("g", lambda configs: {**configs, "consumer.session.timeout.ms": "50000"})
    assert topics.image.group_configs["g"] == {"consumer.session.timeout.ms": "50000"}


def test_a_value_of_a_newer_release_deletes_nothing_and_leaves_the_other_configs(watching: Watching) -> None:
    watching.join()
    watching.tell("t")
    newer = {"cleanup.policy": "compact,tier", "retention.ms": "5", "some.later.config": "x"}
    watching.put(paths.topic_config_path("t"), paths.encode_config(newer))
    assert watching.topic("t").configs == {"retention.ms": "5", "some.later.config": "x"}
    assert not watching.topic("t").configs_given
    watching.put(paths.topic_config_path("t"), paths.encode_config({"cleanup.policy": "compact"}))
    assert watching.updated["t"] == {"cleanup.policy": "compact"}
    assert watching.topic("t").configs_given


def test_configs_of_brokers_that_cannot_be_read_stay_as_they_were(watching: Watching) -> None:
    watching.join()
    watching.put(paths.broker_config_path("1"), paths.encode_config({"log.retention.ms": "100"}))
    assert watching.updated["configs"] == {"log.retention.ms": "100"}
    watching.put(paths.broker_config_path(paths.DEFAULT_ENTITY), RUBBISH)
    watching.put(paths.broker_config_path("1"), RUBBISH)
    watching.put(
        paths.broker_config_path("2"), paths.encode_config({"log.retention.ms": "8"})
    )  # after rubbish, the next change is noticed
    assert watching.topics is not None
    assert watching.topics.dynamic_broker_configs() == {"log.retention.ms": "100"}
    assert watching.topics.image.broker_configs["2"] == {"log.retention.ms": "8"}
    watching.put(
        paths.broker_config_path("1"), paths.encode_config({"log.retention.ms": "x", "log.cleaner.threads": "2"})
    )
    assert watching.updated["configs"] == {"log.cleaner.threads": "2"}


def test_dynamic_configs_that_contradict_each_other_are_not_applied_and_others_are_heard_of(watching: Watching) -> None:
    member = watching.join()
    watching.put(paths.broker_config_path("1"), paths.encode_config({"log.retention.ms": "7"}))
    assert member.step() != RETRY_S
    watching.tell("t")
    watching.put(paths.topic_config_path("t"), paths.encode_config({"retention.ms": "5"}))
    assert watching.updated == {"t": {"retention.ms": "5"}}


def test_configs_of_groups_that_cannot_be_read_are_passed_over(watching: Watching) -> None:
    watching.join()
    for name, data in (
        ("%FF", b"{}"),
        ("g", RUBBISH),
        ("h", paths.encode_config({"consumer.session.timeout.ms": "x"})),
    ):
        if watching.admin.exists(paths.GROUP_CONFIGS) is None:
            watching.admin.create(paths.GROUP_CONFIGS)
        watching.admin.create(f"{paths.GROUP_CONFIGS}/{name}", data)
    good = paths.encode_config({"consumer.session.timeout.ms": "50000"})
    watching.admin.create(paths.group_config_path("i"), good)
    assert watching.topics is not None
    watching.topics.group_configs_changed()
    assert watching.topics.image.group_configs.get("i") == {"consumer.session.timeout.ms": "50000"}
    assert "g" not in watching.topics.image.group_configs


def test_a_start_passes_over_topics_that_cannot_be_read(watching: Watching) -> None:
    assignment = paths.TopicAssignment(ID, {0: (1,)}, {}, {})
    watching.admin.create(paths.topic_path("good"), paths.encode_topic(assignment))
    watching.admin.create(paths.topic_path("bad"), RUBBISH)
    watching.admin.create(paths.topic_path("huge"), b'{"version":1,"partitions":{"2147483647":[1]}}')
    watching.join()
    assert watching.topics is not None
    assert watching.topics.assigned.keys() == {"good"}


def test_a_broker_with_rubbish_in_its_configs_comes_back_after_its_session_without_registering_twice(
    watching: Watching,
) -> None:
    member = watching.join()
    watching.tell("t")
    watching.put(paths.topic_config_path("t"), RUBBISH)
    watching.put(paths.broker_config_path("1"), RUBBISH)
    watching.end_session()
    assert member.step() != RETRY_S
    assert watching.registered_times == 2


def test_a_change_of_configs_that_could_not_be_read_is_read_later(watching: Watching) -> None:
    member = watching.join()
    watching.tell("t")
    topics = watching.topics
    assert topics is not None
    session = member._session_or_fail()
    get_many = session.get_many

    def away(asked: Any, watcher: Any = None) -> Any:
        if any(each.startswith(paths.TOPIC_CONFIGS) for each in asked):
            raise StoreUnavailable("away")
        return get_many(asked, watcher)

    session.get_many = away  # type: ignore[method-assign]
    watching.put(paths.topic_config_path("t"), paths.encode_config({"retention.ms": "5"}))
    assert watching.topic("t").configs == {}
    session.get_many = get_many  # type: ignore[method-assign]
    member.step()
    assert watching.topic("t").configs == {"retention.ms": "5"}


@pytest.mark.parametrize("data", [RUBBISH, b"{}", b'{"version":99}'])
def test_a_config_change_that_cannot_be_read_is_skipped_and_the_next_is_carried_out(
    watching: Watching, data: bytes
) -> None:
    watching.join()
    watching.tell("t")
    watching.admin.create(paths.CONFIG_CHANGE_PREFIX, data, sequential=True)
    watching.put(paths.topic_config_path("t"), paths.encode_config({"retention.ms": "5"}))
    assert watching.topic("t").configs == {"retention.ms": "5"}


@pytest.mark.parametrize("data", [RUBBISH, b"{}", b'{"version":3,"status":"later","features":[]}'])
def test_features_that_cannot_be_read_stop_no_member_and_refuse_a_new_one(watching: Watching, data: bytes) -> None:
    member = watching.join()
    watching.put(paths.FEATURE, data)
    assert member.step() != RETRY_S
    watching.tell("t")
    watching.put(paths.topic_config_path("t"), paths.encode_config({"retention.ms": "5"}))
    assert watching.topic("t").configs == {"retention.ms": "5"}, "what comes after is heard of"
    assert watching.stopped == ""
    member.leave()
    with pytest.raises(CannotJoin, match=r"zookeeper\.connect=zk:1: .*node /feature"):
        watching.join()


def test_a_member_comes_back_while_the_cluster_is_on_its_way_to_kraft_and_not_once_kraft_has_it(
    watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """/migration is there as soon as a KRaft controller has started. A broker that is new is refused then already."""
    member = watching.join()
    watching.admin.create(paths.MIGRATION, b'{"version":0}')
    watching.end_session()
    assert member.step() != RETRY_S
    assert watching.registered_times == 2
    watching.admin.create(paths.CONTROLLER, b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":7}')
    watching.end_session()
    assert member.step() == member.step() == RETRY_S
    assert watching.registered_times == 2
    assert caplog.text.count("the broker serves on: the cluster is on its way to KRaft") == 1
    watching.admin.multi([Delete(paths.CONTROLLER)])
    assert member.step() != RETRY_S
    assert (watching.registered_times, watching.stopped) == (3, "")
    member.leave()
    with pytest.raises(CannotJoin, match="on its way to KRaft"):
        watching.join()


@pytest.mark.parametrize(
    ("path", "data"), [(paths.CLUSTER_ID, RUBBISH), (paths.CLUSTER_ID, b"{}"), (paths.CONTROLLER, b"nobody")]
)
def test_a_tree_that_cannot_be_read_is_not_joined_and_the_line_says_which_node(
    watching: Watching, path: str, data: bytes
) -> None:
    if path == paths.CLUSTER_ID:
        watching.admin.create("/cluster")
    watching.admin.create(path, data)
    with pytest.raises(CannotJoin, match=rf"zookeeper\.connect=zk:1: .*node {path}: ") as refused:
        watching.join()
    assert "\n" not in str(refused.value)


def test_registrations_that_cannot_be_read_and_names_that_are_no_ids_are_no_brokers(watching: Watching) -> None:
    """Rubbish is no Kafka, beside which there would be no consumer groups (KIP-848)."""
    member = watching.join()
    assert watching.topics is not None
    kinds: list[bool] = []
    watching.topics.on_kind_change(lambda: kinds.append(True))
    for name in ("\u00b2", "x", "99999999999"):
        watching.admin.create(f"{paths.BROKER_IDS}/{name}", RUBBISH)
    watching.admin.create(paths.broker_path(5), RUBBISH)
    assert member.woken.wait(30)
    assert member.step() != RETRY_S
    assert watching.topics.only_kbrokers
    assert kinds == [], "groups are not told to look again"
    assert watching.updated == {}


def test_a_member_knows_at_its_registration_that_a_kafka_is_there(watching: Watching) -> None:
    kafka = paths.BrokerRegistration((Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9002),), None, 0)
    watching.admin.create(paths.broker_path(2), paths.encode_broker(kafka))
    watching.join(steps=False)
    assert watching.topics is not None
    assert not watching.topics.only_kbrokers


# --- what the controller reads ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> ControlCluster:
    made = ControlCluster()
    for node_id in (1, 2, 3, 4):
        made.start(node_id)
        made.settle()
    return made


def goes_on(cluster: ControlCluster) -> None:
    """Assert that topics are made, and that another controller takes over and elects leaders."""
    cluster.create("later", tuple(each.node_id for each in cluster.live()))
    cluster.lose(cluster.active.node_id)
    assert cluster.leader("later") in {each.node_id for each in cluster.live()}
    cluster.create("last", (cluster.active.node_id,))


NODES = [
    (paths.broker_path(9), b'{"version":5,"endpoints":["PLAINTEXT://h:1"],"rack":5}'),
    (paths.broker_path(9), b'{"version":5,"endpoints":["PLAINTEXT://h:1"],"rack":"\\ud800"}'),
    (paths.broker_path(9), b'{"version":5,"endpoints":["PLAINTEXT://h:99999"],"rack":null}'),
    (paths.broker_path(9), b'{"version":1,"host":null,"port":1}'),
    (f"{paths.BROKER_IDS}/99999999999", b'{"version":5,"endpoints":["PLAINTEXT://h:1"]}'),
    (f"{paths.BROKER_IDS}/\u0663", b'{"version":5,"endpoints":["PLAINTEXT://h:1"]}'),
    (paths.topic_path("bad"), b'{"version":3,"partitions":{"0":[99999999999]}}'),
    (paths.topic_path("bad"), b'{"version":3,"partitions":{"-1":[1]}}'),
    (paths.topic_path("bad"), b'{"version":3,"partitions":{"2147483647":[1]}}'),
    (paths.topic_path("bad"), b'{"version":3,"partitions":{"0":[]}}'),
    (paths.topic_path("bad"), b'{"version":3,"partitions":{"0":[1e999]}}'),
    (paths.topic_path("a b"), b'{"version":3,"partitions":{"0":[3]}}'),
    (paths.topic_path("x" * 40_000), b'{"version":3,"partitions":{"0":[3]}}'),
    (paths.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[-5]}]}'),
    (paths.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1e999]}]}'),
    (paths.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[{"topic":"none","partition":0,"replicas":[1]}]}'),
    (paths.PREFERRED_REPLICA_ELECTION, RUBBISH),
    (paths.PREFERRED_REPLICA_ELECTION, b'{"version":1,"partitions":[{"topic":"none","partition":-1}]}'),
    (paths.delete_topic_path("none"), RUBBISH),
    (f"{paths.ISR_CHANGE_PREFIX}0000000007", RUBBISH),
    (f"{paths.LOG_DIR_EVENT_PREFIX}0000000007", b'{"version":1,"broker":1e999}'),
    (f"{paths.LOG_DIR_EVENT_PREFIX}0000000007", b'{"version":1,"broker":55,"event":7}'),
    (paths.topic_config_path("t"), RUBBISH),
    (paths.PRODUCER_ID_BLOCK, RUBBISH),
    (paths.FEATURE, RUBBISH),
]  # fmt: skip


@pytest.mark.parametrize(("path", "data"), NODES, ids=lambda each: repr(each)[:60])
def test_the_controller_passes_over_a_node_that_cannot_be_read(
    cluster: ControlCluster, path: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    cluster.create("t", (2, 3))
    cluster.tree.put(path, data)
    cluster.settle()
    cluster.lose(2)
    assert cluster.leader("t") == 3
    goes_on(cluster)
    assert cluster.ask(ListReassignments(None)) == {}
    assert not any(each.exc_info for each in caplog.records), "lines, no stacks"


@pytest.mark.parametrize("prefix", [paths.ISR_CHANGE_PREFIX, paths.LOG_DIR_EVENT_PREFIX])
def test_notifications_that_cannot_be_read_are_removed_with_the_others(cluster: ControlCluster, prefix: str) -> None:
    cluster.tree.put(f"{prefix}0000000007", RUBBISH)
    cluster.settle()
    assert cluster.node(f"{prefix}0000000007") is None


def test_a_partition_whose_state_cannot_be_read_has_no_leader_and_the_others_have(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3), (2, 3))
    cluster.tree.put(paths.partition_state_path("t", 0), b'{"leader":1e999}')
    cluster.lose(2)
    assert cluster.leader("t", 1) == 3
    assert cluster.node(paths.partition_state_path("t", 0)) == b'{"leader":1e999}', "it is left for whoever mends it"


def test_a_state_of_a_later_controller_is_left_alone(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3), (2, 3))
    future = paths.encode_partition_state(paths.PartitionRegistration(2, 5, (2, 3), 1000))
    cluster.tree.put(paths.partition_state_path("t", 0), future)
    cluster.lose(2)
    assert cluster.node(paths.partition_state_path("t", 0)) == future
    assert cluster.leader("t", 1) == 3


def test_a_block_of_producer_ids_that_cannot_be_is_not_continued(cluster: ControlCluster) -> None:
    for data in (RUBBISH, b'{"version":1,"broker":1,"block_start":"-9","block_end":"-5"}'):
        cluster.tree.put(paths.PRODUCER_ID_BLOCK, data)
        request = M.AllocateProducerIdsRequest(broker_id=2, broker_epoch=cluster.members[2].told.epoch)
        answer = cluster.ask(AllocateProducerIds(request))
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert cluster.node(paths.PRODUCER_ID_BLOCK) == data


@pytest.mark.parametrize("data", [RUBBISH, b"-1", b"2147483646", b"2147483647", b"99999999999"])
def test_an_epoch_of_controllers_that_cannot_be_read_is_told_once_and_waited_for(
    cluster: ControlCluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t", (2, 3))
    epoch = cluster.node(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    cluster.tree.put(paths.CONTROLLER_EPOCH, data)
    cluster.lose(cluster.active.node_id)
    for _ in range(5):
        cluster.clock.now_ms += 1_000
        cluster.settle()
    assert not any(each.controller.is_active for each in cluster.live())
    assert cluster.node(paths.CONTROLLER_EPOCH) == data, "it is left for whoever mends it"
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(told) == len(cluster.live())
    assert all(paths.CONTROLLER_EPOCH in each for each in told)
    cluster.tree.put(paths.CONTROLLER_EPOCH, epoch)
    cluster.clock.now_ms += 1_000
    cluster.settle()
    goes_on(cluster)


def test_a_controller_that_cannot_be_read_is_waited_for_until_somebody_removes_it(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.stop(cluster.active.node_id)
    cluster.tree.put(paths.CONTROLLER, b"nobody")
    cluster.settle()
    assert not any(each.controller.is_active for each in cluster.live())
    cluster.tree.connect().multi([Delete(paths.CONTROLLER)])
    cluster.clock.now_ms += 1_000
    cluster.settle()
    goes_on(cluster)


@pytest.mark.parametrize("controller_id", [3000, 2, 3])
def test_a_kraft_controller_is_neither_deposed_nor_stood_against_until_its_node_is_removed(
    cluster: ControlCluster, controller_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator removes the node, which no session holds, to go back to ZooKeeper. Kafka's brokers wait for it too.

    The id may be that of a broker, whose process is gone, or that looks at the node.
    """
    cluster.create("t", (2, 3))
    cluster.tree.put(paths.MIGRATION, b'{"version":0,"kraft_controller_id":3000,"kraft_controller_epoch":7}')
    cluster.settle()
    cluster.lose(cluster.active.node_id)
    assert cluster.leader("t") in (2, 3) and len(cluster.live()) == 3, "another one is elected as long as KRaft waits"
    node = b'{"version":2,"brokerid":%d,"timestamp":"1","kraftControllerEpoch":7}' % controller_id
    epoch = cluster.node(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    taken = [SetData(paths.CONTROLLER_EPOCH, b"%d" % (int(epoch) + 1)), Create(paths.CONTROLLER, node)]
    cluster.tree.connect().multi([Delete(paths.CONTROLLER), *taken])
    cluster.settle()
    cluster.start(5)
    cluster.kill(2, seen=True)
    for member in cluster.live():
        member.controller.post(BrokerRefuses(controller_id))
    cluster.settle()
    assert cluster.node(paths.CONTROLLER) == node
    assert not any(each.controller.is_active for each in cluster.live())
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert [f"KRaft controller {controller_id} has taken the cluster over" in each for each in told] == [True] * 4
    cluster.tree.connect().multi([Delete(paths.CONTROLLER)])
    cluster.settle()
    goes_on(cluster)


def test_a_reassignment_of_a_tool_that_cannot_be_is_passed_over_and_a_later_one_is_done(
    cluster: ControlCluster,
) -> None:
    cluster.create("t", (2, 3))
    cluster.tree.put(paths.REASSIGN_PARTITIONS, RUBBISH)
    cluster.settle()
    cluster.tree.connect().multi([Delete(paths.REASSIGN_PARTITIONS)])
    cluster.settle()
    wanted = paths.encode_reassignment({TopicPartition("t", 0): (3,)})
    cluster.tree.put(paths.REASSIGN_PARTITIONS, wanted)
    cluster.settle()
    assert cluster.assignment("t").replicas == {0: (3,)}


def alter_isr(cluster: ControlCluster, leader: int, isr: list[int], partition_epoch: int) -> int:
    """Ask for an ISR of t-0 in leader epoch 0, and return the error code."""
    R = M.AlterPartitionRequest
    one = R.PartitionData(partition_index=0, leader_epoch=0, new_isr=isr, partition_epoch=partition_epoch)
    topic = R.TopicData(topic_id=cluster.assignment("t").topic_id.bytes, partitions=[one])
    request = R(broker_id=leader, broker_epoch=cluster.members[leader].told.epoch, topics=[topic])
    answer = cluster.ask(AlterPartition(request, 2))
    code: int = answer.topics[0].partitions[0].error_code
    return code


HIGHEST = 2**31 - 1


@pytest.mark.parametrize("epoch", [HIGHEST - 3, HIGHEST - 1, HIGHEST, HIGHEST + 1, 2**63, -1])
def test_leader_epochs_end_below_two_to_the_31_and_other_partitions_go_on(
    cluster: ControlCluster, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t", (2, 3, 4))
    cluster.create("other", (2, 3, 4))
    path = paths.partition_state_path("t", 0)
    garbage = paths.PartitionRegistration(2, epoch, (2, 3, 4), 1)
    cluster.tree.put(path, paths.encode_partition_state(garbage))
    caplog.set_level("INFO")
    cluster.lose(1)
    for broker_id in (2, 3):
        cluster.lose(broker_id)
    assert cluster.active.node_id == 4 and cluster.leader("other") == 4
    assert cluster.ask(AlterReassignments({TopicPartition("other", 0): (4,)})) is not None
    data = cluster.node(path)
    assert data is not None
    if 0 <= epoch < HIGHEST - 1:
        assert paths.decode_partition_state(path, data).leader_epoch == HIGHEST - 1, "what is written can be read"
    else:
        assert data == paths.encode_partition_state(garbage), "it is left as it is"
    problem = "no higher leader epoch can follow" if 0 <= epoch < HIGHEST else "not from 0 to"
    lines = [record.getMessage() for record in caplog.records if problem in record.getMessage()]
    assert lines and all("t" in line for line in lines)
    assert "failed at" not in caplog.text and "Traceback" not in caplog.text


def test_a_state_that_was_written_as_often_as_it_can_be_is_left_as_it_is(
    cluster: ControlCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t", (2, 3, 4))
    cluster.create("other", (2, 3, 4))
    path = paths.partition_state_path("t", 0)
    cluster.tree.model.nodes[path].version = HIGHEST
    caplog.set_level("INFO")
    cluster.lose(1)
    before = cluster.node(path)
    assert alter_isr(cluster, 2, [2, 3], HIGHEST) == ErrorCode.INVALID_UPDATE_VERSION
    cluster.lose(2)
    assert cluster.leader("other") == 3
    assert cluster.node(path) == before and cluster.tree.model.nodes[path].version == HIGHEST
    assert "its node was written as often as it can be" in caplog.text
    assert "failed at" not in caplog.text and "Traceback" not in caplog.text
