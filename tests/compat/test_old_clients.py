"""Clients before Kafka 0.11 and clients of today read each other's records, with every codec."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.clients import OLD, Client, named
from tests.compat.records import checksum
from tests.compat.test_clients import can, create_topic, produce_arguments
from tests.kit.brokers.process import BrokerProcess

TODAYS = [
    pytest.param(named("confluent"), id="confluent"),
    *(pytest.param(named(name), id=name, marks=pytest.mark.slow) for name in ("aiokafka", "java-4.3", "franz-go")),
]
COUNT = 200
SIZE = 100


# `make test` runs one client of each library.
OFTEN = (
    "pykafka-for-0.9.0", "kafka-node", "no-kafka", "kafka-python-1.4-for-0.9", "kafka-python-2.0-for-0.10",
    "confluent-for-0.9.0", "java-0.9-console", "scala-0.9-console",
)  # fmt: skip
MARKED = [pytest.param(one, id=one.name, marks=() if one.name in OFTEN else pytest.mark.slow) for one in OLD]


@pytest.fixture(params=MARKED)
def old(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


def nulls(*clients: Client) -> bool:
    return all("nulls" not in client.lacks for client in clients)


def written(
    broker: BrokerProcess, writer: Client, codecs: tuple[str, ...], config: dict[str, str] | None = None, **changes: Any
) -> tuple[str, int]:
    """Write a topic with records of every codec at the same time; return it and the number of records."""
    topic = create_topic(broker, 2, **(config or {}))
    arguments = [
        produce_arguments(broker, topic, first=at * COUNT, count=COUNT, size=SIZE, codec=codec, **changes)
        for at, codec in enumerate(codecs)
    ]
    for process in [writer.start(("produce", one)) for one in arguments]:
        assert writer.finish(process)[0]["acked"] == COUNT
    return topic, COUNT * len(codecs)


@pytest.mark.parametrize("new", TODAYS)
def test_what_an_old_client_writes_is_read_by_todays(old: Client, new: Client, broker: BrokerProcess) -> None:
    with_nulls = nulls(old, new)
    topic, count = written(broker, old, old.codecs, nulls=with_nulls)
    read = new.run("consume", bootstrap=broker.address, topic=topic, count=count, timeout_s=30)
    assert (read["count"], read["checksum"]) == (count, checksum(0, count, SIZE, with_nulls, False))


@pytest.mark.parametrize("new", TODAYS)
def test_what_todays_client_writes_is_read_by_an_old_one_without_headers(
    old: Client, new: Client, broker: BrokerProcess
) -> None:
    with_nulls = nulls(old, new)
    topic, count = written(broker, new, old.codecs, nulls=with_nulls, headers=True)
    read = old.run("consume", bootstrap=broker.address, topic=topic, count=count, timeout_s=30)
    assert (read["count"], read["checksum"]) == (count, checksum(0, count, SIZE, with_nulls, False))


@pytest.mark.slow
@pytest.mark.parametrize("reader", OLD, ids=lambda client: client.name)
def test_old_clients_read_each_others_records(old: Client, reader: Client, broker: BrokerProcess) -> None:
    codecs = tuple(codec for codec in old.codecs if codec in reader.codecs)
    with_nulls = nulls(old, reader)
    topic, count = written(broker, old, codecs, nulls=with_nulls)
    read = reader.run("consume", bootstrap=broker.address, topic=topic, count=count, timeout_s=30)
    assert (read["count"], read["checksum"]) == (count, checksum(0, count, SIZE, with_nulls, False))


@pytest.mark.slow
def test_a_topic_with_another_codec_takes_what_old_clients_send(old: Client, broker: BrokerProcess) -> None:
    """The broker converts what it is sent, and then compresses it."""
    can(old, "nulls")
    for config in ("gzip", "snappy", "lz4", "uncompressed"):
        topic, count = written(broker, old, old.codecs, {"compression.type": config}, nulls=True)
        for reader in (old, named("confluent")):
            if config in (*reader.codecs, "uncompressed"):
                read = reader.run("consume", bootstrap=broker.address, topic=topic, count=count, timeout_s=30)
                assert (read["count"], read["checksum"]) == (count, checksum(0, count, SIZE, True, False)), config
