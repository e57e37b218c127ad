"""What is carried from a ZooKeeper into a store and back, and what is refused; two stores of ours stand in for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.cluster import members
from kbroker.cluster.carried_nodes import CannotCarry, read_carried
from kbroker.cluster.loading import load_image
from kbroker.cluster.transfer import Plan, TransferOptions, plan_export, plan_import
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.paths import PartitionRegistration, TopicAssignment
from kbroker.coordination.store import Create, Delete, SetData, parent_of
from kbroker.model import NO_UUID, TopicPartition

ID = UUID(int=77)
MINE = TransferOptions(3)
CLUSTER = "vPeOCWypqUOSepEvx0cbog"
Found = dict[TopicPartition, UUID | None]


class Sides:
    """A ZooKeeper and a store, both empty at first, and the logs on disk."""

    def __init__(self, folder: Path):
        self.stores = [EmbeddedStore(str(folder / name)) for name in ("zookeeper", "store")]
        self.zookeeper, self.store = (store.connect() for store in self.stores)
        self.found: Found = {}

    def put(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Into ZooKeeper, with the nodes above it."""
        above = parent_of(path)
        if above != "/" and self.zookeeper.exists(above) is None:
            self.put(above)
        if self.zookeeper.exists(path) is None:
            self.zookeeper.create(path, data, ephemeral=ephemeral)
        else:
            self.zookeeper.set(path, data)

    def put_cluster(self, epoch: int = 5) -> None:
        self.put(paths.CLUSTER_ID, paths.encode_cluster_id(CLUSTER))
        self.put(paths.CONTROLLER_EPOCH, str(epoch).encode())

    def put_topic(
        self, name: str, replicas: dict[int, tuple[int, ...]], topic_id: UUID = ID, epoch: int = 4, isr: int = 3
    ) -> None:
        self.put(paths.topic_path(name), paths.encode_topic(TopicAssignment(topic_id, replicas, {}, {})))
        for each in replicas:
            state = PartitionRegistration(-1, epoch, (isr,), 5)
            self.put(paths.partition_state_path(name, each), paths.encode_partition_state(state))
            self.found.setdefault(TopicPartition(name, each), None if topic_id == NO_UUID else topic_id)

    def do_import(self, options: TransferOptions = MINE) -> Plan:
        there, ours = read_carried(self.zookeeper), read_carried(self.store)
        plan = plan_import(there, ours, self.store, self.found, options)
        self.store.multi(plan.operations)
        return plan

    def do_export(self, options: TransferOptions = MINE) -> Plan:
        there, ours = read_carried(self.zookeeper), read_carried(self.store)
        plan = plan_export(ours, there, self.zookeeper, self.found, options)
        self.zookeeper.multi(plan.operations)
        return plan


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    sides = Sides(tmp_path)
    yield sides
    for store in sides.stores:
        store.stop()


def test_a_store_that_took_over_is_a_cluster_that_this_broker_leads(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,), 1: (3,)})
    sides.put("/config/topics/a", paths.encode_config({"retention.ms": "5"}))
    quota = paths.encode_config({"producer_byte_rate": "1024"})
    sides.put("/config/users/u/clients/c", quota)
    sides.put(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(paths.ProducerIdBlock(3, 1000, 1999)))
    sides.put("/consumers/g/offsets/a/0", b"17")
    sides.put("/consumers/g/ids/someone", b"x")
    sides.put("/kafka-acl/Topic/a", b"x")
    plan = sides.do_import()
    assert (plan.topic_count, plan.partition_count) == (1, 2)
    assert plan.notes == [
        "1 ACL nodes are not carried over: kbroker has no access control yet",
        "client quotas (/config/users) are kept for the way back: kbroker enforces none yet",
    ]
    members.ensure_layout(sides.store)
    image, _ = load_image(sides.store, CLUSTER)
    topic = image.topics["a"]
    assert (topic.topic_id, topic.configs, topic.configs_given) == (ID, {"retention.ms": "5"}, True)
    assert [(each.leader, each.leader_epoch, each.isr) for each in topic.partitions] == [(3, 5, (3,))] * 2
    assert sides.store.get("/config/users/u/clients/c")[0] == quota
    assert sides.store.get("/consumers/g/offsets/a/0")[0] == b"17"
    assert sides.store.exists("/consumers/g/ids") is None
    assert sides.do_import().operations == []


