"""Topics are created, grown, configured and deleted durably, whole or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.cluster.image import NO_LEADER, Topic
from kbroker.cluster.members import random_id
from kbroker.cluster.new_topics import NewTopic
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.topics import FoundPartition, Topics
from kbroker.coordination import paths
from kbroker.errors import ErrorCode, ProtocolError, StorageFailed
from kbroker.model import TopicPartition
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.folder_host import Crash


def create(topics: Topics, *wanted: NewTopic) -> list[Topic]:
    results = topics.create(wanted)
    assert all(isinstance(result, Topic) for result in results), results
    return [result for result in results if isinstance(result, Topic)]


def refusal(result: Topic | ProtocolError) -> tuple[ErrorCode, str | None]:
    assert isinstance(result, ProtocolError), result
    return result.code, result.message


def test_a_created_topic_is_in_the_image_in_the_store_and_on_disk(cluster: Cluster) -> None:
    topic = create(cluster.topics, NewTopic("a", 3, 1, configs={"retention.ms": "5"}))[0]
    image = cluster.topics.image
    assert image.topic("a") is topic
    assert image.topic_by_id(topic.topic_id) is topic
    assert [p[:5] for p in topic.partitions] == [(each, 1, 0, (1,), (1,)) for each in range(3)]
    assert image.partition(TopicPartition("a", 2)) is topic.partitions[2]
    assert image.partition(TopicPartition("a", 3)) is None
    assert image.partition(TopicPartition("a", -1)) is None
    assert cluster.host.names() == ["a-0", "a-1", "a-2"]
    assert json.loads(cluster.session.get("/config/topics/a")[0]) == {"version": 1, "config": {"retention.ms": "5"}}
    assert cluster.session.children("/brokers/topics/a/partitions") == ["0", "1", "2"]
    state = json.loads(cluster.session.get("/brokers/topics/a/partitions/0/state")[0])
    assert state == {"controller_epoch": 1, "leader": 1, "version": 1, "leader_epoch": 0, "isr": [1]}


def test_everything_is_there_after_a_restart(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 3, 1, configs={"retention.ms": "5"}), NewTopic("b"))
    cluster.topics.set_broker_configs("1", lambda _: {"log.retention.ms": "7"})
    before = cluster.topics.image
    after = cluster.reopen().image
    assert after.cluster_id == before.cluster_id
    assert list(after.topics) == list(before.topics)
    for name, topic in after.topics.items():
        assert topic.topic_id == before.topics[name].topic_id
        assert topic.partitions == before.topics[name].partitions
        assert topic.configs == before.topics[name].configs
    assert after.names == before.names
    assert after.broker_configs == before.broker_configs


def test_defaults_fill_in_what_nobody_asked_for(cluster: Cluster) -> None:
    topic = create(cluster.topics, NewTopic("a"))[0]
    assert len(topic.partitions) == 2
    assert topic.replication_factor == 1


def test_one_wrong_topic_does_not_stop_the_others(cluster: Cluster) -> None:
    results = cluster.topics.create([NewTopic("a"), NewTopic("a/b"), NewTopic("c")])
    assert [isinstance(result, Topic) for result in results] == [True, False, True]
    assert sorted(cluster.topics.image.topics) == ["a", "c"]


def test_validation_alone_changes_nothing(cluster: Cluster) -> None:
    topic = cluster.topics.create([NewTopic("a", 3)], validate_only=True)[0]
    assert isinstance(topic, Topic)
    assert len(topic.partitions) == 3
    create(cluster.topics, NewTopic("b"))
    grown = cluster.topics.add_partitions("b", 9, validate_only=True)
    assert len(grown.partitions) == 9
    assert cluster.host.names() == ["b-0", "b-1"]
    assert list(cluster.reopen().image.topics) == ["b"]
    assert len(cluster.topics.image.topics["b"].partitions) == 2


def test_a_topic_whose_logs_cannot_be_made_is_taken_back_whole(cluster: Cluster) -> None:
    cluster.host.failing = {"a-1"}
    a, b = cluster.topics.create([NewTopic("a", 2), NewTopic("b", 2)])
    assert refusal(a) == (ErrorCode.KAFKA_STORAGE_ERROR, "a-1: no space left on device")
    assert isinstance(b, Topic)
    assert list(cluster.topics.image.topics) == ["b"]
    # Its deletion could not touch the failing log, so the next start goes on with it.
    cluster.host.failing = set()
    assert list(cluster.reopen().image.topics) == ["b"]
    assert cluster.host.names() == ["b-0", "b-1"]
    assert cluster.session.children(paths.DELETE_TOPICS) == []
    assert cluster.session.children(paths.TOPIC_CONFIGS) == ["b"]
    create(cluster.topics, NewTopic("a", 2))


def test_a_crash_while_a_growth_is_taken_back_leaves_a_log_that_is_nobodys(cluster: Cluster) -> None:
    """The store is right first: the start finds an empty log beyond the topic's end, and puts it aside."""
    create(cluster.topics, NewTopic("a", 1))
    cluster.host.failing, cluster.host.steps_until_crash = {"a-2"}, 2
    with pytest.raises(Crash):
        cluster.topics.add_partitions("a", 3)
    cluster.host.failing, cluster.host.steps_until_crash = set(), None
    assert cluster.host.names() == ["a-0", "a-1"]
    topics = cluster.reopen()
    assert len(topics.image.topics["a"].partitions) == 1
    assert topics.owner_of(TopicPartition("a", 1)) is None
    assert cluster.host.names() == ["a-0"]


