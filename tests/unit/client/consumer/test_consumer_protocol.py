"""A consumer of the protocol of KIP-848, and a coordinator that refuses, keeps silent and changes its mind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.client import SubscriptionPattern
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.consumer.coordinator import MOVED
from kbroker.client.errors import BrokerError, CommitFailed, UsageError
from kbroker.client.network.versions import HIGHEST
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.group import TOPIC, TOPIC_ID, GroupBroker
from tests.unit.client.consumer.conftest import Heard
from tests.unit.client.consumer.test_coordinator import (
    PASSING,
    ZERO,
    becomes_a_member,
    code_of,
    poll_until,
    poll_until_assigned,
)

BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
OUT = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


@pytest.fixture
def broker() -> Iterator[GroupBroker]:
    with GroupBroker() as started:
        yield started
        assert not started.wrongs


def consumer_of(broker: GroupBroker, **options: Any) -> Consumer:
    quick = {
        "retry_backoff_ms": 2, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 2, "reconnect_backoff_max_ms": 5,
        "fetch_max_wait_ms": 10, "group_id": "g", "auto_offset_reset": "earliest", "request_timeout_ms": 500,
        "group_protocol": "consumer",
    }  # fmt: skip
    return Consumer(bootstrap_servers=f"127.0.0.1:{broker.port}", **(quick | options))


def beat(broker: GroupBroker, wanted: Callable[[Any], bool]) -> Any:
    """The first heartbeat, come or to come, that is so; the next one tells only what has changed since."""
    broker.wait(lambda: any(map(wanted, broker.beats())))
    return next(filter(wanted, broker.beats()))


def owned(message: Any) -> list[int] | None:
    """What a heartbeat says that the member has."""
    if message.topic_partitions is None:
        return None
    return [n for row in message.topic_partitions for n in row.partitions]


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, BEAT, ApiKey.OFFSET_FETCH])
@pytest.mark.parametrize("trouble", [*PASSING, "close"])
def test_what_passes_is_tried_again_until_it_is_a_member(broker: GroupBroker, api: ApiKey, trouble: Any) -> None:
    with consumer_of(broker) as consumer:
        heard = becomes_a_member(consumer, broker, api, trouble)
        if api == BEAT and trouble in MOVED:
            assert broker.count(ApiKey.FIND_COORDINATOR) == 4
    assert heard.events[1:] == [("revoked", [0, 1])]
    assert broker.beats()[-1].member_epoch == -1


def test_heartbeats_tell_all_at_first_and_after_a_failure_else_what_has_changed(broker: GroupBroker) -> None:
    with consumer_of(broker, client_rack="r", max_poll_interval_ms=77_000, group_remote_assignor="mine") as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        broker.wait(lambda: len(broker.beats()) > 3)
        joined, acknowledged, *later = broker.beats()

        def told(message: Any) -> tuple[Any, ...]:
            return (
                message.rebalance_timeout_ms, message.rack_id, message.server_assignor, message.subscribed_topic_names,
                owned(message),
            )  # fmt: skip

        assert joined.member_epoch == 0
        assert told(joined) == (77_000, "r", "mine", [TOPIC], [])
        assert acknowledged.member_epoch == broker.generation
        assert told(acknowledged) == (-1, None, None, None, [0, 1])
        assert {told(message) for message in later} == {(-1, None, None, None, None)}
        assert {message.member_id for message in broker.beats()} == {broker.member_id}
        count = len(broker.beats())
        broker.will[BEAT].append("close")
        broker.wait(lambda: len(broker.beats()) > count + 2)
        again = next(message for message in broker.beats()[count:] if message.rebalance_timeout_ms >= 0)
        assert told(again) == (77_000, "r", "mine", [TOPIC], [0, 1])
        assert again.member_epoch == broker.generation
        consumer.subscribe(["u", TOPIC])
        beat(broker, lambda message: message.subscribed_topic_names == [TOPIC, "u"])
        assert consumer.assignment() == [(TOPIC, 0), (TOPIC, 1)]


def test_what_is_taken_away_goes_before_it_is_told_and_before_more_comes(broker: GroupBroker) -> None:
    told_when_revoked: list[bool] = []

    class Slow(Heard):
        def on_revoked(self, partitions: list[TopicPartition]) -> None:
            super().on_revoked(partitions)
            if told_when_revoked:
                return  # it is being closed
            count = len(broker.beats())
            broker.wait(lambda: len(broker.beats()) > count + 3)
            told_when_revoked.append(any(owned(message) == [1] for message in broker.beats()))
            consumer.commit({ZERO: 5})

    broker.partitions = 3
    heard = Slow()
    with consumer_of(broker, enable_auto_commit=False) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        broker.give([1, 2])
        poll_until(consumer, lambda: consumer.assignment() == [(TOPIC, 1), (TOPIC, 2)])
        assert told_when_revoked == [False]
        assert broker.committed == {0: 5}
        events = [event for event in heard.events if event != ("assigned", [])]
        assert events == [("assigned", [0, 1]), ("revoked", [0]), ("assigned", [2])]
        broker.wait(lambda: broker.owned == [1, 2])
        acknowledgements = [owned(message) for message in broker.beats() if owned(message) is not None]
        assert acknowledgements == [[], [0, 1], [1], [1, 2]]
        assert consumer.group_metadata().generation_id == broker.generation == 2


def test_news_do_not_wait_for_the_next_heartbeat(broker: GroupBroker) -> None:
    class Patient(Heard):
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            if not partitions:
                broker.wait(lambda: broker.owned == [1])

    broker.partitions = 3
    broker.heartbeat_ms = 3_600_000
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC, patient := Patient())
        poll_until_assigned(consumer)
        broker.wait(lambda: broker.owned == [0, 1])
        broker.give([1, 2])
        consumer.subscribe([TOPIC, "u"], patient)
        poll_until(consumer, lambda: consumer.assignment() == [(TOPIC, 1), (TOPIC, 2)])
        broker.wait(lambda: broker.owned == [1, 2])
        broker.expel()
        with pytest.raises(CommitFailed):
            consumer.commit({ZERO: 1})
        poll_until(consumer, lambda: consumer.group_metadata().generation_id == broker.generation)


def test_a_topic_that_a_pattern_has_found_does_not_wait_for_the_next_heartbeat(broker: GroupBroker) -> None:
    broker.heartbeat_ms = 3_600_000
    broker.will[ApiKey.METADATA].extend([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 5)
    with consumer_of(broker, metadata_max_age_ms=20) as consumer:
        consumer.subscribe(re.compile("t"))
        broker.wait(lambda: broker.beats() and broker.beats()[-1].subscribed_topic_names == [TOPIC])
        assert broker.beats()[0].subscribed_topic_names == []


@pytest.mark.parametrize("code", OUT)
def test_who_is_expelled_loses_what_it_has_and_comes_back(broker: GroupBroker, code: ErrorCode) -> None:
    heard = Heard()
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        consumer.seek(TOPIC, 0, 7)
        broker.will[BEAT].append(code)
        poll_until(consumer, lambda: len(heard.events) == 3)
        assert heard.events == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
        assert 0 not in broker.committed
        assert consumer.group_metadata().generation_id == broker.generation == 2
        assert [message.member_epoch for message in broker.beats()].count(0) == 2


def test_a_commit_with_an_old_epoch_is_made_with_the_new_one(broker: GroupBroker) -> None:
    with consumer_of(broker, enable_auto_commit=False) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        broker.will[ApiKey.OFFSET_COMMIT].append(ErrorCode.STALE_MEMBER_EPOCH)
        broker.generation = broker.member_epoch = 5
        consumer.commit({ZERO: 3})
        assert broker.committed == {0: 3}
        commits = [message for key, message in broker.asked if key == ApiKey.OFFSET_COMMIT]
        assert [message.generation_id_or_member_epoch for message in commits][-1] == 5
        broker.expel()
        with pytest.raises(CommitFailed):
            consumer.commit({ZERO: 6})
        poll_until(consumer, lambda: consumer.group_metadata().generation_id == 6)
        poll_until_assigned(consumer)
        assert consumer.position(TOPIC, 0) == 3


def test_offsets_are_asked_for_as_a_member_again_when_the_epoch_was_old(broker: GroupBroker) -> None:
    broker.will[ApiKey.OFFSET_FETCH].append(ErrorCode.STALE_MEMBER_EPOCH)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        asked = [message.groups[0] for key, message in broker.asked if key == ApiKey.OFFSET_FETCH]
        assert {(group.member_id, group.member_epoch) for group in asked} == {(broker.member_id, 1)}
        assert len(asked) == 2


def test_another_one_with_the_same_instance_id_ends_it(broker: GroupBroker) -> None:
    heard = Heard()
    with consumer_of(broker, group_instance_id="i") as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        broker.will[BEAT].append(ErrorCode.FENCED_INSTANCE_ID)
        for _ in range(3):
            with pytest.raises(BrokerError, match="close this one") as fenced:
                poll_until(consumer, lambda: False)
            assert code_of(fenced) == ErrorCode.FENCED_INSTANCE_ID
        assert heard.events == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert {message.instance_id for message in broker.beats()} == {"i"}
    assert all(message.member_epoch >= 0 for message in broker.beats())


def test_static_members_say_that_they_come_back(broker: GroupBroker) -> None:
    with consumer_of(broker, group_instance_id="i") as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
    assert broker.beats()[-1].member_epoch == -2


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "administrator"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "limited"),
        (ErrorCode.UNRELEASED_INSTANCE_ID, "close that one"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, r"group\.remote\.assignor"),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, "RE2"),
        (ErrorCode.UNSUPPORTED_VERSION, r"group\.protocol=classic"),
    ],
)
def test_a_refusal_for_good_is_raised_by_poll_and_tried_again_later(
    broker: GroupBroker, code: ErrorCode, hint: str
) -> None:
    broker.will[BEAT].extend([code] * 2)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        for _ in range(2):
            with pytest.raises(BrokerError, match=f"by design.*{hint}") as refused:
                poll_until_assigned(consumer)
            assert code_of(refused) == code
        poll_until_assigned(consumer)


def test_a_member_that_is_refused_for_good_has_lost_what_it_has(broker: GroupBroker) -> None:
    heard = Heard()
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        consumer.seek(TOPIC, 0, 7)
        broker.will[BEAT].append(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="administrator"):
            poll_until(consumer, lambda: False)
        assert heard.events == [("assigned", [0, 1]), ("lost", [0, 1])]
        poll_until_assigned(consumer)
        assert [message.member_epoch for message in broker.beats()].count(0) == 2
        assert 0 not in broker.committed


def test_a_topic_that_one_may_not_have_is_asked_for_again_even_if_nobody_polls(broker: GroupBroker) -> None:
    heard = Heard()
    refusals = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 5
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        broker.will[BEAT].extend(refusals)
        broker.wait(lambda: not broker.will[BEAT])
        count = len(broker.beats())
        broker.wait(lambda: len(broker.beats()) > count)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            poll_until(consumer, lambda: False)
        for _ in range(5):
            consumer.poll(0)
        assert heard.events == [("assigned", [0, 1])]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REGULAR_EXPRESSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_who_subscribes_to_something_else_does_not_hear_what_was_refused(broker: GroupBroker, code: ErrorCode) -> None:
    broker.will[BEAT].append(code)
    with consumer_of(broker) as consumer:
        consumer.subscribe(SubscriptionPattern("wrong"))
        broker.wait(lambda: not broker.will[BEAT])
        consumer.committed([ZERO])  # by now the answer has been read
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)


def test_a_broker_without_the_protocol_is_a_clear_error(broker: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HIGHEST, BEAT, -1)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(BrokerError, match=r"ConsumerGroupHeartbeat.*set group\.protocol=classic"):
            poll_until_assigned(consumer)


def epochs(broker: GroupBroker) -> list[int]:
    return [message.member_epoch for message in broker.beats()]


def test_who_does_not_poll_leaves_and_comes_back_with_the_next_poll(broker: GroupBroker) -> None:
    heard = Heard()
    with consumer_of(broker, max_poll_interval_ms=200) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        broker.wait(lambda: epochs(broker)[-1] == -1)
        before, joins = list(heard.events), epochs(broker).count(0)
        with pytest.raises(CommitFailed):
            consumer.commit({ZERO: 1})
        assert heard.events == before
        assert epochs(broker).count(0) == joins
        poll_until(consumer, lambda: len(heard.events) >= len(before) + 2)
        assert heard.events[len(before) :][:2] == [("lost", [0, 1]), ("assigned", [0, 1])]

        def waits_and_stays() -> bool:
            leaves = epochs(broker).count(-1)
            consumer.poll(0.6)
            return epochs(broker).count(-1) == leaves

        # A poll that waits is one that polls. On a busy machine there may be as long between two.
        assert any(waits_and_stays() for _ in range(5))


def test_who_has_nothing_and_does_not_poll_stays_away_too(broker: GroupBroker) -> None:
    broker.target = []
    heard = Heard()
    with consumer_of(broker, max_poll_interval_ms=200) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until(consumer, lambda: heard.events)
        broker.wait(lambda: epochs(broker)[-1] == -1)
        before, joins = len(heard.events), epochs(broker).count(0)
        for _ in range(20):
            consumer.committed([ZERO])
        assert epochs(broker).count(0) == joins
        poll_until(consumer, lambda: len(heard.events) > before)
        assert set(map(str, heard.events)) == {"('assigned', [])"}


def test_a_topic_that_is_not_known_yet_is_looked_for(broker: GroupBroker) -> None:
    broker.target_id = b"of another topic"
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        asked = [[b"of another topic"]] * 3

        def looked_for() -> list[list[bytes]]:
            rows = [message.topics or [] for key, message in broker.asked if key == ApiKey.METADATA]
            return [[row.topic_id for row in each] for each in rows if any(row.name is None for row in each)]

        poll_until(consumer, lambda: looked_for()[:3] == asked)
        assert consumer.assignment() == []
        broker.target_id = TOPIC_ID
        broker.give([0, 1])
        broker.given = None
        poll_until_assigned(consumer)


def test_the_coordinator_matches_patterns_of_re2(broker: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with consumer_of(broker) as consumer:
        consumer.subscribe(SubscriptionPattern("t.*"))
        assert consumer.subscription() == SubscriptionPattern("t.*")
        poll_until_assigned(consumer)
        assert broker.beats()[0].subscribed_topic_regex == "t.*"
        assert broker.beats()[0].subscribed_topic_names == []
        consumer.subscribe(TOPIC)
        assert beat(broker, lambda message: message.subscribed_topic_regex == "").subscribed_topic_names == [TOPIC]
        consumer.subscribe(re.compile("t.*"))
        count = broker.count(BEAT)
        broker.wait(lambda: broker.count(BEAT) > count + 2)
        assert broker.beats()[-1].subscribed_topic_regex is None
    monkeypatch.setitem(HIGHEST, BEAT, 0)
    with consumer_of(broker) as consumer:
        consumer.subscribe(SubscriptionPattern("t.*"))
        with pytest.raises(UsageError, match="subscribe to a compiled one"):
            poll_until_assigned(consumer)


def test_a_member_of_the_first_version_is_given_its_id(broker: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HIGHEST, BEAT, 0)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        assert broker.beats()[0].member_id == ""
        assert consumer.group_metadata().member_id == broker.member_id


def test_options_of_the_other_protocol_are_refused() -> None:
    for name in ("session_timeout_ms", "heartbeat_interval_ms"):
        with pytest.raises(ValueError, match=name.replace("_", ".") + r" cannot be set with group\.protocol=consumer"):
            Consumer(group_protocol="consumer", **{name: 6000})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"partition\.assignment\.strategy cannot be set"):
        Consumer({"group.protocol": "CONSUMER", "partition.assignment.strategy": "range"})
    with pytest.raises(ValueError, match=r"group\.remote\.assignor cannot be set with group\.protocol=classic"):
        Consumer(group_remote_assignor="uniform")
    classic = Consumer(group_id="g", bootstrap_servers="127.0.0.1:1")
    with classic, pytest.raises(UsageError, match=r"set group\.protocol=consumer"):
        classic.subscribe(SubscriptionPattern("t.*"))
    with pytest.raises(ValueError, match="a string that is not empty"):
        SubscriptionPattern("")
