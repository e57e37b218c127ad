"""What a caller is told when the controller does not do in time what it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.errors import BrokerError, ClientError, TimedOut
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers import answers
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker

TIME_MS = 1000
CALLS: list[tuple[str, Callable[[AdminClient], Any]]] = [
    ("CreateTopics", lambda admin: admin.create_topic("late")),
    ("DeleteTopics", lambda admin: admin.delete_topics(["late"])),
    ("CreatePartitions", lambda admin: admin.create_partitions("late", 4)),
    ("ElectLeaders", lambda admin: admin.elect_leaders([("late", 0)])),
    (
        "AlterPartitionReassignments",
        lambda admin: admin.alter_partition_reassignments({TopicPartition("late", 0): [1]}),
    ),
]


def failure(answer: Callable[[Peer, Asked], None], call: Callable[[AdminClient], Any]) -> tuple[ClientError, int]:
    """Return the error of a call to broker 7, the controller, that answers so, and its port."""

    def script(peer: Peer) -> None:
        for asked in peer.requests():
            if asked.api_key == ApiKey.METADATA:
                peer.respond(asked, answers.metadata({7: broker.port}, []))
            else:
                answer(peer, asked)

    broker = ScriptedBroker(script)
    with (
        broker,
        AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}", default_api_timeout_ms=TIME_MS) as admin,
        pytest.raises(ClientError) as raised,
    ):
        call(admin)
    return raised.value, broker.port


@pytest.mark.parametrize(("api", "call"), CALLS)
def test_a_controller_that_does_not_answer_is_named(api: str, call: Callable[[AdminClient], Any]) -> None:
    error, port = failure(lambda peer, asked: None, call)
    assert isinstance(error, TimedOut)
    named = f"broker 7 at 127.0.0.1:{port}, the controller,"
    assert re.match(rf"{named} did not answer {api} within [\d.]+ s \(it is busy, or cannot reach its Zoo", str(error))


def test_what_the_controller_has_not_done_in_time_is_told_with_its_name() -> None:
    given: list[int] = []

    def answer(peer: Peer, asked: Asked) -> None:
        message: Any = asked.message
        given.append(message.timeout_ms)
        late = M.CreateTopicsResponse.CreatableTopicResult(name="late", error_code=ErrorCode.REQUEST_TIMED_OUT)
        peer.respond(asked, M.CreateTopicsResponse(topics=[late]))

    error, port = failure(answer, lambda admin: admin.create_topic("late"))
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.REQUEST_TIMED_OUT
    assert f"broker 7 at 127.0.0.1:{port}, the controller, has not done it in time (it is busy" in str(error)
    assert len(given) == 1
    assert 0 < given[0] <= TIME_MS * 9 // 10, "less than the caller's time, so that the answer comes in time"