def test_what_grows_only_is_never_set_back(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.put(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(paths.ProducerIdBlock(3, 1000, 1999)))
    sides.put("/consumers/g/offsets/a/0", b"17")
    sides.do_import()
    later = paths.encode_producer_id_block(paths.ProducerIdBlock(3, 5000, 5999))
    state = paths.encode_partition_state(PartitionRegistration(3, 9, (3,), 8))
    sides.store.multi(
        [
            SetData(paths.CONTROLLER_EPOCH, b"8"),
            SetData(paths.PRODUCER_ID_BLOCK, later),
            SetData(paths.partition_state_path("a", 0), state),
            SetData("/consumers/g/offsets/a/0", b"20"),
        ]
    )
    assert sides.do_import().operations == []
    sides.do_export()
    there = read_carried(sides.zookeeper).nodes
    assert there[paths.CONTROLLER_EPOCH] == b"8"
    assert there[paths.PRODUCER_ID_BLOCK] == later
    assert there[paths.partition_state_path("a", 0)] == state
    assert there["/consumers/g/offsets/a/0"] == b"20"
    assert sides.do_export().operations == []


def test_a_topic_that_the_store_had_before_keeps_what_it_has_more_of(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.do_import()
    grown = TopicAssignment(ID, {0: (3,), 1: (3,)}, {}, {})
    sides.store.multi(
        [
            SetData(paths.topic_path("a"), paths.encode_topic(grown)),
            Create(paths.topic_path("b"), paths.encode_topic(TopicAssignment(UUID(int=9), {0: (3,)}, {}, {}))),
        ]
    )
    assert sides.do_import().notes == ["topics that only the store has are kept: b"]
    topics = read_carried(sides.store).topics()
    assert topics["a"].replicas == {0: (3,), 1: (3,)}
    assert "b" in topics


BOTH_HAVE = {
    "/config/topics/a": [paths.encode_config({"retention.ms": each}) for each in ("1000", "-1")],
    "/config/brokers/3": [paths.encode_config({"log.retention.ms": each}) for each in ("1000", "-1")],
    "/consumers/g/offsets/a/0": [b"500", b"17"],
}
"""Data of nodes in ZooKeeper and in the store."""


@pytest.mark.parametrize(("store_epoch", "holds"), [(4, 0), (5, 0), (6, 1)])
def test_what_both_have_is_the_stores_only_if_its_controller_was_a_later_one(
    sides: Sides, store_epoch: int, holds: int
) -> None:
    sides.put_cluster(epoch=5)
    sides.put_topic("a", {0: (3,)})
    for path, (there, _) in BOTH_HAVE.items():
        sides.put(path, there)
    sides.do_import()
    sides.store.set(paths.CONTROLLER_EPOCH, str(store_epoch).encode())
    for path, (_, here) in BOTH_HAVE.items():
        sides.store.set(path, here)
    sides.put("/consumers/late/offsets/a/0", b"7")
    sides.do_import()
    nodes = read_carried(sides.store).nodes
    assert {path: nodes[path] for path in BOTH_HAVE} == {path: each[holds] for path, each in BOTH_HAVE.items()}
    assert nodes["/consumers/late/offsets/a/0"] == b"7", "only ZooKeeper has it"
    assert sides.do_import().operations == []


def test_settings_that_the_store_lacks_come_though_its_controller_was_a_later_one(sides: Sides) -> None:
    """A broker was started on the directories of a Kafka before the import, and again."""
    sides.put_cluster(epoch=1)
    sides.put_topic("a", {0: (3,)})
    sides.put("/config/topics/a", paths.encode_config({"retention.ms": "-1"}))
    sides.do_import()
    sides.store.multi([Delete(paths.topic_config_path("a")), SetData(paths.CONTROLLER_EPOCH, b"2")])
    sides.do_import()
    assert sides.store.get("/config/topics/a")[0] == paths.encode_config({"retention.ms": "-1"})


def test_a_topic_of_before_ids_takes_that_of_its_logs(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)}, NO_UUID)
    sides.put_topic("b", {0: (3,)}, NO_UUID)
    sides.found[TopicPartition("a", 0)] = ID
    sides.do_import()
    topics = read_carried(sides.store).topics()
    assert topics["a"].topic_id == ID
    assert topics["b"].topic_id not in (ID, NO_UUID)


