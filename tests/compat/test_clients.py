"""Every scenario of tests/compat/README.md with every client of clients.py."""

from __future__ import annotations

import re
import time
import urllib.request
from typing import Any
from uuid import uuid4

import pytest

from tests.compat.clients import CLIENTS, CODECS, Client
from tests.compat.conftest import new_broker
from tests.compat.records import checksum
from tests.kit.brokers.process import BrokerProcess, free_port

pytestmark = pytest.mark.timeout(300)
"""The first test of a client installs or compiles it, beside other tests."""


def often(client: Client) -> Any:
    """Return a client's marks: one C and one Java client run with each `make test`, others with `make test-all`."""
    return () if client.name in ("confluent", "java-4.3") else pytest.mark.slow


TELLABLE = [client for client in CLIENTS if client.assignors]
PAIRS = [pytest.param(client, one, marks=often(client)) for client in TELLABLE for one in client.assignors]
STATIC = [pytest.param(client, marks=often(client)) for client in TELLABLE]
COUNT = 100_000
SIZE = 100


# Old clients have a round of their own in `make test`: test_old_clients.py.
EVERY = [
    pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.is_old or one.settings else []) for one in CLIENTS
]


@pytest.fixture(params=EVERY)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


ASK = ("confluent", "java-4.3", "java-3.9")
"""Clients that push metrics to brokers that want some."""


def can(client: Client, scenario: str) -> None:
    if scenario in client.lacks:
        pytest.skip(f"{client.name}: {client.lacks[scenario]}")


