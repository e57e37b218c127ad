"""Groups of the consumer protocol (KIP-848), as far as they differ from groups of the classic protocol."""

from __future__ import annotations

import re

import pytest

from kbroker.client import AdminClient, RebalanceListener, SubscriptionPattern
from kbroker.client.errors import BrokerError, CommitFailed
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.features import CONSUMER_GROUPS
from tests.client_suite.suite_broker import SECONDS, SuiteBroker
from tests.client_suite.test_groups import QUICK, Members, produce

NEW = {"group_protocol": "consumer"}


@pytest.fixture(autouse=True)
def served(broker: SuiteBroker) -> None:
    broker.need(CONSUMER_GROUPS)


class Had(RebalanceListener):
    """The partitions that a member has had without a break since it first had them."""

    def __init__(self) -> None:
        self.always: set[TopicPartition] = set()
        self.gone: set[TopicPartition] = set()

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.always |= set(partitions) - self.gone

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.gone |= set(partitions)
        self.always -= self.gone


def shares(members: Members) -> list[int]:
    return sorted(len(each.assignment()) for each in members.consumers)


def test_who_keeps_a_partition_is_not_without_it(broker: SuiteBroker) -> None:
    """Three members join one by one, and two leave."""
    topic, group = broker.new_topic(6), broker.unique("group")
    had, members = Had(), Members()
    with broker.consumer(group_id=group, **NEW) as first:
        members.consumers = [first]
        first.subscribe([topic], had)
        with broker.consumer(group_id=group, **NEW) as second, broker.consumer(group_id=group, **NEW) as third:
            for consumer, wanted in ((first, [6]), (second, [3, 3]), (third, [2, 2, 2])):
                if consumer is not first:
                    members.consumers.append(consumer)
                    consumer.subscribe([topic])
                # An assignment can be seen before the poll that tells the listener of it.
                members.poll_until(lambda: shares(members) == wanted and had.always == set(first.assignment()))  # noqa: B023
            produce(broker, topic, [b"%d" % number for number in range(100)])
            members.poll_until(lambda: len(members.values) >= 100)
            kept = set(had.always)
        members.consumers = [first]
        members.poll_until(lambda: shares(members) == [6])
        assert had.always == kept
    assert sorted(members.values, key=lambda each: int(each or b"")) == [b"%d" % number for number in range(100)]


def test_a_static_member_comes_back_to_what_it_had_and_its_name_is_its_own(
    broker: SuiteBroker, admin: AdminClient
) -> None:
    topic, group = broker.new_topic(2), broker.unique("group")
    options = {"group_id": group, **NEW}
    members, had = Members(), Had()
    with broker.consumer(group_instance_id="stays", **options) as stays:
        second = broker.consumer(group_instance_id="returns", **options)
        members.consumers = [stays, second]
        stays.subscribe([topic], had)
        second.subscribe([topic])
        members.poll_until(lambda: shares(members) == [1, 1])
        before = second.assignment()
        second.close()
        assert {each.instance_id for each in admin.describe_group(group).members} == {"stays", "returns"}
        with broker.consumer(group_instance_id="returns", **options) as again:
            members.consumers = [stays, again]
            again.subscribe([topic])
            members.poll_until(lambda: shares(members) == [1, 1])
            assert again.assignment() == before
            assert had.always == set(stays.assignment())
            with broker.consumer(group_instance_id="returns", **options) as impostor:
                members.consumers = [impostor]
                impostor.subscribe([topic])
                with pytest.raises(BrokerError, match="close that one") as raised:
                    members.poll_until(lambda: False)
                assert raised.value.code == ErrorCode.UNRELEASED_INSTANCE_ID
            members.consumers = [stays, again]
            produce(broker, topic, [b"1", b"2"])
            members.poll_until(lambda: len(members.values) == 2)