def test_what_a_single_broker_cannot_carry_is_refused_with_its_names(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3, 4), 1: (4, 3)})
    with pytest.raises(CannotCarry, match=r"other brokers have replicas too of a-0 \(on 3, 4\), a-1 \(on 4, 3\)"):
        sides.do_import()
    assert read_carried(sides.store).nodes == {}
    sides.do_import(TransferOptions(3, only_replica=True))
    assert read_carried(sides.store).topics()["a"].replicas == {0: (3,), 1: (3,)}


def test_a_replica_that_was_not_in_sync_is_named(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3, 4)}, isr=4)
    plan = sides.do_import(TransferOptions(3, only_replica=True))
    assert plan.notes == ["broker 3 was not in sync and may lack records of a-0"]


def test_partitions_of_other_brokers_are_refused_unless_they_may_begin_empty(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,), 1: (4,)})
    del sides.found[TopicPartition("a", 1)]
    for options in (MINE, TransferOptions(3, only_replica=True)):
        with pytest.raises(CannotCarry, match=r"broker 3 has no replica of a-1 \(on 4\)"):
            sides.do_import(options)
    sides.do_import(TransferOptions(3, only_replica=True, allow_empty=True))
    assert read_carried(sides.store).topics()["a"].replicas == {0: (3,), 1: (3,)}


def test_logs_that_are_missing_or_of_another_topic_are_refused(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,), 1: (3,)})
    sides.found[TopicPartition("stray", 0)] = None
    del sides.found[TopicPartition("a", 1)]
    with pytest.raises(CannotCarry, match="no log directory has a-1"):
        sides.do_import()
    assert sides.do_import(TransferOptions(3, allow_empty=True)).notes == ["on disk and of no topic: stray-0"]
    sides.found[TopicPartition("a", 0)] = UUID(int=1234)
    with pytest.raises(CannotCarry, match="by its id, is the log of a-0"):
        sides.do_import(TransferOptions(3, allow_empty=True))


@pytest.mark.parametrize(
    ("path", "data", "said"),
    [
        ("/brokers/ids/3", b"{}", "broker 3 is running"),
        ("/migration", b"{}", "on its way to KRaft"),
        ("/admin/reassign_partitions", b"{}", "being reassigned"),
        ("/config/topics/a", paths.encode_config({"remote.storage.enable": "true"}), "topic a: Tiered Storage"),
        ("/config/topics/a", paths.encode_config({"retention.ms": "soon"}), "topic a: .*retention.ms"),
        ("/cluster/id", paths.encode_cluster_id("another"), "holds cluster vPeOCWypqUOSepEvx0cbog already, not anoth"),
    ],
)
def test_a_cluster_that_cannot_be_taken_over_now(sides: Sides, path: str, data: bytes, said: str) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.do_import()
    before = read_carried(sides.store).nodes
    sides.put(path, data, ephemeral=path.startswith("/brokers/ids"))
    with pytest.raises(CannotCarry, match=said):
        sides.do_import()
    assert read_carried(sides.store).nodes == before


def test_an_empty_zookeeper_or_a_wrong_chroot_is_no_cluster(sides: Sides) -> None:
    with pytest.raises(CannotCarry, match="is the chroot right"):
        sides.do_import()
    with pytest.raises(CannotCarry, match="no kbroker has been started on it"):
        sides.do_export()


