"""Records that any client has written, any other client reads unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from kbroker.client import SimpleConsumer
from kbroker.model import TopicPartition
from tests.client_suite.features import HEADERS, ZSTD
from tests.client_suite.java_peer import JavaPeer
from tests.client_suite.other_clients import CODECS, KINDS, Java, OtherClient, Row
from tests.client_suite.suite_broker import SuiteBroker
from tests.client_suite.test_records import read

START = 1_600_000_000_000


def rows_for(partition: int, with_headers: bool) -> list[Row]:
    """Return small and large rows, some of bytes that no codec makes smaller. Each partition has other rows."""
    headers: list[tuple[tuple[str, bytes | None], ...]] = [(), (("a", b"1"), ("a", b"2")), (("ключ", b"\xff\0"),)]
    keys = [b"key-%d" % partition, b"", None, "schlüssel".encode(), bytes(range(256))]
    values = [b"value", b"", b"\0" * 3000, None, b"%d" % partition * 50]
    return [
        Row(
            keys[number % 5],
            values[number // 5 % 5] if keys[number % 5] is not None else b"%d" % number,
            START + partition * 1000 + number,
            headers[number % 3] if with_headers else (),
        )
        for number in range(75)
    ]


class Written(NamedTuple):
    """A topic whose partitions each hold what one client has written with one codec."""

    topic: str
    writers: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Row]]


def client_of(name: str, broker: SuiteBroker, java: JavaPeer) -> OtherClient:
    return Java(broker, java) if name == "java" else KINDS[name](broker)


@pytest.fixture(scope="module")
def written(broker: SuiteBroker, java: JavaPeer) -> Written:
    clients = {name: client_of(name, broker, java) for name in KINDS}
    codecs = CODECS if broker.has(ZSTD) else CODECS[:-1]
    able = {name: client for name, client in clients.items() if client.can_write}
    writers = [(name, codec) for name, client in able.items() for codec in codecs if codec in client.codecs]
    topic = broker.new_topic(len(writers))
    rows = []
    for partition, (name, codec) in enumerate(writers):
        client = clients[name]
        rows.append(rows_for(partition, broker.has(HEADERS) and client.has_headers))
        client.write(topic, partition, codec, rows[partition])
    return Written(topic, writers, rows)


@pytest.mark.parametrize("reader", KINDS)
def test_records_of_every_client_are_read(broker: SuiteBroker, java: JavaPeer, written: Written, reader: str) -> None:
    client = client_of(reader, broker, java)
    partitions = [number for number, (_, codec) in enumerate(written.writers) if codec in client.codecs]
    found = client.read(written.topic, partitions, sum(len(written.rows[number]) for number in partitions))
    for partition in partitions:
        name, codec = written.writers[partition]
        read = [each for each in found if each.partition == partition]
        expected = [row if client.has_headers else row._replace(headers=()) for row in written.rows[partition]]
        assert [each.row for each in read] == expected, f"{name} has written it with {codec}"
        assert [each.offset for each in read] == list(range(len(read)))


def test_reading_begins_in_the_middle_of_what_every_client_has_written(broker: SuiteBroker, written: Written) -> None:
    """Brokers send a compressed batch from its beginning on, whatever offset is asked for."""
    start = 37
    with broker.consumer() as consumer, SimpleConsumer(bootstrap_servers=broker.address) as simple:
        places = {TopicPartition(written.topic, partition): start for partition in range(len(written.rows))}
        consumer.assign(places)
        found = read(consumer, sum(len(rows) - start for rows in written.rows))
        for partition, (name, codec) in enumerate(written.writers):
            expected = [(start + n, row.value) for n, row in enumerate(written.rows[partition][start:])]
            came = [(each.offset, each.value) for each in found if each.partition == partition]
            assert came == expected, f"{name} has written it with {codec}"
            fetched = simple.fetch(written.topic, partition, start)
            assert [(each.offset, each.value) for each in fetched] == expected
            times = consumer.offsets_for_times({(written.topic, partition): written.rows[partition][start].timestamp})
            assert list(times.values()) == [start]
