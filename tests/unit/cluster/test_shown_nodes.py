"""What a broker shows of its topics in a ZooKeeper, and whose nodes it does not touch; a second store of ours stands in
for the ZooKeeper."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.cluster import members
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.new_topics import NewTopic
from kbroker.cluster.shown_nodes import CannotRegister, changes, check_cluster
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.paths import PartitionRegistration, TopicAssignment
from kbroker.coordination.store import Delete, Operation, SetData, parent_of
from kbroker.model import TopicPartition
from tests.kit.kafka.zookeeper import nodes_of
from tests.kit.parts.cluster import NODE_ID, Cluster

OTHERS = (paths.CONSUMERS, paths.PRODUCER_ID_BLOCK, paths.DELETE_TOPICS, paths.CONFIG_CHANGES)


class Mirror:
    """A ZooKeeper, the broker's cluster, and what the one shows of the other."""

    def __init__(self, folder: Path, cluster: Cluster):
        self.store = EmbeddedStore(str(folder / "zookeeper"))
        self.zookeeper = self.store.connect()
        self.cluster = cluster
        self.shown: MetadataImage | None = None

    def join(self) -> None:
        members.ensure_layout(self.zookeeper)
        members.ensure_cluster_id(self.zookeeper, self.cluster.topics.cluster_id, tuple)

    def check(self) -> None:
        check_cluster(self.zookeeper, self.cluster.session, NODE_ID)

    def show(self) -> list[Operation]:
        image = self.cluster.topics.image
        operations = changes(self.cluster.session, self.zookeeper, image, self.shown)
        self.zookeeper.multi(operations)
        self.shown = image
        return operations

    def put(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        if parent_of(path) != "/" and self.zookeeper.exists(parent_of(path)) is None:
            self.put(parent_of(path))
        if self.zookeeper.exists(path) is None:
            self.zookeeper.create(path, data, ephemeral=ephemeral)
        else:
            self.zookeeper.set(path, data)

    def put_topic(self, name: str, *brokers: int) -> None:
        assignment = TopicAssignment(members.random_id(), {0: brokers}, {}, {})
        self.put(paths.topic_path(name), paths.encode_topic(assignment))
        self.put(paths.partition_state_path(name, 0))

    def assert_same(self) -> None:
        """Check that ZooKeeper shows what the store has, except what is alive and what is not shown."""

        def seen(nodes: dict[str, bytes]) -> dict[str, bytes]:
            return {path: data for path, data in nodes.items() if not path.startswith(OTHERS)}

        ours = {path: node.data for path, node in nodes_of(self.cluster.session).items() if not node.is_ephemeral}
        there = {path: node.data for path, node in nodes_of(self.zookeeper).items()}
        assert seen(there) == seen(ours)


@pytest.fixture
def mirror(tmp_path: Path, cluster: Cluster) -> Iterator[Mirror]:
    mirror = Mirror(tmp_path, cluster)
    yield mirror
    mirror.store.stop()


def test_whatever_happens_to_topics_is_shown_with_as_few_changes(mirror: Mirror) -> None:
    topics = mirror.cluster.topics
    mirror.join()
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: topics.create([NewTopic("a", 3, configs={"retention.ms": "5"}), NewTopic("a-b", 1)]),
        lambda: topics.add_partitions("a", 12),
        lambda: topics.set_topic_configs("a", lambda _topic: {"retention.ms": "6"}),
        lambda: topics.set_broker_configs("1", lambda _now: {"max.connections": "5"}),
        lambda: topics.set_broker_configs(paths.DEFAULT_ENTITY, lambda _now: {"max.connections": "7"}),
        lambda: topics.delete("a-b"),
        lambda: (topics.delete("a"), topics.create([NewTopic("a", 2)])),
        lambda: [topics.create([NewTopic(f"t{number}")]) for number in range(20)],
    ]
    for step in steps:
        step()
        mirror.show()
        mirror.assert_same()
        assert mirror.show() == []
        mirror.shown = None
        assert mirror.show() == []
    topics.create([NewTopic("one")])
    assert len(mirror.show()) == 3 + 2 * 2


