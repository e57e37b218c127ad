"""A member's topics and configs: what the controller tells, what the tree says, and what clients ask for."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.cluster import members
from kbroker.cluster.cluster import TopicResult
from kbroker.cluster.image import Topic
from kbroker.cluster.new_topics import MorePartitions, NewTopic, TopicDefaults
from kbroker.cluster.shared_topics import SharedTopics
from kbroker.cluster.topic_requests import CreateTopics, DeleteTopics, GrowTopics, TopicCodes, TopicRequest
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore, store_path
from kbroker.coordination.store import Store, StoreUnavailable, Watcher
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M

R = M.UpdateMetadataRequest
ID = UUID(int=77)


class FrozenClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class Host:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.before: Callable[[], None] = lambda: None
        """Called before it remembers changed configs."""

    def topics_changed(self, changed: Sequence[Topic], removed: Sequence[Topic]) -> None:
        self.told.append(("topics", [each.name for each in changed], [each.name for each in removed]))

    def update_topic(self, topic: Topic) -> None:
        self.before()
        self.told.append(("topic", topic.name, dict(topic.configs)))

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        self.before()
        self.told.append(("broker", dict(configs)))

    def update_group_configs(self, group_id: str) -> None:
        self.told.append(("group", group_id))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told


class Member:
    """SharedTopics of broker 1, and the two ends that a broker has: a controller and a tree."""

    def __init__(self, folder: Path):
        self.embedded = EmbeddedStore(store_path(str(folder)))
        self.store: Store = self.embedded.connect()
        members.ensure_layout(self.store)
        self.clock = FrozenClock()
        self.host = Host()
        self.is_controller = True
        self.deleted: set[str] = set()
        self.moved: set[str] = set()
        self.asked: list[tuple[TopicRequest, Callable[[TopicCodes], None]]] = []
        self.answers: list[list[TopicResult]] = []
        self.topics = self.made()

    def made(self) -> SharedTopics:
        topics = SharedTopics(
            self.store,
            1,
            "cluster",
            defaults=TopicDefaults(2, 1),
            internal_topics={
                "__consumer_offsets": NewTopic("__consumer_offsets", 3, 3, configs={"cleanup.policy": "compact"}),
                "__transaction_state": NewTopic("__transaction_state", 3, 3, configs={"min.insync.replicas": "2"}),
            },
            exact_internal_topics={"__transaction_state"},
            ask=lambda request, answered: self.asked.append((request, answered)),
            is_controller=lambda: self.is_controller,
            is_deleting=lambda name: name in self.deleted,
            is_moving=lambda name: name in self.moved,
            clock=self.clock,
            randomness=random.Random(0),
            draw_uuid=lambda: ID,
        )
        topics.serve(self.host)
        return topics

    def tell(
        self,
        *states: tuple[str, int, int],
        brokers: Sequence[int] = (1, 2),
        topic_id: UUID = ID,
        broker_epoch: int = -1,
    ) -> None:
        """Send UpdateMetadata; each state is (topic, partition, leader)."""
        request = R(controller_id=2, controller_epoch=5, broker_epoch=broker_epoch)
        request.live_brokers = [
            R.UpdateMetadataBroker(
                id=each,
                endpoints=[R.UpdateMetadataEndpoint(port=9000 + each, host="h", listener="P", security_protocol=0)],
            )
            for each in brokers
        ]
        for topic, partition_id, leader in states:
            state = R.UpdateMetadataPartitionState(
                partition_index=partition_id, leader=leader, leader_epoch=0, isr=[1], replicas=[1]
            )
            request.topic_states.append(
                R.UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id.bytes, partition_states=[state])
            )
        self.topics.update(request)

    def answered(self, results: list[TopicResult]) -> None:
        self.answers.append(results)


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path)
    yield made
    made.embedded.stop()


def code(result: TopicResult) -> ErrorCode:
    return result.code if isinstance(result, ProtocolError) else ErrorCode.NONE


def test_metadata_comes_from_the_controller_and_configs_from_the_tree(member: Member) -> None:
    member.store.create(paths.topic_config_path("a"), paths.encode_config({"retention.ms": "5"}))
    assert member.topics.update(R(controller_id=2, controller_epoch=5)) == set()
    member.tell(("a", 0, 1), ("b", 0, 2))
    image = member.topics.image
    assert (member.topics.controller_id, member.topics.controller_epoch) == (2, 5)
    assert sorted(image.brokers) == [1, 2]
    assert image.topics["a"].configs == {"retention.ms": "5"}
    assert image.topics["b"].configs == {}
    assert member.host.take() == [("topics", ["a", "b"], [])]
    member.tell(("a", 0, -2))
    assert member.host.take() == [("topics", [], ["a"])]
    assert list(member.topics.image.topics) == ["b"]


def test_a_broker_that_hears_of_a_change_has_been_told(member: Member) -> None:
    """A start that waited for the metadata is over then, and /ready is asked at once."""
    topics, heard = member.topics, list[bool]()
    topics.on_change(lambda: heard.append(topics.is_told))
    topics.registered(member.store, 7)
    member.tell(broker_epoch=7)
    assert heard == [True]


def test_a_broker_is_told_by_the_metadata_of_its_present_registration(member: Member) -> None:
    topics = member.topics
    assert not topics.is_told
    member.tell(broker_epoch=7)  # the controller may know of a registration before the broker does
    assert not topics.is_told
    topics.registered(member.store, 7)
    assert topics.is_told
    topics.registered(member.store, 9)
    assert 1 in topics.image.brokers and not topics.is_told
    member.tell(brokers=(2,), broker_epoch=9)
    assert not topics.is_told
    member.tell(broker_epoch=9)
    assert topics.is_told
    topics.registered(member.store, 11)
    member.tell(broker_epoch=-1)
    assert topics.is_told, "a controller that knows no broker epochs is believed"


def test_topics_of_the_tree_are_untold_until_the_controller_has_told_of_partitions(member: Member) -> None:
    assert member.topics.untold == set()
    for name in ("a", "b"):
        member.store.create(paths.topic_path(name), paths.encode_topic(paths.TopicAssignment(ID, {0: (1,)}, {}, {})))
    topics = member.topics = member.made()
    member.tell()
    assert topics.untold == {"a", "b"}, "this request was of brokers alone"
    member.store.delete(paths.topic_path("b"))
    topics.step()
    assert topics.untold == {"a"}
    member.tell(("c", 0, 1))
    assert topics.untold == set()


def test_configs_that_cannot_be_read_are_read_later_and_delete_nothing_until_then(member: Member) -> None:
    member.store.create(paths.topic_config_path("a"), paths.encode_config({"retention.ms": "5"}))
    member.store.create(paths.topic_path("a"))
    get_many = member.store.get_many
    member.store.get_many = away  # type: ignore[method-assign, assignment]
    member.tell(("a", 0, 1))
    assert not member.topics.image.topics["a"].configs_given
    assert member.topics.step() == 1.0
    member.store.get_many = get_many  # type: ignore[method-assign]
    assert member.topics.step() is None
    topic = member.topics.image.topics["a"]
    assert (topic.configs, topic.configs_given) == ({"retention.ms": "5"}, True)
    assert member.host.take()[-1] == ("topic", "a", {"retention.ms": "5"})


def test_a_topic_that_was_deleted_under_a_controller_that_did_not_reach_this_broker_is_forgotten(
    member: Member,
) -> None:
    dues: list[None] = []
    member.topics.on_due = lambda: dues.append(None)
    for name in ("a", "b"):
        member.store.create(paths.topic_path(name))
    member.tell(("a", 0, 1), ("b", 0, 1))
    assert dues, "a new controller"
    member.topics.step()
    dues.clear()
    member.store.delete(paths.topic_path("b"))
    member.tell(("a", 0, 2))
    member.topics.step()
    assert sorted(member.topics.image.topics) == ["a", "b"]
    assert not dues
    member.host.take()
    member.topics.update(R(controller_id=3, controller_epoch=6))
    assert dues
    deleted: list[object] = []
    member.topics.on_deleted = deleted.append
    topic_id = member.topics.image.topics["b"].topic_id
    children, member.store.children = member.store.children, away  # type: ignore[method-assign]
    assert member.topics.step() == 1.0
    member.store.children = children  # type: ignore[method-assign]
    assert member.topics.step() is None
    assert list(member.topics.image.topics) == ["a"]
    assert deleted == [{"b": topic_id}], "its replicas are to be left"
    assert member.host.take() == [("topics", [], ["b"])]
    member.store.delete(paths.topic_path("a"))
    member.topics.registered(member.store, 5)
    member.topics.step()
    assert not member.topics.image.topics


def test_a_topic_that_is_being_deleted_when_this_broker_registers_again_is_forgotten_in_the_end(
    member: Member,
) -> None:
    """A controller names such a topic to those alone that have replicas, and they may have moved away meanwhile."""
    for name in ("a", "b", "c"):
        member.store.create(paths.topic_path(name))
    member.tell(("a", 0, 1), ("b", 0, 1), ("c", 0, 1), broker_epoch=5)
    member.topics.registered(member.store, 6)
    member.topics.step()
    member.tell(("a", 0, 1), broker_epoch=6)
    assert member.topics.step() == 1.0
    assert sorted(member.topics.image.topics) == ["a", "b", "c"]
    member.tell(("c", 0, 1), broker_epoch=6)
    deleted: list[Mapping[str, UUID]] = []
    member.topics.on_deleted = deleted.append
    assert (member.topics.step(), deleted) == (1.0, [])
    member.store.delete(paths.topic_path("b"))
    assert member.topics.step() is None
    assert sorted(member.topics.image.topics) == ["a", "c"]
    assert [list(each) for each in deleted] == [["b"]]
    member.store.delete(paths.topic_path("c"))
    assert member.topics.step() is None, "nothing is compared any more"
    assert sorted(member.topics.image.topics) == ["a", "c"]


def test_who_waits_for_topics_wakes_whoever_has_to_say_that_it_was_too_long(member: Member) -> None:
    member.tell()
    dues: list[None] = []
    member.topics.on_due = lambda: dues.append(None)
    member.topics.create_topics([NewTopic("a")], 500, member.answered)
    member.asked[0][1]({"a": ErrorCode.NONE})
    assert dues
    member.topics.step()
    left = member.topics.step()
    assert left is not None
    assert left <= 0.5


def away(*_: object) -> Any:
    raise StoreUnavailable("away")


def test_the_owner_of_a_log_on_disk_is_found_in_the_tree(member: Member) -> None:
    replicas = {0: (1, 2), 1: (2, 3)}
    member.store.create(paths.topic_path("a"), paths.encode_topic(paths.TopicAssignment(ID, replicas, {}, {})))
    member.store.create(paths.topic_config_path("a"), paths.encode_config({"x": "y"}))
    topics = member.made()
    owner = topics.owner_of(TopicPartition("a", 0))
    assert owner is not None
    assert (owner.topic_id, owner.configs) == (ID, {"x": "y"})
    assert topics.owner_of(TopicPartition("a", 1)) is None, "others have its replicas"
    assert topics.owner_of(TopicPartition("a", 2)) is None
    assert topics.owner_of(TopicPartition("b", 0)) is None
    assert topics.image.topics == {}, "leaders are not known before the controller tells"


def test_a_topic_is_created_by_the_controller_and_answered_when_it_is_led(member: Member) -> None:
    member.tell()
    member.topics.create_topics([NewTopic("a"), NewTopic("b", 0)], 30_000, member.answered)
    ((request, answer),) = member.asked
    assert isinstance(request, CreateTopics)
    assert request.topics["a"].assignment.replicas.keys() == {0, 1}
    assert request.topics.keys() == {"a"}
    answer({"a": ErrorCode.NONE})
    member.tell(("a", 0, 1))
    member.tell(("a", 1, -1))
    assert member.answers == []
    member.tell(("a", 1, 2))
    ((made, refused),) = member.answers
    assert isinstance(made, Topic)
    assert code(refused) is ErrorCode.INVALID_PARTITIONS


def test_a_topic_that_is_not_led_in_time_is_a_time_out(member: Member) -> None:
    member.tell()
    member.topics.create_topics([NewTopic("a")], 3_000, member.answered)
    member.asked[0][1]({"a": ErrorCode.NONE})
    assert member.topics.step() == 3.0
    member.clock.now_s += 3
    assert member.topics.step() is None
    assert [code(each) for each in member.answers[0]] == [ErrorCode.REQUEST_TIMED_OUT]


def test_no_time_at_all_is_a_time_out_and_the_topic_is_made_nevertheless(member: Member) -> None:
    member.tell()
    member.topics.create_topics([NewTopic("a")], 0, member.answered)
    member.asked[0][1]({"a": ErrorCode.NONE})
    assert [code(each) for each in member.answers[0]] == [ErrorCode.REQUEST_TIMED_OUT]


def test_refusals_of_the_controller_are_answered_at_once(member: Member) -> None:
    member.tell()
    member.topics.create_topics([NewTopic("a")], 3_000, member.answered)
    member.asked[0][1]({"a": ErrorCode.NOT_CONTROLLER})
    assert [code(each) for each in member.answers[0]] == [ErrorCode.NOT_CONTROLLER]


def test_a_validation_asks_nobody(member: Member) -> None:
    member.tell()
    member.topics.create_topics([NewTopic("a", 5)], 3_000, member.answered, validate_only=True)
    (planned,) = member.answers[0]
    assert isinstance(planned, Topic)
    assert len(planned.partitions) == 5
    assert member.asked == []


@pytest.mark.parametrize(("topics", "is_allowed"), [(5000, True), (5001, False)])
def test_a_topic_without_a_partition_count_counts_as_it_will_be_made(
    member: Member, topics: int, is_allowed: bool
) -> None:
    """num.partitions is 2 here, and 10,000 partitions are the most that one request may ask for."""
    member.tell()
    wanted = [NewTopic(f"t{number}") for number in range(topics)]
    member.topics.create_topics(wanted, 3_000, member.answered, validate_only=True)
    assert {code(each) for each in member.answers[0]} == {ErrorCode.NONE if is_allowed else ErrorCode.POLICY_VIOLATION}


def test_a_topic_grows_by_the_controller(member: Member) -> None:
    member.tell(("a", 0, 1))
    wanted = [MorePartitions("a", 3), MorePartitions("b", 3), MorePartitions("a ", 1)]
    member.topics.create_partitions(wanted, 3_000, member.answered)
    ((request, answer),) = member.asked
    assert isinstance(request, GrowTopics)
    assert request.topics["a"].keys() == {1, 2}
    answer({"a": ErrorCode.NONE})
    member.tell(("a", 1, 1))
    assert member.answers == []
    member.tell(("a", 2, 1))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [code(each) for each in member.answers[0]] == [ErrorCode.NONE, unknown, unknown]


def test_a_topic_whose_replicas_move_does_not_grow_and_a_validation_says_so_too(member: Member) -> None:
    member.tell(("a", 0, 1), ("a", 1, 1))
    member.moved.add("a")
    wanted = [MorePartitions("a", 3), MorePartitions("b", 3)]
    for validate_only in (False, True):
        member.topics.create_partitions(wanted, 3_000, member.answered, validate_only=validate_only)
        codes = [code(each) for each in member.answers.pop()]
        assert codes == [ErrorCode.REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    member.topics.create_partitions([MorePartitions("a", 1)], 3_000, member.answered)
    assert code(member.answers[0][0]) is ErrorCode.REASSIGNMENT_IN_PROGRESS, "whatever the count"
    assert member.asked == []


def test_a_topic_that_is_being_deleted_is_not_made_and_a_validation_says_so_too(member: Member) -> None:
    member.tell()
    member.deleted.add("a")
    for validate_only in (False, True):
        member.topics.create_topics([NewTopic("a")], 3_000, member.answered, validate_only=validate_only)
        (refused,) = member.answers.pop()
        assert isinstance(refused, ProtocolError) and refused.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert refused.client_message == "Topic 'a' is marked for deletion."
    assert member.asked == []


def test_a_topic_is_deleted_by_the_controller(member: Member) -> None:
    member.tell(("a", 0, 1))
    member.topics.delete_topics(["a", "b"], 3_000, member.answered)
    ((request, answer),) = member.asked
    assert request == DeleteTopics(["a"])
    answer({"a": ErrorCode.NONE})
    assert member.answers == []
    member.tell(("a", 0, -2))
    assert [code(each) for each in member.answers[0]] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_any_member_writes_a_topic_that_is_only_named(member: Member) -> None:
    member.tell(("there", 0, 1))
    member.store.create(paths.topic_config_path("left"), b"")
    results = member.topics.ensure(["there", "new", "left", "bad name", "new"])
    assert [code(each) for each in results] == [
        ErrorCode.NONE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    for name in ("new", "left"):
        assignment = paths.decode_topic("/", member.store.get(paths.topic_path(name))[0])
        assert len(assignment.replicas) == 2
        assert member.store.get(paths.topic_config_path(name))[0] == paths.encode_config({})
    before = member.store.get(paths.topic_path("new"))
    assert [code(each) for each in member.topics.ensure(["new"])] == [ErrorCode.LEADER_NOT_AVAILABLE]
    assert member.store.get(paths.topic_path("new")) == before, "the first writer wins"


def test_internal_topics_are_sized_to_the_cluster_unless_their_size_was_given(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    member.tell()
    results = member.topics.ensure(["__consumer_offsets", "__transaction_state"])
    codes = [code(each) for each in results]
    assert codes == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.INVALID_REPLICATION_FACTOR]
    offsets = paths.decode_topic("/", member.store.get(paths.topic_path("__consumer_offsets"))[0])
    assert {len(replicas) for replicas in offsets.replicas.values()} == {2}
    assert member.store.exists(paths.topic_path("__transaction_state")) is None
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith("__consumer_offsets gets 2 of its 3 replicas")
    assert warning.endswith("kbroker reassign plan __consumer_offsets --replication-factor 3 --execute")


def test_configs_are_written_with_a_notification_and_hold_here_at_once(member: Member) -> None:
    member.tell(("a", 0, 1))
    member.host.take()
    member.topics.set_topic_configs("a", lambda topic: {**topic.configs, "retention.ms": "7"})
    assert member.topics.image.topics["a"].configs == {"retention.ms": "7"}
    assert member.host.take() == [("topic", "a", {"retention.ms": "7"})]
    (name,) = member.store.children(paths.CONFIG_CHANGES)
    data = member.store.get(f"{paths.CONFIG_CHANGES}/{name}")[0]
    assert data == b'{"version":2,"entity_path":"topics/a"}'
    with pytest.raises(ProtocolError) as refused:
        member.topics.set_topic_configs("b", lambda topic: {})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_change_of_configs_is_made_on_top_of_what_others_wrote(member: Member) -> None:
    member.tell(("a", 0, 1))
    other = member.embedded.connect()
    path = paths.topic_config_path("a")
    seen: list[Mapping[str, str]] = []

    def change(topic: Topic) -> Mapping[str, str]:
        seen.append(topic.configs)
        if len(seen) == 1:
            other.create(path, paths.encode_config({"x": "1"}))
        if len(seen) == 2:
            other.set(path, paths.encode_config({"x": "2"}))
        return {**topic.configs, "y": "3"}

    member.topics.set_topic_configs("a", change)
    assert seen == [{}, {"x": "1"}, {"x": "2"}]
    assert paths.decode_config(path, other.get(path)[0]) == {"x": "2", "y": "3"}
    assert len(other.children(paths.CONFIG_CHANGES)) == 1


def test_configs_of_others_are_applied_when_they_are_told(member: Member) -> None:
    member.tell(("a", 0, 1))
    member.host.take()
    member.store.create(paths.topic_config_path("a"), paths.encode_config({"x": "1"}))
    member.store.create(paths.broker_config_path("1"), paths.encode_config({"b": "2"}))
    member.store.create(paths.broker_config_path("<default>"), paths.encode_config({"b": "9", "c": "3"}))
    member.topics.configs_changed(["topics/a", "topics/gone", "users/u", "brokers/1", "rubbish"])
    assert member.host.take() == [("topic", "a", {"x": "1"}), ("broker", {"b": "2", "c": "3"})]
    member.store.delete(paths.broker_config_path("1"))
    member.topics.configs_changed(["brokers/1"])
    assert member.host.take() == [("broker", {"b": "9", "c": "3"})]
    member.topics.configs_changed(["brokers/7", "topics/a"])
    assert member.host.take() == [], "nothing has changed"


class Meanwhile:
    """Lets another member change configs, and this one hear of it on a thread of its own, at one moment of a test."""

    def __init__(self, member: Member, change: Callable[[], object], entity_path: str):
        self._change = change
        self._hears = threading.Thread(target=member.topics.configs_changed, args=([entity_path],))

    def happen(self) -> None:
        if self._hears.ident is None:
            self._change()
            self._hears.start()
            self._hears.join(0.2)  # it is over by then, unless it waits for what is under way

    def end(self) -> None:
        assert self._hears.ident is not None, "the moment did not come"
        self._hears.join()


def test_a_change_that_is_heard_of_while_the_metadata_comes_is_not_missed(member: Member) -> None:
    path = paths.topic_config_path("a")
    member.store.create(path, paths.encode_config({"x": "1"}))
    meanwhile = Meanwhile(
        member, lambda: member.embedded.connect().set(path, paths.encode_config({"x": "2"})), "topics/a"
    )
    get_many = member.store.get_many

    def read(wanted: Sequence[str], watcher: Watcher | None = None) -> list[Any]:
        found = get_many(wanted, watcher)
        if path in wanted:
            meanwhile.happen()
        return found

    member.store.get_many = read  # type: ignore[method-assign, assignment]
    member.tell(("a", 0, 1))
    meanwhile.end()
    assert member.topics.image.topics["a"].configs == {"x": "2"}
    assert member.host.take() == [("topics", ["a"], []), ("topic", "a", {"x": "2"})]


@pytest.mark.parametrize("entity_path", ["topics/a", "brokers/1"])
def test_the_broker_is_told_of_changes_of_configs_in_their_order(member: Member, entity_path: str) -> None:
    member.tell(("a", 0, 1))
    path = f"/config/{entity_path}"
    meanwhile = Meanwhile(
        member, lambda: member.embedded.connect().set(path, paths.encode_config({"x": "2"})), entity_path
    )
    member.host.take()
    member.host.before = meanwhile.happen
    member.store.create(path, paths.encode_config({"x": "1"}))
    member.topics.configs_changed([entity_path])
    meanwhile.end()
    assert [each[-1] for each in member.host.take()] == [{"x": "1"}, {"x": "2"}]


def test_configs_of_a_topic_that_was_made_again_while_they_were_read_are_those_of_the_new_one(member: Member) -> None:
    path = paths.topic_config_path("a")
    member.store.create(path, paths.encode_config({"x": "1"}))
    member.tell(("a", 0, 1))
    get_many = member.store.get_many

    def read(wanted: Sequence[str], watcher: Watcher | None = None) -> list[Any]:
        found = get_many(wanted, watcher)
        member.store.get_many = get_many  # type: ignore[method-assign]
        member.store.set(path, paths.encode_config({"x": "2"}))
        member.tell(("a", 0, 1), topic_id=UUID(int=78))
        return found

    member.store.set(path, paths.encode_config({"x": "of the old one"}))
    member.store.get_many = read  # type: ignore[method-assign, assignment]
    member.topics.configs_changed(["topics/a"])
    assert member.topics.image.topics["a"].configs == {"x": "2"}
    assert member.host.take()[-1] == ("topics", ["a"], ["a"])


def test_broker_configs_are_written_by_any_member(member: Member) -> None:
    member.topics.set_broker_configs("<default>", lambda current: {**current, "x": "1"})
    assert member.topics.dynamic_broker_configs() == {"x": "1"}
    assert member.host.take() == [("broker", {"x": "1"})]


def test_groups_have_configs_only_among_kbrokers(member: Member) -> None:
    kinds: list[bool] = []
    member.topics.on_kind_change(lambda: kinds.append(member.topics.only_kbrokers))
    member.topics.brokers_changed({1: "1.0", 2: "1.0"})
    member.topics.set_group_configs("g/1", lambda current: {"x": "1"})
    assert member.topics.image.group_configs == {"g/1": {"x": "1"}}
    version = member.store.get(paths.GROUP_CONFIGS)[1].version
    member.topics.set_group_configs("g/1", lambda current: {})
    assert member.topics.image.group_configs == {}
    assert member.store.get(paths.GROUP_CONFIGS)[1].version == version + 1
    assert member.store.children(paths.CONFIG_CHANGES) == [], "a Kafka would stop at a notification for a group"
    member.topics.brokers_changed({1: "1.0", 2: None})
    with pytest.raises(ProtocolError):
        member.topics.set_group_configs("g", lambda current: {"x": "1"})
    member.topics.brokers_changed({1: "1.0"})
    assert kinds == [False, True]


def test_the_log_says_when_the_first_kafka_comes_and_when_the_last_one_goes(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kbroker.cluster")

    def lines(*versions: str | None) -> list[str]:
        """Return what the log says when brokers of these versions, from 2 on, are the others."""
        caplog.clear()
        member.topics.brokers_changed(dict(enumerate(versions, 2)))
        return [record.message for record in caplog.records]

    assert lines("1.0") == []
    (line,) = lines("1.0", None)
    assert line.startswith("Apache Kafka is in the cluster (broker 3): ")
    assert lines(None, None) == []
    assert lines(None, "1.0") == []
    (line,) = lines("1.0", "1.0")
    assert line.startswith("all brokers are kbrokers: ")


def test_a_new_session_reads_all_configs_again(member: Member) -> None:
    member.tell(("a", 0, 1))
    member.host.take()
    member.store.create(paths.topic_config_path("a"), paths.encode_config({"x": "1"}))
    member.store.create(paths.broker_config_path("1"), paths.encode_config({"b": "2"}))
    member.topics.registered(member.embedded.connect(), 99)
    assert member.topics.broker_epoch == 99
    assert member.host.take() == [("broker", {"b": "2"}), ("topic", "a", {"x": "1"})]