@pytest.mark.parametrize("grow", [False, True])
def test_what_a_full_disk_does_not_let_take_back_is_taken_back_before_the_next_change(
    cluster: Cluster, grow: bool
) -> None:
    if grow:
        create(cluster.topics, NewTopic("a", 1))
    cluster.host.failing = {"a-1"}
    cluster.host.on_failure = lambda: setattr(cluster.disk, "is_full", True)

    def change() -> Topic | ProtocolError:
        return cluster.topics.add_partitions("a", 2) if grow else cluster.topics.create([NewTopic("a", 2)])[0]

    def refused() -> ErrorCode:
        try:
            return refusal(change())[0]
        except (StorageFailed, ProtocolError) as error:
            return ErrorCode(error.code)

    assert refused() is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.host.failing = set()
    assert refused() is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(cluster.topics.create([NewTopic("b", 1)])[0])[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert [len(topic.partitions) for topic in cluster.topics.image.topics.values()] == [1] * grow
    cluster.disk.is_full = False
    changed = change()
    assert isinstance(changed, Topic) and len(changed.partitions) == 2
    assert len(cluster.reopen().image.topics["a"].partitions) == 2
    assert cluster.host.names() == ["a-0", "a-1"]


def test_a_crash_after_the_commit_and_before_the_logs_is_finished_by_the_next_start(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 2))
    for name in cluster.host.names():
        (cluster.host.folder / name / "topic_id").unlink()
        (cluster.host.folder / name).rmdir()
    cluster.reopen()
    assert cluster.host.names() == ["a-0", "a-1"]


def test_a_deleted_topic_is_gone_everywhere(cluster: Cluster) -> None:
    topic = create(cluster.topics, NewTopic("a", 2))[0]
    assert cluster.topics.delete("a").topic_id == topic.topic_id
    assert cluster.topics.image.topics == {}
    assert cluster.topics.image.topic_by_id(topic.topic_id) is None
    assert cluster.host.names() == []
    for path in (paths.TOPICS, paths.TOPIC_CONFIGS, paths.DELETE_TOPICS):
        assert cluster.session.children(path) == []
    again = create(cluster.topics, NewTopic("a", 1))[0]
    assert again.topic_id != topic.topic_id