def create_topic(broker: BrokerProcess, partitions: int, **config: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"t-{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    return topic


def produce_arguments(broker: BrokerProcess, topic: str, **changes: Any) -> dict[str, Any]:
    defaults = {
        "bootstrap": broker.address,
        "topic": topic,
        "first": 0,
        "count": COUNT,
        "size": SIZE,
        "codec": "none",
        "headers": False,
        "nulls": False,
        "acks": -1,
        "pause_ms": 0,
    }
    return {**defaults, **changes}


def consume_arguments(broker: BrokerProcess, topic: str, count: int) -> dict[str, Any]:
    return {"bootstrap": broker.address, "topic": topic, "count": count, "timeout_s": 60}


@pytest.mark.parametrize(
    "count", [COUNT // 25, pytest.param(COUNT, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_every_record_of_every_codec_is_there_again_after_a_restart(client: Client, count: int) -> None:
    codecs = [codec for codec in CODECS if codec in client.codecs]
    with new_broker() as broker:
        topics = {codec: create_topic(broker, 3) for codec in codecs}
        expected = checksum(0, count, SIZE, False, False)
        asked = [produce_arguments(broker, topic, count=count, codec=codec) for codec, topic in topics.items()]
        written = client.run_all(*(("produce", one) for one in asked))
        assert written == [{"acked": count, "checksum": expected}] * len(codecs), codecs
        broker.restart()
        found = client.run_all(*(("consume", consume_arguments(broker, topic, count)) for topic in topics.values()))
        for codec, read in zip(codecs, found, strict=True):
            assert (read["count"], read["checksum"]) == (count, expected), codec
            assert all(ascending for _, _, ascending in read["partitions"].values())


@pytest.mark.parametrize("count", [COUNT // 4, pytest.param(COUNT, marks=pytest.mark.slow)])
def test_one_topic_takes_many_records(client: Client, broker: BrokerProcess, count: int) -> None:
    topic = create_topic(broker, 4)
    done, read = client.run_all(
        ("produce", produce_arguments(broker, topic, count=count, acks=1)),
        ("consume", consume_arguments(broker, topic, count)),
    )
    assert done == {"acked": count, "checksum": checksum(0, count, SIZE, False, False)}
    assert (read["count"], read["checksum"]) == (count, done["checksum"])


def test_headers_and_null_keys_and_values_come_back(client: Client, broker: BrokerProcess) -> None:
    can(client, "nulls")
    topic = create_topic(broker, 2)
    done, read = client.run_all(
        ("produce", produce_arguments(broker, topic, count=2000, headers=True, nulls=True)),
        ("consume", consume_arguments(broker, topic, 2000)),
    )
    assert done["acked"] == 2000
    assert (read["count"], read["checksum"]) == (2000, done["checksum"])


def form_a_group(client: Client, broker: BrokerProcess, assignor: str | None, static: bool) -> None:
    """Run two members, one after the other and then both; every record is read and its offset committed."""
    count = 20_000
    topic = create_topic(broker, 4)
    group = {
        "bootstrap": broker.address, "topic": topic, "group": f"g-{topic}", "count": count, "timeout_s": 90,
        "assignor": assignor, "static": static,
    }  # fmt: skip
    _, done = client.run_all(("produce", produce_arguments(broker, topic, count=count)), ("group", group))
    assert done["distinct"] == count
    assert min(done["members"]) > 0
    assert done["committed"] in (count, None)


def test_a_group_rebalances_in_the_middle_and_loses_nothing(client: Client, broker: BrokerProcess) -> None:
    can(client, "group")
    form_a_group(client, broker, None, static=False)


@pytest.mark.parametrize(("client", "assignor"), PAIRS, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_group_works_with_every_assignor(client: Client, assignor: str, broker: BrokerProcess) -> None:
    form_a_group(client, broker, assignor, static=False)


@pytest.mark.parametrize("client", STATIC, ids=lambda client: client.name)
def test_a_group_of_static_members_rebalances_when_a_session_ends(client: Client, broker: BrokerProcess) -> None:
    """A static member leaves without saying so: the other one takes over once its session has ended."""
    form_a_group(client, broker, None, static=True)


def test_seek_and_lookup_by_time(client: Client, broker: BrokerProcess) -> None:
    can(client, "seek")
    topic = create_topic(broker, 1)
    client.run("produce", **produce_arguments(broker, topic, count=100))
    time.sleep(0.01)  # the two halves must differ in their timestamps
    middle_ms = time.time_ns() // 1_000_000
    seek = {"bootstrap": broker.address, "topic": topic, "partition": 0, "offset": 42, "timestamp_ms": middle_ms}
    _, done = client.run_all(("produce", produce_arguments(broker, topic, first=100, count=100)), ("seek", seek))
    assert done == {"at_offset": 42, "by_time": None if done["by_time"] is None else 100, "earliest": 0, "latest": 200}
    assert done["by_time"] is not None or client.is_old or client.settings


def test_a_message_at_the_limit_passes_and_one_over_is_refused(client: Client, broker: BrokerProcess) -> None:
    can(client, "limits")
    topic = create_topic(broker, 1, **{"max.message.bytes": "300000"})
    asked = [("limits", {"bootstrap": broker.address, "topic": topic, "size": size}) for size in (299_900, 300_000)]
    under, over = client.run_all(*asked)
    assert under == {"ok": True, "error": None}
    assert not over["ok"]
    assert over["error"]


def test_admin_calls_do_what_they_say(client: Client, broker: BrokerProcess) -> None:
    can(client, "admin")
    done = client.run("admin", bootstrap=broker.address, prefix=f"admin-{uuid4().hex[:8]}")
    expected = {
        "created": True,
        "partitions": 5,
        "retention_before": "3600000",
        "retention_after": "7200000",
        "low_watermark": 5,
        "deleted": True,
    }
    for key, value in expected.items():
        assert done[key] in (value, None), key
    assert done["created"] is True
    assert done["duplicate_error"]


def test_a_producer_goes_on_through_a_restart_of_the_broker(client: Client) -> None:
    can(client, "restart")
    with new_broker() as broker:
        topic = create_topic(broker, 2)
        process = client.start(("produce", produce_arguments(broker, topic, count=20_000, pause_ms=100)))
        deadline = time.monotonic() + 60
        while not any(log.stat().st_size for log in broker.data.glob(f"{topic}-*/*.log")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        broker.restart()
        (done,) = client.finish(process)
        assert done["acked"] > 10_000
        read = client.run("consume", **consume_arguments(broker, topic, done["acked"]))
        assert read["count"] >= done["acked"]


@pytest.mark.parametrize(
    "client", [pytest.param(one, marks=often(one), id=one.name) for one in CLIENTS if one.name in ASK]
)
def test_a_client_that_offers_its_metrics_is_told_once_that_none_are_wanted(client: Client) -> None:
    """KIP-714: the client pushes nothing then, so no connection is closed for a request that is not served."""
    port = free_port()
    with new_broker({"kbroker.http.address": f"127.0.0.1:{port}"}) as broker:
        topic = create_topic(broker, 1)

        def asked() -> int:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                counted = re.search(
                    r'kbroker_requests_total\{api="GetTelemetrySubscriptions"\} (\d+)', answer.read().decode()
                )
            return int(counted[1]) if counted else 0

        before = asked()  # by the admin client that has made the topic
        # It produces slowly, so that it asks before it ends.
        client.run("produce", **produce_arguments(broker, topic, count=1001, pause_ms=200))
        assert asked() == before + 1
        assert "closed" not in broker.output
