"""Groups of consumers on kbroker, by the classic protocol; what both protocols do alike by both."""

from __future__ import annotations

import re

import pytest

from kbroker.client.consumer.consumer import Consumer
from kbroker.client.consumer.membership import SubscriptionPattern
from kbroker.client.consumer.offsets import OffsetAndMetadata
from kbroker.client.errors import UsageError
from kbroker.client.network.versions import HIGHEST
from kbroker.model import TopicPartition
from kbroker.protocol.api import ApiKey
from tests.unit.client.consumer.conftest import Heard, MakeMembers

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize("strategy", [None, *STRATEGIES, "uniform"])
def test_members_share_a_topic_while_they_come_and_go(members_of: MakeMembers, strategy: str | None) -> None:
    members = members_of(4)
    options = {"partition_assignment_strategy": strategy}
    if strategy == "uniform":
        options = {"group_protocol": "consumer"}
    for partition in range(4):
        members.append(partition, [b"%d %d" % (partition, number) for number in range(100)])
    first = members.join(**options)
    members.poll_until(lambda: len(members.records) == 400)
    assert members.shares() == [[0, 1, 2, 3]]
    members.join(**options)
    assert [len(share) for share in members.settle(4)] == [2, 2]
    for partition in range(4):
        members.append(partition, [b"%d later" % partition])
    members.poll_until(lambda: len(members.records) == 404)
    members.close(first)
    assert members.settle(4) == [[0, 1, 2, 3]]
    for partition in range(4):
        members.append(partition, [b"%d last" % partition])
    members.poll_until(lambda: len(members.records) >= 408)
    # Nothing twice: whoever gave a partition up has committed what was handed out.
    assert sorted(members.values()) == sorted(set(members.values()))
    assert len(members.records) == 408


def test_a_listener_is_told_and_may_seek_and_commit(members_of: MakeMembers, protocol: str) -> None:
    members = members_of(2)
    members.append(0, [b"a", b"b", b"c"])
    members.append(1, [b"d", b"e", b"f"])

    class Seeking(Heard):
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            super().on_assigned(partitions)
            for partition in partitions:
                consumer.seek(*partition, 1)

        def on_revoked(self, partitions: list[TopicPartition]) -> None:
            super().on_revoked(partitions)
            positions = {each: OffsetAndMetadata(consumer.position(*each) or 0, "by hand") for each in partitions}
            consumer.commit(positions)

    heard = Seeking()
    consumer = members.join(heard, group_protocol=protocol, enable_auto_commit=False)
    members.poll_until(lambda: len(members.records) == 4)
    assert sorted(members.values()) == [b"b", b"c", b"e", b"f"]
    members.close(consumer)
    assert heard.events == [("assigned", [0, 1]), ("revoked", [0, 1])]
    asking = members.consumer()
    assert asking.committed([(members.topic, 0), (members.topic, 1)]) == {
        (members.topic, 0): OffsetAndMetadata(3, "by hand"),
        (members.topic, 1): OffsetAndMetadata(3, "by hand"),
    }


def test_what_is_committed_is_where_others_go_on(members_of: MakeMembers, protocol: str) -> None:
    members = members_of(2)
    members.append(0, [b"a", b"b", b"c"])
    partition = TopicPartition(members.topic, 0)
    consumer = members.join(group_protocol=protocol, enable_auto_commit=False)
    members.poll_until(lambda: len(members.records) == 3)
    assert consumer.committed([partition]) == {partition: None}
    consumer.commit()
    assert consumer.committed([partition]) == {partition: OffsetAndMetadata(3, leader_epoch=0)}
    called: list[object] = []
    done = consumer.commit_async({partition: 2}, lambda offsets, error: called.append((offsets, error)))
    done.result(30)
    members.poll_until(lambda: called)
    assert called == [({partition: OffsetAndMetadata(2)}, None)]
    members.close(consumer)
    by_hand = members.consumer(enable_auto_commit=False)
    by_hand.assign([partition])
    members.records.clear()
    members.poll_until(lambda: members.records)
    assert members.values() == [b"c"]
    by_hand.commit()
    assert by_hand.committed([partition]) == {partition: OffsetAndMetadata(3, leader_epoch=0)}


def test_a_pattern_follows_the_topics_that_it_matches(members_of: MakeMembers, protocol: str) -> None:
    members = members_of(1)
    consumer = members.consumer(group_protocol=protocol, metadata_max_age_ms=50)
    consumer.subscribe(re.compile(re.escape(members.topic) + "(-more)?"))
    members.append(0, [b"first"])
    members.poll_until(lambda: members.values() == [b"first"])
    for name in (members.topic + "-more", members.topic + "-more-than-that"):
        members.broker.create_topic(name, 1)
        members.append(0, [b"in " + name.encode()], name)
    members.poll_until(lambda: len(members.records) == 2)
    assert members.values()[1] == b"in %b-more" % members.topic.encode()
    assert {topic for topic, _ in consumer.assignment()} == {members.topic, members.topic + "-more"}