def test_a_deletion_cut_short_is_finished_by_the_next_start(cluster: Cluster) -> None:
    topic = create(cluster.topics, NewTopic("a", 2))[0]
    cluster.host.failing = {"a-1"}
    cluster.topics.delete("a")
    assert cluster.topics.image.topics == {}
    result = cluster.topics.create([NewTopic("a", 2)])[0]
    assert refusal(result) == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' is marked for deletion.")
    cluster.close()
    cluster.host.failing = set()
    topics = cluster.load()
    owner = topics.owner_of(TopicPartition("a", 1))
    assert owner is not None
    assert owner.topic_id == topic.topic_id
    assert topics.image.topics == {}
    cluster.close()
    cluster.open()
    assert cluster.host.names() == []
    assert cluster.session.children(paths.TOPICS) == []
    create(cluster.topics, NewTopic("a", 2))


def test_a_name_that_collides_with_a_topic_whose_deletion_was_cut_short_is_refused(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a.b"))
    cluster.host.failing = {"a.b-0"}
    cluster.topics.delete("a.b")
    result = cluster.topics.create([NewTopic("a_b")])[0]
    assert refusal(result) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a_b' collides with existing topic: a.b",
    )


def test_of_names_that_collide_several_threads_make_one(cluster: Cluster) -> None:
    topics = cluster.topics
    names = [f"{number}{each}n" for number in range(25) for each in "._"]
    ways: list[Callable[[str], object]] = [
        lambda name: topics.create([NewTopic(name)]),
        lambda name: topics.ensure([name]),
        lambda name: topics.set_group_configs(
            name, lambda configs: {**configs, "consumer.session.timeout.ms": "50000"}
        ),
    ]
    together = threading.Barrier(4)

    def run(way: Callable[[str], object], order: int) -> None:
        together.wait()
        for name in names[::order]:
            way(name)

    with ThreadPoolExecutor(4) as pool:
        rows = [(ways[0], 1), (ways[0], -1), (ways[1], -1), (ways[2], 1)]
        for each in [pool.submit(run, *row) for row in rows]:
            each.result()
    found = sorted(name.replace(".", "_") for name in topics.image.topics)
    assert found == sorted(name for name in names if "_" in name)
    assert sorted(topics.image.group_configs) == sorted(names)
    assert sorted(cluster.session.children(paths.TOPICS)) == sorted(topics.image.topics)


def test_deleting_what_is_not_there_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ProtocolError) as raised:
        cluster.topics.delete("a")
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_added_partitions_are_there_after_a_restart_with_the_old_ones_unchanged(cluster: Cluster) -> None:
    before = create(cluster.topics, NewTopic("a", 2, configs={"retention.ms": "5"}))[0]
    cluster.topics.add_partitions("a", 4)
    after = cluster.reopen().image.topics["a"]
    assert after.partitions[:2] == before.partitions
    assert len(after.partitions) == 4
    assert (after.topic_id, after.configs) == (before.topic_id, before.configs)
    assert cluster.host.names() == ["a-0", "a-1", "a-2", "a-3"]


def test_partitions_whose_logs_cannot_be_made_are_taken_back(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 1))
    cluster.host.failing = {"a-2"}
    with pytest.raises(StorageFailed):
        cluster.topics.add_partitions("a", 3)
    assert len(cluster.topics.image.topics["a"].partitions) == 1
    assert cluster.host.names() == ["a-0"]
    cluster.host.failing = set()
    cluster.topics.add_partitions("a", 2)
    assert len(cluster.reopen().image.topics["a"].partitions) == 2