def test_what_changed_while_nobody_looked_is_found(mirror: Mirror) -> None:
    topics = mirror.cluster.topics
    mirror.join()
    topics.create([NewTopic(name, 4) for name in ("kept", "gone", "again", "spoiled")])
    mirror.show()
    topics.delete("gone")
    topics.delete("again")
    topics.create([NewTopic("again", 2), NewTopic("new", 1)])
    mirror.zookeeper.set(paths.topic_path("spoiled"), b"no JSON")
    mirror.zookeeper.set(paths.partition_state_path("kept", 1), b"")
    mirror.zookeeper.delete(paths.topic_config_path("kept"))
    mirror.put(f"{paths.topic_path('gone')}/something/of/somebody")
    mirror.put("/config/brokers/7", b"x")
    mirror.shown = None
    mirror.show()
    mirror.assert_same()


def test_settings_that_nobody_has_given_are_left_as_they_are_there(mirror: Mirror) -> None:
    mirror.join()
    mirror.cluster.topics.create([NewTopic("found", 1)])
    mirror.put(paths.topic_config_path("found"), b"of Kafka")
    mirror.cluster.session.delete(paths.topic_config_path("found"))
    mirror.show()
    assert mirror.zookeeper.get(paths.topic_config_path("found"))[0] == b"of Kafka"


def test_a_partition_whose_directory_has_failed_is_shown_without_a_leader(mirror: Mirror) -> None:
    mirror.join()
    mirror.cluster.topics.create([NewTopic("t", 2)])
    mirror.show()
    mirror.cluster.topics.mark_failed([TopicPartition("t", 1)])
    (change,) = mirror.show()
    assert isinstance(change, SetData)
    path = paths.partition_state_path("t", 1)
    assert change.path == path
    state = paths.decode_partition_state(path, mirror.zookeeper.get(path)[0])
    assert state == PartitionRegistration(leader=-1, leader_epoch=0, isr=(NODE_ID,), controller_epoch=1)


def test_deletions_come_first_and_from_below(mirror: Mirror) -> None:
    mirror.join()
    mirror.cluster.topics.create([NewTopic("t", 2)])
    mirror.show()
    mirror.cluster.topics.delete("t")
    mirror.cluster.topics.create([NewTopic("u", 1)])
    operations = mirror.show()
    kinds = [isinstance(each, Delete) for each in operations]
    assert kinds == sorted(kinds, reverse=True)
    assert kinds.count(True) == 3 + 2 * 2


def test_an_empty_zookeeper_one_of_its_own_and_older_nodes_are_taken(mirror: Mirror) -> None:
    mirror.check()
    mirror.join()
    mirror.show()
    mirror.check()
    mirror.put(paths.CONTROLLER_EPOCH, b"0")
    mirror.put_topic("deleted-while-it-was-away", NODE_ID)
    mirror.put(paths.broker_path(NODE_ID), b"", ephemeral=True)
    mirror.check()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda m: m.put(paths.CLUSTER_ID, paths.encode_cluster_id(paths.encode_uuid(members.random_id()))),
            "another",
        ),
        (lambda m: m.put(paths.CONTROLLER_EPOCH, b"2"), "kbroker cluster import"),
        (lambda m: m.put_topic("theirs", 1, 2), "theirs.*kbroker cluster import"),
        (lambda m: m.put("/migration", b"{}"), "KRaft"),
        (lambda m: m.put(paths.broker_path(2), b"", ephemeral=True), "broker 2 is registered"),
    ],
)
def test_nodes_of_somebody_else_are_refused(mirror: Mirror, spoil: Callable[[Mirror], None], says: str) -> None:
    mirror.join()
    mirror.show()
    spoil(mirror)
    with pytest.raises(CannotRegister, match=says):
        mirror.check()


def test_topics_of_a_cluster_without_an_id_are_refused(mirror: Mirror) -> None:
    mirror.put(f"{paths.TOPICS}/old/0", b"1")
    with pytest.raises(CannotRegister, match="without an id"):
        mirror.check()


@pytest.mark.parametrize("seed", range(8))
def test_any_history_is_shown_in_the_end(mirror: Mirror, seed: int) -> None:
    chance = random.Random(seed)
    topics = mirror.cluster.topics
    mirror.join()
    for _ in range(60):
        name = f"t{chance.randrange(4)}"
        what = chance.randrange(6)
        topic = topics.image.topic(name)
        if topic is None:
            topics.create([NewTopic(name, chance.randrange(1, 5))])
        elif what == 0:
            topics.delete(name)
        elif what == 1:
            topics.add_partitions(name, len(topic.partitions) + chance.randrange(1, 3))
        elif what == 2:
            topics.set_topic_configs(name, lambda _topic: {"retention.ms": str(chance.randrange(9))})
        elif what == 3:
            mirror.show()
            mirror.assert_same()
        elif what == 4:
            mirror.shown = None
    mirror.show()
    mirror.assert_same()