def test_a_topic_whose_deletion_has_begun_is_carried_with_its_mark(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.put(paths.delete_topic_path("a"))
    sides.found.clear()
    sides.do_import()
    members.ensure_layout(sides.store)
    image, doomed = load_image(sides.store, CLUSTER)
    assert (list(image.topics), list(doomed)) == ([], ["a"])


def test_settings_that_nobody_knows_stay_what_they_are_in_zookeeper(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.put_topic("b", {0: (3,)}, UUID(int=78))
    sides.put("/config/topics/a", paths.encode_config({"retention.ms": "5"}))
    sides.do_import()
    for name in ("a", "b"):
        sides.store.delete(paths.topic_config_path(name))
    assert sides.do_export().notes == ["the settings of topic b are not known: Kafka takes its defaults for it"]
    assert read_carried(sides.zookeeper).nodes["/config/topics/a"] == paths.encode_config({"retention.ms": "5"})


def test_topics_that_the_store_has_deleted_go_from_zookeeper(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.put_topic("b", {0: (3,), 1: (3,)}, UUID(int=78))
    sides.put("/config/topics/b", paths.encode_config({}))
    sides.do_import()
    for path in sorted(path for path in read_carried(sides.store).nodes if path.startswith("/brokers/topics/b"))[::-1]:
        sides.store.delete(path)
    with pytest.raises(CannotCarry, match="on disk and in ZooKeeper, and not in the store: b; import first"):
        sides.do_export()
    for at in [at for at in sides.found if at.topic == "b"]:
        del sides.found[at]
    sides.do_export()
    assert list(read_carried(sides.zookeeper).topics()) == ["a"]
    assert sides.zookeeper.exists("/config/topics/b") is None


def test_a_zookeeper_that_has_been_used_since_is_not_overwritten(sides: Sides) -> None:
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.do_import()
    sides.put_cluster(epoch=6)
    with pytest.raises(CannotCarry, match=r"in use since .* \(controller epoch 6, in the store 5\): import first"):
        sides.do_export()
    sides.put("/brokers/ids/9", ephemeral=True)
    with pytest.raises(CannotCarry, match="broker 9 is registered"):
        sides.do_export()


def test_the_cluster_id_comes_last_into_an_empty_zookeeper(sides: Sides) -> None:
    """A Kafka that is started on half of an export would else make its topics anew."""
    sides.put_cluster()
    sides.put_topic("a", {0: (3,)})
    sides.do_import()
    for name in ("brokers", "cluster", "controller_epoch"):
        below = sorted(path for path in all_paths(sides) if path.startswith(f"/{name}"))
        for path in below[::-1]:
            sides.zookeeper.delete(path)
    plan = sides.do_export()
    assert plan.operations[-1].path == paths.CLUSTER_ID
    assert read_carried(sides.zookeeper).nodes == read_carried(sides.store).nodes


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_export_that_was_cut_short_anywhere_is_finished_by_the_next_one(tmp_path: Path, is_empty: bool) -> None:
    """Until then no broker finds the cluster in a ZooKeeper that was empty."""

    def begun(name: str) -> tuple[Sides, Plan]:
        (tmp_path / name).mkdir()
        sides = Sides(tmp_path / name)
        sides.put_cluster()
        sides.put_topic("a", {0: (3,), 1: (3,)})
        sides.put("/config/topics/a", paths.encode_config({"retention.ms": "5"}))
        sides.put("/config/users/u/clients/c", b"quota")
        sides.put("/consumers/g/offsets/a/0", b"17")
        sides.do_import()
        sides.put_topic("gone", {0: (3,)}, UUID(int=78))
        del sides.found[TopicPartition("gone", 0)]
        if is_empty:
            for path in sorted(all_paths(sides) - {"/"}, reverse=True):
                sides.zookeeper.delete(path)
        there, ours = read_carried(sides.zookeeper), read_carried(sides.store)
        return sides, plan_export(ours, there, sides.zookeeper, sides.found, MINE)

    whole, plan = begun("whole")
    whole.zookeeper.multi(plan.operations)
    assert len(plan.operations) > 5
    for cut in range(len(plan.operations)):
        sides, plan = begun(str(cut))
        for each in plan.operations[:cut]:
            sides.zookeeper.multi([each])
        assert not is_empty or sides.zookeeper.exists(paths.CLUSTER_ID) is None
        sides.do_export()
        assert read_carried(sides.zookeeper).nodes == read_carried(whole.zookeeper).nodes
        for store in sides.stores:
            store.stop()
    for store in whole.stores:
        store.stop()


def all_paths(sides: Sides) -> set[str]:
    found, waiting = set(), ["/"]
    while waiting:
        path = waiting.pop()
        waiting += [f"{path.rstrip('/')}/{name}" for name in sides.zookeeper.children(path)]
        found.add(path)
    return found
