"""Consumer connectors against kbroker and a real ZooKeeper: what one of them does."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
from typing import Any

import pytest

from kbroker.client import ConsumerConnector, ConsumerTimeout
from kbroker.client.connector.group_nodes import AlreadyRegistered
from kbroker.client.errors import BrokerError, ClientClosed, ForkedClient, UsageError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.unit.client.connector.conftest import PARTITIONS, Place


def take(stream: Any, count: int) -> set[bytes]:
    return {record.value for record in itertools.islice(stream, count)}


def test_what_was_produced_is_read_and_what_was_read_is_committed(place: Place) -> None:
    values = place.send(100)
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert take(stream, 100) == values
        assert stream.partitions() == [TopicPartition(place.topic, number) for number in range(PARTITIONS)]
    assert sum(place.offsets().values()) == 100
    later = place.send(10)
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert take(stream, 10) == later


def test_nodes_are_as_kafka_writes_them(place: Place) -> None:
    place.send(4)
    with place.connector(consumer_id="me") as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert connector.consumer_id == f"{place.group}_me"
        data, stat = place.tree.get(f"/consumers/{place.group}/ids/{place.group}_me")
        fields = json.loads(data)
        assert abs(int(fields.pop("timestamp")) - time.time() * 1000) < 600_000
        assert fields == {"version": 1, "subscription": {place.topic: 1}, "pattern": "static"}
        assert stat.owner != 0
        assert place.owners() == dict.fromkeys(range(PARTITIONS), f"{place.group}_me-0")
        take(stream, 4)
        connector.commit_offsets()
        assert place.tree.get(f"/consumers/{place.group}/offsets/{place.topic}/0")[0] == b"1"
    assert place.tree.children(f"/consumers/{place.group}/ids") == []
    assert place.owners() == {}


def test_streams_of_a_topic_share_its_partitions(place: Place) -> None:
    with place.connector(consumer_timeout_ms=1) as connector:
        streams = connector.create_message_streams({place.topic: 3})[place.topic]
        shares = [[each.partition_id for each in stream.partitions()] for stream in streams]
        assert shares == [[0, 1], [2], [3]]
        assert [place.owners()[number].rpartition("-")[2] for number in range(PARTITIONS)] == ["0", "0", "1", "2"]


def test_streams_beyond_the_partitions_wait(place: Place) -> None:
    values = place.send(40)
    with place.reading(streams=PARTITIONS + 2) as member:
        place.wait(lambda: len(member.values) == 40)
        assert set(member.values) == values


def test_several_topics_have_streams_of_their_own(place: Place) -> None:
    other = f"{place.topic}-other"
    place.make_topic(other, 2)
    values, others = place.send(20), place.send(10, other)
    with place.connector() as connector:
        streams = connector.create_message_streams({place.topic: 2, other: 1})
        (stream,) = streams[other]
        assert take(stream, 10) == others
        found = set()
        for stream in streams[place.topic]:
            found |= take(stream, 10)
        assert found == values


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_white_list_reads_topics_that_come_later_too(place: Place, strategy: str) -> None:
    first, later, other = f"w-{place.number}-a", f"w-{place.number}-b", f"x-{place.number}"
    place.make_topic(first, 1)
    place.make_topic(other, 1)
    place.send(5, other)
    values = place.send(5, first)
    with place.connector(partition_assignment_strategy=strategy) as connector:
        (stream,) = connector.create_message_streams_by_filter(white_list=f"w-{place.number}-.*")
        assert take(stream, 5) == values
        place.make_topic(later, 2)
        values = place.send(6, later)
        assert take(stream, 6) == values
        assert {each.topic for each in connector.assignment()} == {first, later}


def test_a_black_list_reads_all_the_others(place: Place) -> None:
    with place.connector() as connector:
        connector.create_message_streams_by_filter(black_list=f"{place.topic}|__.*", count=2)
        topics = {each.topic for each in connector.assignment()}
        assert place.topic not in topics and "__consumer_offsets" not in topics
        existing = {each for each in place.tree.children("/brokers/topics") if not each.startswith("__")}
        assert topics == existing - {place.topic}


def test_a_topic_that_is_not_there_yet_is_read_when_it_is(place: Place) -> None:
    name = f"later-{place.number}"
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({name: 1})[name]
        assert connector.assignment() == []
        place.make_topic(name, 3)
        values = place.send(6, name)
        assert take(stream, 6) == values


def test_partitions_that_are_added_are_read(place: Place) -> None:
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        place.admin.create_partitions(place.topic, PARTITIONS + 2)
        place.wait(lambda: len(connector.assignment()) == PARTITIONS + 2)
        values = place.send(60)
        assert take(stream, 60) == values


def test_a_stream_without_records_says_so_and_can_be_read_on(place: Place) -> None:
    with place.connector(consumer_timeout_ms=50) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        for _ in range(2):
            with pytest.raises(ConsumerTimeout, match=r"consumer\.timeout\.ms=50"):
                next(stream)
        values = place.send(4)
        found: set[bytes | None] = set()
        while found != values:
            try:
                found.add(next(stream).value)
            except ConsumerTimeout:
                continue


def test_a_new_group_begins_where_it_is_told(place: Place) -> None:
    place.send(8)
    with place.connector(auto_offset_reset="largest") as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        # Nothing was read, so nothing says that the ends are known; reading on one thread and sending on another does.
        found: set[bytes] = set()
        reader = threading.Thread(target=lambda: found.update(take(stream, 4)), daemon=True)
        reader.start()
        sent: set[bytes] = set()
        while reader.is_alive():
            sent |= place.send(4)
            reader.join(0.05)
        assert found <= sent and len(found) == 4
    place.group += "-none"
    with place.connector(auto_offset_reset="none") as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        with pytest.raises(BrokerError) as caught:
            next(stream)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_offset_that_is_gone_is_reset(place: Place) -> None:
    values = place.send(8)
    for number in range(PARTITIONS):
        place.admin.delete_records({(place.topic, number): 1})
    for path in ("", "/offsets", f"/offsets/{place.topic}"):
        place.tree.create(f"/consumers/{place.group}{path}")
    place.tree.create(f"/consumers/{place.group}/offsets/{place.topic}/0", b"0")
    place.tree.create(f"/consumers/{place.group}/offsets/{place.topic}/1", b"1000")
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert take(stream, 4) < values


def test_without_auto_commit_only_what_is_committed_counts(place: Place) -> None:
    values = place.send(40)
    with place.connector(auto_commit_enable=False) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        first = take(stream, 10)
        connector.commit_offsets()
        take(stream, 20)
    assert sum(place.offsets().values()) == 10
    with place.connector(auto_commit_enable=False) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert take(stream, 30) == values - first


def test_offsets_are_committed_every_interval(place: Place) -> None:
    place.send(40)
    with place.connector(auto_commit_interval_ms=20) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        take(stream, 15)
        place.wait(lambda: sum(place.offsets().values()) == 15)
        take(stream, 10)
        place.wait(lambda: sum(place.offsets().values()) == 25)


@pytest.mark.parametrize("dual", [True, False])
def test_offsets_can_be_with_the_brokers(place: Place, dual: bool) -> None:
    values = place.send(40)
    options: dict[str, Any] = {"offsets_storage": "kafka", "dual_commit_enabled": dual}
    with place.connector(**options) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        first = take(stream, 30)
    committed = {partition: each.offset for partition, each in place.admin.committed(place.group).items()}
    assert sum(committed.values()) == 30
    assert sum(place.offsets().values()) == (30 if dual else 0)
    with place.connector(**options) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert take(stream, 10) == values - first


def test_a_group_that_moves_to_the_brokers_begins_at_the_larger_offset(place: Place) -> None:
    values = place.send(40)
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        first = take(stream, 30)
    with place.connector(offsets_storage="kafka") as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert take(stream, 10) == values - first


def test_a_stream_that_is_not_read_holds_back_itself_only(place: Place) -> None:
    with place.connector(queued_max_message_chunks=1, fetch_message_max_bytes=2_000) as connector:
        idle, read = connector.create_message_streams({place.topic: 2})[place.topic]
        for _ in range(100):
            place.send(40)
        assert len(take(read, 2_000)) == 2_000
        assert len(idle._waiting) <= 2
        assert len(take(idle, 2_000)) == 2_000


def test_what_a_reader_has_in_hand_counts_as_read(place: Place) -> None:
    place.send(4)
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        record = next(stream)
        connector.commit_offsets()
        assert place.offsets()[record.partition] == record.offset + 1
        assert sum(place.offsets().values()) == 1


def test_streams_end_with_the_connector(place: Place) -> None:
    connector = place.connector()
    first, second = connector.create_message_streams({place.topic: 2})[place.topic]
    ended = []
    waiting = threading.Thread(target=lambda: ended.append(list(first)), daemon=True)
    waiting.start()
    connector.shutdown()
    connector.shutdown()
    waiting.join(30)
    assert ended == [[]]
    assert list(second) == []
    for call in (connector.commit_offsets, lambda: connector.create_message_streams({place.topic: 1})):
        with pytest.raises(ClientClosed):
            call()


def test_a_connector_makes_its_streams_once(place: Place) -> None:
    with place.connector() as connector:
        connector.create_message_streams({place.topic: 1})
        with pytest.raises(UsageError, match="once"):
            connector.create_message_streams_by_filter(white_list=".*")


def test_a_consumer_id_that_is_taken_is_refused(place: Place) -> None:
    with place.connector(consumer_id="me") as first:
        first.create_message_streams({place.topic: 1})
        with (
            place.connector(consumer_id="me", zookeeper_session_timeout_ms=1_000) as second,
            pytest.raises(AlreadyRegistered, match="me: there is such a consumer"),
        ):
            second.create_message_streams({place.topic: 1})
        assert len(first.assignment()) == PARTITIONS


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"zookeeper_connect": "x:1"}, ValueError, "group.id is needed"),
        ({"group_id": "g"}, ValueError, "zookeeper.connect is needed"),
        ({"group_id": "a/b", "zookeeper_connect": "x:1"}, ValueError, "group.id='a/b'"),
        ({"offsets_storage": "disk"}, ValueError, "offsets.storage"),
        ({"auto_offset_reset": "middle"}, ValueError, "smallest"),
        ({"consumer_timeout_ms": -2}, ValueError, "consumer.timeout.ms"),
        ({"partition_assignment_strategy": "sticky"}, ValueError, "roundrobin"),
        ({"group_instance_id": "x"}, TypeError, "the consumer connector has no option 'group_instance_id'"),
    ],
)
def test_options_that_are_wrong_are_named(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ConsumerConnector(**options)


def test_names_of_kafka_0_7_are_understood(place: Place) -> None:
    place.send(4)
    names = {
        "zk.connect": place.address,
        "groupid": place.group,
        "autooffset.reset": "smallest",
        "autocommit.enable": "false",
        "zk.sessiontimeout.ms": "6000",
        "fetch.size": "100000",
        "queuedchunks.max": "5",
    }
    with ConsumerConnector(names) as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        assert len(take(stream, 4)) == 4
    assert place.offsets() == {}


@pytest.mark.parametrize(
    "topics", [{}, {"t": 0}, {"t": True}, {"t": "1"}, {"": 1}, {"a/b": 1}, {"t": 1 << 30}], ids=str
)
def test_streams_that_make_no_sense_are_refused(place: Place, topics: dict[str, Any]) -> None:
    with place.connector() as connector, pytest.raises(ValueError):
        connector.create_message_streams(topics)


@pytest.mark.parametrize("filters", [{}, {"white_list": "a", "black_list": "b"}, {"white_list": "("}], ids=str)
def test_filters_that_make_no_sense_are_refused(place: Place, filters: dict[str, Any]) -> None:
    with place.connector() as connector, pytest.raises(ValueError):
        connector.create_message_streams_by_filter(**filters)


def test_after_a_fork_the_child_can_neither_read_nor_disturb(place: Place) -> None:
    values = place.send(8)
    with place.connector() as connector:
        (stream,) = connector.create_message_streams({place.topic: 1})[place.topic]
        first = take(stream, 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                connector.shutdown()
                for record in stream:  # what is in memory is there in the child too
                    assert record.value is not None
            except ForkedClient:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert take(stream, 7) == values - first
        assert len(place.owners()) == PARTITIONS


def test_a_connector_that_nobody_has_any_more_ends_with_a_warning(place: Place, descriptors: Any) -> None:
    values = place.send(PARTITIONS)

    def use() -> None:
        (stream,) = place.connector().create_message_streams({place.topic: 1})[place.topic]
        gc.collect()  # the stream keeps its connector
        assert take(stream, PARTITIONS) == values

    before = what_is_left(descriptors)
    with pytest.warns(ResourceWarning, match=rf"a consumer connector \({place.group}_.*\) was not shut down"):
        use()
        gc.collect()
    place.wait(lambda: place.tree.children(f"/consumers/{place.group}/ids") == [])
    assert place.owners() == place.offsets() == {}
    place.wait(lambda: all(now <= then for now, then in zip(what_is_left(descriptors), before, strict=True)))


def what_is_left(descriptors: Any) -> tuple[int, int]:
    """Return how many descriptors and threads of clients are left."""
    gc.collect()
    ours = [each for each in threading.enumerate() if each.name.startswith(("kbroker-", "zookeeper"))]
    return descriptors(), len(ours)


def test_nothing_is_left_of_connectors_that_were_shut_down(place: Place, descriptors: Any) -> None:
    def once() -> None:
        with place.connector() as connector:
            connector.create_message_streams({place.topic: 2})

    place.send(PARTITIONS)  # the broker, in this process too, has the files open from now on
    once()
    before = what_is_left(descriptors)
    for _ in range(10):
        once()
    place.wait(lambda: all(now <= then for now, then in zip(what_is_left(descriptors), before, strict=True)))