def test_topic_configs_reach_the_host_and_survive(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", configs={"retention.ms": "5"}))
    cluster.topics.set_topic_configs("a", lambda topic: {**topic.configs, "segment.ms": "9"})
    assert cluster.host.topic_configs == {"a": {"retention.ms": "5", "segment.ms": "9"}}
    assert cluster.reopen().image.topics["a"].configs == {"retention.ms": "5", "segment.ms": "9"}


def test_a_change_of_configs_that_is_refused_leaves_them(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", configs={"retention.ms": "5"}))

    def refuse(_topic: Topic) -> dict[str, str]:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, "no")

    with pytest.raises(ProtocolError):
        cluster.topics.set_topic_configs("a", refuse)
    assert cluster.topics.image.topics["a"].configs == {"retention.ms": "5"}
    assert cluster.host.topic_configs == {}


def test_this_brokers_configs_win_over_those_of_all_brokers(cluster: Cluster) -> None:
    cluster.topics.set_broker_configs(paths.DEFAULT_ENTITY, lambda _: {"log.retention.ms": "7", "x": "all"})
    cluster.topics.set_broker_configs("1", lambda _: {"log.retention.ms": "9"})
    assert cluster.host.broker_configs == {"log.retention.ms": "9", "x": "all"}
    assert cluster.reopen().dynamic_broker_configs() == {"log.retention.ms": "9", "x": "all"}


STRANGE_GROUPS = ["g", "a/b", ".", "..", "ü %2F\n", "%", "g%"]


def test_what_groups_are_set_to_survives_and_goes_without_a_trace(cluster: Cluster) -> None:
    for name in STRANGE_GROUPS:
        cluster.topics.set_group_configs(name, lambda own, name=name: {**own, "x": name})  # type: ignore[misc]
    wanted = {name: {"x": name} for name in STRANGE_GROUPS}
    assert cluster.topics.image.group_configs == wanted
    assert cluster.host.changed_groups == STRANGE_GROUPS
    assert cluster.reopen().image.group_configs == wanted
    for name in STRANGE_GROUPS:
        cluster.topics.set_group_configs(name, lambda own: {})
    assert cluster.topics.image.group_configs == {}
    assert cluster.session.children(paths.GROUP_CONFIGS) == []
    assert cluster.reopen().image.group_configs == {}


def test_topics_that_are_needed_are_made_with_defaults_once(cluster: Cluster) -> None:
    made = cluster.topics.ensure(["a", "a", "b"])
    assert [topic.name for topic in made if isinstance(topic, Topic)] == ["a", "b"]
    again = cluster.topics.ensure(["b", "a/b", "c"])
    assert again[0] is made[1]
    assert refusal(again[1])[0] is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert isinstance(again[2], Topic)


def test_internal_topics_are_cut_to_the_brokers_there_are(cluster: Cluster) -> None:
    topic = cluster.topics.ensure(["__consumer_offsets"])[0]
    assert isinstance(topic, Topic)
    assert (len(topic.partitions), topic.replication_factor) == (5, 1)
    assert topic.configs == {"cleanup.policy": "compact"}
    assert topic.is_internal


def test_leader_epochs_grow_after_an_unclean_stop_only(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 2))
    assert [p.leader_epoch for p in cluster.reopen().image.topics["a"].partitions] == [0, 0]
    assert [p.leader_epoch for p in cluster.reopen(new_leader_epochs=True).image.topics["a"].partitions] == [1, 1]
    assert [p.leader_epoch for p in cluster.reopen().image.topics["a"].partitions] == [1, 1]
    assert [p.leader_epoch for p in cluster.reopen(new_leader_epochs=True).image.topics["a"].partitions] == [2, 2]


def test_a_failed_log_has_no_leader_until_the_next_start(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 2), NewTopic("b", 1))
    before = cluster.topics.image
    cluster.topics.mark_failed([TopicPartition("a", 1)])
    healthy, failed = cluster.topics.image.topics["a"].partitions
    assert (failed.leader, failed.offline, failed.isr) == (NO_LEADER, (1,), (1,))
    assert (healthy.leader, healthy.offline) == (1, ())
    assert cluster.topics.image.topics["b"] is before.topics["b"]
    assert cluster.reopen().image.topics["a"].partitions[1].leader == 1


def test_controller_and_broker_epochs_grow_with_each_start(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 1))
    first = cluster.topics.image.brokers[1].epoch
    topics = cluster.reopen()
    assert topics.image.brokers[1].epoch > first
    assert topics.image.controller_id == 1
    create(topics, NewTopic("b", 1))
    assert json.loads(cluster.session.get("/brokers/topics/b/partitions/0/state")[0])["controller_epoch"] == 2
    assert cluster.session.get(paths.CONTROLLER_EPOCH)[0] == b"2"


