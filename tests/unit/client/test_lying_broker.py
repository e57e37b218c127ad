"""What clients make of answers that parse and cannot be true. What a fuzzer finds of the kind gets a case here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.client import AdminClient, Consumer, Producer
from kbroker.client.errors import BrokerError, ConnectionFailed, TimedOut
from kbroker.model import TopicPartition
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import encode_response
from tests.fuzz.honest_broker import END, HonestBroker
from tests.kit.brokers.scripted import Peer, ScriptedBroker

SECONDS = 20.0
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]


@contextmanager
def broker_that(**lies: Callable[[Any], object]) -> Iterator[dict[str, Any]]:
    """The options that lead to a broker. A lie changes the answers of the API of its name."""

    def serve(peer: Peer) -> None:
        while True:
            asked = peer.request()
            answer = honest.answer(asked)
            api_key = ApiKey(asked.api_key)
            lies.get(api_key.name.lower(), lambda _: None)(answer)
            peer.send(encode_response(api_key, asked.version, asked.correlation_id, answer))

    with ScriptedBroker(serve) as broker:
        honest = HonestBroker(broker.port, 0)
        yield {"bootstrap_servers": f"127.0.0.1:{broker.port}", **QUICK}


@contextmanager
def admin_of(**lies: Callable[[Any], object]) -> Iterator[AdminClient]:
    with broker_that(**lies) as options, AdminClient(**options, default_api_timeout_ms=300) as admin:
        yield admin


def set_all(name: str, /, **values: Any) -> Callable[[Any], None]:
    """Set values in each of the rows `name`, which may be rows of rows (`topics.partitions`)."""

    def lie(answer: Any) -> None:
        rows = [answer]
        for step in name.split("."):
            rows = [row for each in rows for row in getattr(each, step)]
        for row in rows:
            for field, value in values.items():
                setattr(row, field, value)

    return lie


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"port": -1}, "there is no such port"),
        ({"port": 0}, "there is no such port"),
        ({"port": 65_536}, "there is no such port"),
        ({"host": "a\0b"}, "cannot connect"),
        ({"host": "ä" * 70}, "cannot connect"),
    ],
)
def test_a_broker_where_nothing_can_be_is_not_reached(where: dict[str, Any], says: str) -> None:
    with (
        admin_of(metadata=set_all("brokers", **where), find_coordinator=set_all("coordinators", **where)) as admin,
        pytest.raises((ConnectionFailed, TimedOut), match=says),
    ):
        admin.committed("g")


SILENT: list[tuple[str, Callable[[Any], object], Callable[[AdminClient], object]]] = [
    ("create_topics", set_all("topics", name="other"), lambda admin: admin.create_topic("t", partitions=2)),
    (
        "incremental_alter_configs",
        set_all("responses", resource_name="other"),
        lambda admin: admin.alter_topic_config("t", {"a": "b"}),
    ),
    (
        "incremental_alter_configs",
        lambda answer: answer.responses.clear(),
        lambda admin: admin.alter_topic_config("t", {"a": "b"}),
    ),
    ("offset_fetch", lambda answer: answer.groups.clear(), lambda admin: admin.committed("g")),
]


@pytest.mark.parametrize(("api", "lie", "call"), SILENT)
def test_an_answer_about_something_else_is_none(
    api: str, lie: Callable[[Any], object], call: Callable[[AdminClient], object]
) -> None:
    with admin_of(**{api: lie}) as admin, pytest.raises(BrokerError, match="said nothing of"):
        call(admin)


def test_a_partition_whose_number_is_too_large_takes_no_memory() -> None:
    def lie(answer: Any) -> None:
        for topic in answer.topics:
            topic.partitions[1].partition_index = 2**31 - 1

    with broker_that(metadata=lie) as options, Producer(**options) as producer:
        assert producer.send("t", b"v", partition=0).result(SECONDS).partition == 0


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
def test_a_log_that_begins_before_0_is_not_read_until_it_does_not(offset: int) -> None:
    lies = 2

    def lie(answer: Any) -> None:
        nonlocal lies
        if lies:
            lies -= 1
            set_all("topics.partitions", offset=offset)(answer)

    with broker_that(list_offsets=lie) as options, Consumer(auto_offset_reset="earliest", **options) as consumer:
        consumer.assign(PARTITIONS)
        found: list[Any] = []
        while len(found) < 2 * END:
            found += list(consumer.poll(SECONDS))
        assert sorted((each.partition, each.offset) for each in found) == [(p, n) for p in range(2) for n in range(END)]
    assert not lies
