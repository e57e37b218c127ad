"""Where reading begins when some leaders do not answer, and what polls say of what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import AuthenticationFailed, BrokerError
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import Record
from tests.kit.brokers import answers
from tests.kit.brokers.fetch import FetchBroker
from tests.kit.brokers.process import free_port
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker
from tests.kit.models.consumer import Log, LogBatch
from tests.kit.parts.processors import wait_until

SECONDS = 30.0
TOPIC = "t"


class Leaders:
    """Two brokers: 1 leads partition 0, 2 leads partition 1, and each has a record."""

    def __init__(self) -> None:
        self.topic_error = 0
        self.errors: dict[int, int] = {}  # of ListOffsets, by partition
        self.left_out: set[int] = set()  # what it does not answer
        self.asked: list[int] = []  # partitions whose offsets were asked for
        self.sasl_error = 0
        self.logins = 0
        self.logs = {(TOPIC, n): Log([LogBatch(0, 0, (Record(0, 5, None, b"%d" % n),))]) for n in range(2)}
        self.brokers = [ScriptedBroker(self.script), ScriptedBroker(self.script)]
        self.ports = [broker.port for broker in self.brokers]  # where they are said to be

    def script(self, peer: Peer) -> None:
        fetch = FetchBroker(self.logs, 12, sessions=False)
        for asked in peer.requests():
            peer.respond(asked, self.answer(asked, fetch))

    def answer(self, asked: Asked, fetch: FetchBroker) -> M.Message:
        message: Any = asked.message
        if asked.api_key == ApiKey.METADATA:
            return self.describe()
        if asked.api_key == ApiKey.LIST_OFFSETS:
            return self.tell_offsets(message)
        if asked.api_key == ApiKey.SASL_HANDSHAKE:
            return M.SaslHandshakeResponse(mechanisms=["PLAIN"])
        if asked.api_key == ApiKey.SASL_AUTHENTICATE:
            self.logins += 1
            return M.SaslAuthenticateResponse(error_code=self.sasl_error, error_message="wrong")
        assert asked.api_key == ApiKey.FETCH
        return fetch.answer(message)  # type: ignore[no-any-return]

    def describe(self) -> M.Message:
        leaders = [] if self.topic_error else [1, 2]
        topic = answers.topic(TOPIC, leaders, leader_epoch=0, error_code=self.topic_error)
        return answers.metadata(dict(enumerate(self.ports, 1)), [topic])

    def tell_offsets(self, message: Any) -> M.Message:
        R = M.ListOffsetsResponse
        asked = [each.partition_index for each in message.topics[0].partitions]
        self.asked += asked
        rows = [
            R.ListOffsetsPartitionResponse(partition_index=n, error_code=self.errors.get(n, 0), offset=0)
            for n in asked
            if n not in self.left_out
        ]
        return R(topics=[R.ListOffsetsTopicResponse(name=TOPIC, partitions=rows)])


@pytest.fixture
def leaders() -> Iterator[Leaders]:
    made = Leaders()
    with ExitStack() as stack:
        for broker in made.brokers:
            stack.enter_context(broker)
        yield made


@pytest.fixture
def consumer_of(leaders: Leaders) -> Iterator[Callable[..., Consumer]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Consumer:
            quick = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "fetch_max_wait_ms": 5}
            consumer = Consumer(
                bootstrap_servers=f"127.0.0.1:{leaders.ports[0]}", auto_offset_reset="earliest", **(quick | options)
            )
            consumer.assign([(TOPIC, 0), (TOPIC, 1)])
            return stack.enter_context(consumer)

        yield make


def first_value(consumer: Consumer) -> bytes | None:
    deadline = time.monotonic() + SECONDS
    while not (records := consumer.poll(1.0, 1)):
        assert time.monotonic() < deadline
    return records[0].value


def test_partitions_of_a_leader_that_is_away_hold_nobody_up(
    leaders: Leaders, consumer_of: Callable[..., Consumer]
) -> None:
    leaders.ports[1] = free_port()
    assert first_value(consumer_of()) == b"0"


def test_what_a_leader_refuses_or_forgets_holds_nobody_up(
    leaders: Leaders, consumer_of: Callable[..., Consumer]
) -> None:
    leaders.errors[1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    consumer = consumer_of()
    assert first_value(consumer) == b"0"
    leaders.errors.clear()
    leaders.left_out.add(1)
    asked = leaders.asked.count(1)
    wait_until(lambda: leaders.asked.count(1) > asked + 2, "it is asked for again", SECONDS)
    assert consumer.position(TOPIC, 1) is None
    leaders.left_out.clear()
    assert first_value(consumer) == b"1"


def test_what_will_not_pass_is_raised_by_polls_until_it_has_passed(
    leaders: Leaders, consumer_of: Callable[..., Consumer]
) -> None:
    leaders.errors[1] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    consumer = consumer_of(retry_backoff_ms=50, retry_backoff_max_ms=50)
    assert _value_at_last(consumer) == b"0"
    for _ in range(2):
        with pytest.raises(BrokerError, match="t-1: TOPIC_AUTHORIZATION_FAILED"):
            first_value(consumer)
    leaders.errors.clear()
    assert _value_at_last(consumer) == b"1"


def test_a_topic_that_is_refused_is_said_to_be(leaders: Leaders, consumer_of: Callable[..., Consumer]) -> None:
    leaders.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    consumer = consumer_of()
    for _ in range(2):
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            first_value(consumer)
    leaders.topic_error = 0
    assert _value_at_last(consumer) in (b"0", b"1")


def test_a_wrong_password_is_said_by_polls(leaders: Leaders, consumer_of: Callable[..., Consumer]) -> None:
    leaders.sasl_error = ErrorCode.SASL_AUTHENTICATION_FAILED
    consumer = consumer_of(security_protocol="SASL_PLAINTEXT", sasl_username="ann", sasl_password="wrong")
    for _ in range(2):
        with pytest.raises(AuthenticationFailed, match="wrong"):
            first_value(consumer)


def test_what_was_refused_is_not_raised_once_something_else_is_assigned(
    leaders: Leaders, consumer_of: Callable[..., Consumer]
) -> None:
    leaders.sasl_error = ErrorCode.SASL_AUTHENTICATION_FAILED
    consumer = consumer_of(security_protocol="SASL_PLAINTEXT", sasl_username="ann", sasl_password="wrong")
    with pytest.raises(AuthenticationFailed):
        first_value(consumer)
    attempts = leaders.logins
    wait_until(lambda: leaders.logins > attempts + 2, "it is tried again", SECONDS)  # so a refusal waits
    leaders.sasl_error = 0
    consumer.assign([(TOPIC, 1)])
    assert first_value(consumer) == b"1"


def _value_at_last(consumer: Consumer) -> bytes | None:
    """An error that waits from before may come first."""
    for _ in range(5):
        try:
            return first_value(consumer)
        except BrokerError:
            pass
    raise AssertionError