def test_an_image_taken_earlier_does_not_change(cluster: Cluster) -> None:
    create(cluster.topics, NewTopic("a", 1))
    image = cluster.topics.image
    cluster.topics.delete("a")
    create(cluster.topics, NewTopic("b", 1))
    assert list(image.topics) == ["a"]
    assert list(cluster.topics.image.topics) == ["b"]


def test_logs_of_another_broker_are_taken_up_by_a_new_store(tmp_path: Path) -> None:
    topic_id = UUID("a62fec1a-2062-4220-a19e-256b2a9c611e")
    found = [
        FoundPartition(TopicPartition("a", 0), topic_id, 4),
        FoundPartition(TopicPartition("a", 2), topic_id, 0),
        FoundPartition(TopicPartition("b", 0), None, -1),
        FoundPartition(TopicPartition("__consumer_offsets", 0), None, 0),
    ]
    cluster = Cluster(tmp_path, found)
    topics = cluster.topics
    for _ in range(2):
        a, b = topics.image.topics["a"], topics.image.topics["b"]
        assert a.topic_id == topic_id
        assert [(p.leader, p.leader_epoch) for p in a.partitions] == [(1, 5), (1, 0), (1, 1)]
        assert [(p.leader, p.leader_epoch) for p in b.partitions] == [(1, 0)]
        assert topics.image.topics["__consumer_offsets"].configs == {"cleanup.policy": "compact"}
        assert cluster.host.names() == ["__consumer_offsets-0", "a-0", "a-1", "a-2", "b-0"]
        topics = cluster.reopen()
    cluster.close()


def test_configs_of_topics_found_on_disk_are_unknown_until_somebody_gives_them(tmp_path: Path) -> None:
    names = ("a", "b", "__consumer_offsets")
    cluster = Cluster(tmp_path, [FoundPartition(TopicPartition(name, 0), None, 0) for name in names])

    def given() -> dict[str, bool]:
        return {name: topic.configs_given for name, topic in cluster.topics.image.topics.items()}

    assert given() == {"a": False, "b": False, "__consumer_offsets": True}
    cluster.topics.add_partitions("a", 2)
    cluster.topics.set_topic_configs("b", lambda topic: {})
    create(cluster.topics, NewTopic("c", 1))
    for _ in range(2):
        assert given() == {"a": False, "b": True, "c": True, "__consumer_offsets": True}
        cluster.reopen()
    cluster.topics.delete("a")
    assert cluster.reopen().image.topic("a") is None
    cluster.close()


def test_producer_ids_of_logs_found_on_disk_are_not_given_out_again(tmp_path: Path) -> None:
    """A producer with the id of an older one would be taken for it: what it sends, for sent before."""
    for name in ("found", "new"):
        (tmp_path / name).mkdir()
    cluster = Cluster(tmp_path / "found", [FoundPartition(TopicPartition("a", 0), None, 0)])
    first = ProducerIds(cluster.session, 1).next()
    assert 1 << 45 < first < 1 << 53
    cluster.reopen()
    assert ProducerIds(cluster.session, 1).next() == first + 1000
    cluster.close()
    cluster = Cluster(tmp_path / "new", [])
    assert ProducerIds(cluster.session, 1).next() == 0
    cluster.close()


def test_logs_found_later_are_nobodys(cluster: Cluster) -> None:
    cluster.found = [FoundPartition(TopicPartition("a", 0), None, 4)]
    assert cluster.reopen().image.topics == {}
    assert cluster.topics.owner_of(TopicPartition("a", 0)) is None


def test_ids_avoid_those_that_kafka_reserves_and_those_that_look_like_options() -> None:
    dashed = UUID(bytes=b"\xf8" + bytes(15))
    assert paths.encode_uuid(dashed).startswith("-")
    wanted = UUID(int=2)
    drawn = iter([UUID(int=0), UUID(int=1), dashed, wanted])
    assert random_id(lambda: next(drawn)) == wanted
