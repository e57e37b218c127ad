"""A consumer and a coordinator that refuses, lies, keeps silent and goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kbroker.client.assignors.assignor import Assignor, Member, Topics
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import BrokerError, ClientError, CommitFailed, TimedOut, UsageError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.group import TOPIC, GroupBroker
from tests.unit.client.consumer.conftest import Heard

SECONDS = 30.0
ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@pytest.fixture
def broker() -> Iterator[GroupBroker]:
    with GroupBroker() as started:
        yield started
        assert not started.wrongs


def consumer_of(broker: GroupBroker, **options: Any) -> Consumer:
    quick = {
        "retry_backoff_ms": 2, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 2, "reconnect_backoff_max_ms": 5,
        "heartbeat_interval_ms": 10, "fetch_max_wait_ms": 10, "group_id": "g", "auto_offset_reset": "earliest",
        "request_timeout_ms": 500,
    }  # fmt: skip
    return Consumer(bootstrap_servers=f"127.0.0.1:{broker.port}", **(quick | options))


def poll_until(consumer: Consumer, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        consumer.poll(0.01)


def poll_until_assigned(consumer: Consumer) -> None:
    poll_until(consumer, lambda: consumer.assignment() and None not in positions(consumer))


def positions(consumer: Consumer) -> list[int | None]:
    return [consumer.position(*partition) for partition in consumer.assignment()]


def code_of(raised: pytest.ExceptionInfo[Any]) -> ErrorCode:
    code: ErrorCode = raised.value.code
    return code


def becomes_a_member(consumer: Consumer, broker: GroupBroker, api: ApiKey, trouble: Any) -> Heard:
    """Join in spite of three troubles with an API, and return what the listener has heard."""
    broker.will[api].extend([trouble] * 3)
    heard = Heard()
    consumer.subscribe(TOPIC, heard)
    poll_until_assigned(consumer)
    assert positions(consumer) == [0, 0]
    assert heard.events == [("assigned", [0, 1])]
    assert not broker.will[api]
    return heard


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_FETCH])
@pytest.mark.parametrize("trouble", [*PASSING, "close"])
def test_what_passes_is_tried_again_until_it_is_a_member(broker: GroupBroker, api: ApiKey, trouble: Any) -> None:
    with consumer_of(broker) as consumer:
        becomes_a_member(consumer, broker, api, trouble)


@pytest.mark.parametrize("api", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]
)
def test_who_is_not_known_while_joining_begins_anew(broker: GroupBroker, api: ApiKey, code: int) -> None:
    broker.will[api].extend([code] * 2)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        assert consumer.group_metadata().member_id == broker.member_id
        assert consumer.group_metadata().generation_id == broker.generation


def test_a_silent_coordinator_is_given_up_after_its_time(broker: GroupBroker) -> None:
    broker.will[ApiKey.OFFSET_FETCH].append("silence")
    broker.will[ApiKey.FIND_COORDINATOR].append("silence")
    with consumer_of(broker, request_timeout_ms=100) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        broker.will[ApiKey.HEARTBEAT].append("silence")
        broker.wait(lambda: not broker.will[ApiKey.HEARTBEAT])
        beats = broker.count(ApiKey.HEARTBEAT)
        broker.wait(lambda: sum(key == ApiKey.HEARTBEAT for key, _ in broker.asked) > beats + 2)
        assert consumer.assignment() == [ZERO, ONE]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_heartbeats_tell_of_a_rebalance(broker: GroupBroker, strategy: str) -> None:
    heard = Heard()
    with consumer_of(broker, partition_assignment_strategy=strategy) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        broker.rebalance()
        poll_until(consumer, lambda: [event for event, _ in heard.events].count("assigned") == 2)
        expected = [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", [0, 1])]
        assert heard.events == (expected if strategy == "range" else [("assigned", [0, 1]), ("assigned", [])])


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_who_is_expelled_loses_what_it_has_and_comes_back(broker: GroupBroker, strategy: str) -> None:
    heard = Heard()
    with consumer_of(broker, partition_assignment_strategy=strategy) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        consumer.seek(TOPIC, 0, 7)
        broker.expel()
        poll_until(consumer, lambda: len(heard.events) == 3)
        assert heard.events == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
        assert 0 not in broker.committed
        assert consumer.group_metadata().member_id == broker.member_id


def test_commits_are_tried_again_or_fail_clearly(broker: GroupBroker) -> None:
    with consumer_of(broker, enable_auto_commit=False) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        for trouble in (*PASSING, "close", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            broker.will[ApiKey.OFFSET_COMMIT].append(trouble)
        consumer.commit({ZERO: 5})
        assert broker.committed == {0: 5}
        broker.will[ApiKey.OFFSET_COMMIT].append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        with pytest.raises(BrokerError) as refused:
            consumer.commit({ZERO: 6})
        assert (code_of(refused), refused.value.retriable) == (ErrorCode.OFFSET_METADATA_TOO_LARGE, False)
        broker.will[ApiKey.OFFSET_COMMIT].extend([ErrorCode.NOT_COORDINATOR] * 1000)
        with pytest.raises(ClientError, match="NOT_COORDINATOR") as late:
            consumer.commit({ZERO: 6}, timeout=1)
        assert late.value.retriable
        broker.will.clear()
        broker.will[ApiKey.OFFSET_COMMIT].extend(["silence"] * 1000)
        with pytest.raises(TimedOut):
            consumer.commit({ZERO: 6}, timeout=0.1)
        broker.will.clear()
        broker.expel()
        with pytest.raises(CommitFailed, match=r"group .g.* committed"):
            consumer.commit({ZERO: 6})
        assert broker.committed == {0: 5}
        poll_until(consumer, lambda: consumer.group_metadata().generation_id == broker.generation == 2)
        poll_until_assigned(consumer)
        assert consumer.position(TOPIC, 0) == 5
        consumer.commit({ZERO: 6})
        assert broker.committed == {0: 6}


def test_an_asynchronous_commit_is_made_once(broker: GroupBroker) -> None:
    told: list[Any] = []
    with consumer_of(broker, enable_auto_commit=False) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        broker.will[ApiKey.OFFSET_COMMIT].append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        done = consumer.commit_async({ZERO: 5}, lambda offsets, error: told.append((offsets, error)))
        with pytest.raises(BrokerError) as refused:
            done.result(SECONDS)
        assert refused.value.retriable
        poll_until(consumer, lambda: told)
        assert told[0][1] is refused.value
        assert broker.committed == {}


def test_a_commit_in_a_cooperative_rebalance_is_made_by_the_next_generation(broker: GroupBroker) -> None:
    with consumer_of(broker, partition_assignment_strategy="cooperative-sticky", enable_auto_commit=False) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        joining, go_on = threading.Event(), threading.Event()

        def hold(message: Any) -> Any:
            joining.set()
            assert go_on.wait(SECONDS)
            with broker._changed:
                broker._changed.notify_all()
                return broker._join_group(message, 0)

        def illegal(message: Any) -> Any:
            go_on.set()
            broker.wait(lambda: broker.generation == 2)
            return broker._offset_commit(message, 0)

        broker.will[ApiKey.JOIN_GROUP].append(hold)
        broker.will[ApiKey.OFFSET_COMMIT].append(illegal)
        broker.rebalance()
        assert joining.wait(SECONDS)
        # Neither does the join wait for a poll, nor the commit for the join.
        consumer.commit({ZERO: 3})
        assert broker.committed == {0: 3}
        assert broker.generation == 2
        commits = [message for key, message in broker.asked if key == ApiKey.OFFSET_COMMIT]
        assert [message.generation_id_or_member_epoch for message in commits][-1] == 2


def test_another_one_with_the_same_instance_id_ends_it(broker: GroupBroker) -> None:
    heard = Heard()
    with consumer_of(broker, group_instance_id="i") as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        broker.will[ApiKey.HEARTBEAT].append(ErrorCode.FENCED_INSTANCE_ID)
        for _ in range(3):
            with pytest.raises(BrokerError, match="close this one") as fenced:
                consumer.poll(SECONDS)
            assert code_of(fenced) == ErrorCode.FENCED_INSTANCE_ID
        assert broker.count(ApiKey.JOIN_GROUP) == 1
        assert heard.events == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert broker.count(ApiKey.LEAVE_GROUP) == 0


@pytest.mark.parametrize(
    "api", [ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_FETCH]
)
def test_a_refusal_for_good_is_raised_by_polls_until_it_has_passed(broker: GroupBroker, api: ApiKey) -> None:
    refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED if api == ApiKey.METADATA else ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.will[api].extend([refusal] * 10_000)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        for _ in range(2):
            with pytest.raises(BrokerError) as refused:
                poll_until_assigned(consumer)
            assert code_of(refused) == refusal
        broker.will[api].clear()
        with suppress(BrokerError):  # what was asked before
            poll_until_assigned(consumer)
        poll_until_assigned(consumer)


@pytest.mark.parametrize("api", [ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_who_subscribes_to_something_else_does_not_hear_what_was_refused(broker: GroupBroker, api: ApiKey) -> None:
    refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED if api == ApiKey.METADATA else ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.will[api].extend([refusal] * 10_000)
    tick = threading.Event()
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(BrokerError):
            poll_until(consumer, lambda: False)
        while not consumer._group.steps.are_waiting:  # type: ignore[union-attr]
            tick.wait(0.01)
        broker.will[api].clear()
        consumer.subscribe([TOPIC, "another"])
        poll_until_assigned(consumer)


def test_who_subscribes_anew_does_not_hear_what_was_refused_of_offsets(broker: GroupBroker) -> None:
    broker.will[ApiKey.OFFSET_FETCH].extend([ErrorCode.GROUP_AUTHORIZATION_FAILED] * 10_000)
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(BrokerError):
            poll_until(consumer, lambda: False)
        asked = broker.count(ApiKey.OFFSET_FETCH)
        broker.wait(lambda: sum(key == ApiKey.OFFSET_FETCH for key, _ in broker.asked) > asked + 2)
        broker.will[ApiKey.OFFSET_FETCH].clear()
        consumer.subscribe([TOPIC, "another"])
        poll_until_assigned(consumer)


def test_what_heartbeats_are_refused_for_is_raised_once(broker: GroupBroker) -> None:
    refusals = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 5
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        broker.will[ApiKey.HEARTBEAT].extend(refusals)
        beats = broker.count(ApiKey.HEARTBEAT)
        broker.wait(lambda: sum(key == ApiKey.HEARTBEAT for key, _ in broker.asked) > beats + len(refusals))
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            poll_until(consumer, lambda: False)
        for _ in refusals:
            consumer.poll(0)


def test_who_does_not_poll_leaves_and_comes_back_with_the_next_poll(broker: GroupBroker) -> None:
    heard = Heard()
    with consumer_of(broker, max_poll_interval_ms=200) as consumer:
        consumer.subscribe(TOPIC, heard)
        poll_until_assigned(consumer)
        who = consumer.group_metadata()
        broker.wait(lambda: any(key == ApiKey.LEAVE_GROUP for key, _ in broker.asked))
        joins = broker.count(ApiKey.JOIN_GROUP)
        with pytest.raises(CommitFailed):
            consumer.commit({ZERO: 1})
        # A coordinator fences this one in its transactions; who says that he is nobody may commit anything.
        assert consumer.group_metadata() == who and who.generation_id == 1
        assert heard.events == [("assigned", [0, 1])]
        assert broker.count(ApiKey.JOIN_GROUP) == joins
        poll_until(consumer, lambda: len(heard.events) == 3)
        assert consumer.group_metadata().generation_id == 2
        assert heard.events[1:] == [("lost", [0, 1]), ("assigned", [0, 1])]
        # A poll that waits is one that polls.
        leaves = broker.count(ApiKey.LEAVE_GROUP)
        consumer.poll(0.6)
        assert broker.count(ApiKey.LEAVE_GROUP) == leaves


def test_rubbish_from_the_coordinator_is_an_error_and_no_crash(broker: GroupBroker) -> None:
    def rubbish(message: Any) -> M.Message:
        return M.SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=b"\0\0\0\0\0\7")

    def foreign(message: Any) -> M.Message:
        row = M.ConsumerProtocolAssignment.TopicPartition(topic="other", partitions=[0])
        data = b"\0\0" + M.ConsumerProtocolAssignment(assigned_partitions=[row]).encode(0)
        return M.SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=data)

    broker.will[ApiKey.SYNC_GROUP].extend([rubbish, foreign])
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        assert consumer.assignment() == [ZERO, ONE]
        assert broker.count(ApiKey.SYNC_GROUP) == 3


def test_an_assignor_that_fails_says_so_in_poll(broker: GroupBroker) -> None:
    class Mine(Assignor):
        name = "mine"
        failures = 1

        def assign(self, members: Any, topics: Topics) -> Any:
            (member,) = members
            assert member == Member(member.member_id, frozenset({TOPIC}), rack="r")
            if self.failures:
                self.failures -= 1
                raise ZeroDivisionError("by design")
            return {member.member_id: [(TOPIC, 1)]}

    with consumer_of(broker, partition_assignment_strategy=[Mine()], client_rack="r") as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(UsageError, match="the assignor 'mine' failed: ZeroDivisionError"):
            consumer.poll(SECONDS)
        poll_until_assigned(consumer)
        assert consumer.assignment() == [ONE]


@pytest.mark.parametrize("silent", [True, False])
def test_close_ends_in_time_when_the_coordinator_is_gone(silent: bool) -> None:
    with GroupBroker() as broker:
        consumer = consumer_of(broker, request_timeout_ms=60_000)
        consumer.subscribe(TOPIC)
        poll_until_assigned(consumer)
        if silent:
            for api in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP, ApiKey.FIND_COORDINATOR):
                broker.will[api].extend(["silence"] * 100)
            before = time.monotonic()
            consumer.close(1)
            assert time.monotonic() - before < SECONDS / 2
    if not silent:
        before = time.monotonic()
        consumer.close(1)
        assert time.monotonic() - before < SECONDS / 2
    assert not consumer._thread.is_running


def test_what_a_listener_raises_comes_out_of_poll_and_the_group_goes_on(broker: GroupBroker) -> None:
    class Failing(Heard):
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            super().on_assigned(partitions)
            if len(self.events) == 1:
                raise ZeroDivisionError("by design")

    heard = Failing()
    with consumer_of(broker) as consumer:
        consumer.subscribe(TOPIC, heard)
        with pytest.raises(ZeroDivisionError):
            consumer.poll(SECONDS)
        poll_until_assigned(consumer)
        broker.rebalance()
        poll_until(consumer, lambda: len(heard.events) == 3)


def test_static_members_do_not_leave(broker: GroupBroker) -> None:
    consumer = consumer_of(broker, group_instance_id="i")
    consumer.subscribe(TOPIC)
    poll_until_assigned(consumer)
    consumer.close()
    assert broker.count(ApiKey.LEAVE_GROUP) == 0
    assert {message.group_instance_id for key, message in broker.asked if key == ApiKey.HEARTBEAT} <= {"i"}


def test_positions_are_looked_for_when_the_listener_has_had_its_say(broker: GroupBroker) -> None:
    asked: list[int] = []

    class Slow(Heard):
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            for _ in range(3):
                consumer.beginning_offsets(partitions)
            asked.append(broker.count(ApiKey.OFFSET_FETCH))
            consumer.seek(*ZERO, 7)

    with consumer_of(broker, enable_auto_commit=False) as consumer:
        consumer.subscribe(TOPIC, Slow())
        poll_until_assigned(consumer)
        assert asked == [0]
        assert positions(consumer) == [7, 0]
        (fetched,) = [message for key, message in broker.asked if key == ApiKey.OFFSET_FETCH]
        assert fetched.groups[0].topics[0].partition_indexes == [1]