def test_members_commit_and_others_may_not(broker: SuiteBroker, admin: AdminClient) -> None:
    topic, group = broker.new_topic(2), broker.unique("group")
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    produce(broker, topic, [b"1", b"2"])
    members = Members()
    with broker.consumer(group_id=group, enable_auto_commit=False, **NEW) as member:
        members.consumers = [member]
        member.subscribe([topic])
        members.poll_until(lambda: len(members.values) == 2)
        member.commit()
        assert {at: each.offset for at, each in admin.committed(group, both).items()} == dict.fromkeys(both, 1)
        with broker.consumer(group_id=group, **NEW) as stranger, pytest.raises(CommitFailed):
            stranger.commit({both[0]: 2})
        with broker.producer(transactional_id=broker.unique("moves")) as producer:
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
            producer.send_offsets_to_transaction({both[0]: 7}, member.group_metadata(), SECONDS)
            producer.commit_transaction(SECONDS)
        committed = member.committed(both)
        assert [each.offset if each else None for each in committed.values()] == [7, 1]
        found = admin.describe_group(group)
        assert (found.state, found.group_type, found.assignor) == ("Stable", "consumer", "uniform")
        assert [sorted(each.partitions) for each in found.members] == [both]
        assert [each.epoch for each in found.members] == [member.group_metadata().generation_id]


@pytest.mark.parametrize("by_broker", [True, False])
def test_a_pattern_follows_the_topics_that_it_matches(broker: SuiteBroker, by_broker: bool) -> None:
    word = broker.unique("matched")
    expression = word + "-(a|later).*"
    first, _ = broker.new_topic(2, word=word + "-a"), broker.new_topic(2, word=word + "-b")
    members = Members()
    with broker.consumer(group_id=broker.unique("group"), metadata_max_age_ms=300, **NEW) as consumer:
        members.consumers = [consumer]
        consumer.subscribe(SubscriptionPattern(expression) if by_broker else re.compile(expression))
        members.poll_until(lambda: {at.topic for at in consumer.assignment()} == {first})
        later = broker.new_topic(2, word=word + "-later")
        members.poll_until(lambda: {at.topic for at in consumer.assignment()} == {first, later})
        consumer.subscribe([later])
        members.poll_until(lambda: {at.topic for at in consumer.assignment()} == {later})


def test_what_is_no_pattern_is_refused(broker: SuiteBroker) -> None:
    topic = broker.new_topic(1)
    members = Members()
    with broker.consumer(group_id=broker.unique("group"), **NEW) as consumer:
        members.consumers = [consumer]
        consumer.subscribe(SubscriptionPattern("("))
        with pytest.raises(BrokerError, match="RE2") as raised:
            members.poll_until(lambda: False)
        assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
        consumer.subscribe([topic])
        members.poll_until(lambda: len(consumer.assignment()) == 1)


def test_a_group_moves_to_the_new_protocol_while_it_works(broker: SuiteBroker, admin: AdminClient) -> None:
    """The members change to the new protocol one by one, and back."""
    topic, group = broker.new_topic(4), broker.unique("moving")
    members = Members()
    sent = 0

    def share(wanted: list[int], group_type: str) -> None:
        nonlocal sent
        members.poll_until(lambda: shares(members) == wanted)
        assert admin.describe_group(group).group_type == group_type
        produce(broker, topic, [b"%d" % number for number in range(sent, sent + 100)])
        sent += 100
        members.poll_until(lambda: len(members.values) >= sent)

    old = {"group_id": group, "enable_auto_commit": True, **QUICK}
    new = {"group_id": group, "enable_auto_commit": True, **NEW}
    with broker.consumer(**old) as first:
        members.consumers = [first]
        first.subscribe([topic])
        share([4], "classic")
        with broker.consumer(**new) as second:
            members.consumers = [first, second]
            second.subscribe([topic])
            share([2, 2], "consumer")
            first.unsubscribe()
            members.consumers = [second]
            share([4], "consumer")
            members.consumers = [second, first]
            first.subscribe([topic])
            share([2, 2], "consumer")
        members.consumers = [first]
        share([4], "classic")
    assert sorted(members.values, key=lambda each: int(each or b"")) == [b"%d" % number for number in range(sent)]