def test_a_topic_that_grows_or_comes_later_is_shared_anew(members_of: MakeMembers, protocol: str) -> None:
    members = members_of(2)
    for _ in range(2):
        members.join(group_protocol=protocol, metadata_max_age_ms=50, allow_auto_create_topics=False)
    members.settle(2)
    members.grow(4)
    assert [len(share) for share in members.settle(4)] == [2, 2]
    for consumer in members.alive:
        consumer.subscribe(members.topic + "-later")
    members.poll_until(lambda: not any(members.shares()))
    members.broker.create_topic(members.topic + "-later", 2)
    members.settle(2)
    assert {topic for consumer in members.alive for topic, _ in consumer.assignment()} == {members.topic + "-later"}


def test_misuse_is_refused_with_the_reason(members_of: MakeMembers) -> None:
    members = members_of(1)
    consumer = members.join()
    with pytest.raises(UsageError, match="unsubscribe first"):
        consumer.assign([(members.topic, 0)])
    consumer.unsubscribe()
    assert consumer.subscription() is None
    consumer.assign([(members.topic, 0)])
    with pytest.raises(UsageError, match="unsubscribe first"):
        consumer.subscribe(members.topic)
    with pytest.raises(ValueError, match="names, or a compiled pattern"):
        consumer.subscribe([])
    with pytest.raises(ValueError, match=r"partition.assignment.strategy='rang': must be .*range, roundrobin"):
        members.consumer(partition_assignment_strategy="rang")
    alone = members.consumer(group_id=None)
    for call in (lambda: alone.subscribe("t"), alone.commit, lambda: alone.committed([("t", 0)]), alone.group_metadata):
        with pytest.raises(UsageError, match=r"set group\.id"):
            call()


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_the_group_apis_is_spoken(
    members_of: MakeMembers, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """With the versions of brokers since Kafka 0.9, whose offsets are no longer in ZooKeeper."""
    lowest = {ApiKey.OFFSET_COMMIT: 2, ApiKey.OFFSET_FETCH: 1}
    group_apis = (
        ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    )  # fmt: skip
    for api in group_apis:
        monkeypatch.setitem(HIGHEST, api, max(version, lowest.get(api, 0)))
    members = members_of(2)
    for partition in range(2):
        members.append(partition, [b"%d" % partition])
    first = members.join()
    members.poll_until(lambda: len(members.records) == 2)
    members.join()
    members.settle(2)
    (mine,) = first.assignment()
    first.commit({mine: OffsetAndMetadata(1, "text", 0)})
    assert first.committed([mine]) == {mine: OffsetAndMetadata(1, "text", 0 if version >= 6 else -1)}
    members.close(first)
    members.settle(2)
    assert len(members.records) == 2


@pytest.mark.parametrize("by_hand", [True, False])
def test_closing_commits_what_was_handed_out_unless_after_an_exception(members_of: MakeMembers, by_hand: bool) -> None:
    members = members_of(1)
    partition = TopicPartition(members.topic, 0)
    members.append(0, [b"a", b"b", b"c"])

    def read(consumer: Consumer, count: int) -> None:
        if by_hand:
            consumer.assign([partition])
        else:
            consumer.subscribe(members.topic)
        found = 0
        while found < count:
            found += len(consumer.poll(30, count - found))

    asking = members.consumer(group_id=members.group_id)
    with pytest.raises(ZeroDivisionError), members.consumer() as consumer:
        members.alive.remove(consumer)
        read(consumer, 2)
        raise ZeroDivisionError
    assert asking.committed([partition]) == {partition: None}
    with members.consumer() as consumer:
        members.alive.remove(consumer)
        read(consumer, 2)
    assert asking.committed([partition]) == {partition: OffsetAndMetadata(2, leader_epoch=0)}


def test_polls_commit_what_earlier_ones_have_handed_out(members_of: MakeMembers, protocol: str) -> None:
    members = members_of(1)
    partition = TopicPartition(members.topic, 0)
    members.append(0, [b"a", b"b", b"c"])
    consumer = members.join(group_protocol=protocol, auto_commit_interval_ms=0)
    for number in (1, 2, 3):
        while not consumer.poll(30, 1):
            pass
        (found,) = consumer.committed([partition]).values()
        assert found is None or found.offset <= number - 1
    members.poll_until(lambda: consumer.committed([partition])[partition] == OffsetAndMetadata(3, leader_epoch=0))


def test_the_broker_matches_a_pattern(members_of: MakeMembers) -> None:
    members = members_of(1)
    consumer = members.consumer(group_protocol="consumer")
    consumer.subscribe(SubscriptionPattern(members.topic + "(-more)?"))
    members.append(0, [b"first"])
    members.poll_until(lambda: members.values() == [b"first"])
    assert consumer.assignment() == [(members.topic, 0)]


def test_what_is_no_subscription_is_refused_at_the_call(members_of: MakeMembers) -> None:
    consumer = members_of(1).consumer()
    with pytest.raises(ValueError, match=r"'\^a\.\*' is no topic's name; give a pattern as re\.compile\('\^a\.\*'\)"):
        consumer.subscribe("^a.*")
    with pytest.raises(TypeError, match="names or a compiled pattern, not 5"):
        consumer.subscribe(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="listener must be a RebalanceListener, not <built-in function print>"):
        consumer.subscribe("a", print)  # type: ignore[arg-type]
    assert consumer.subscription() is None
