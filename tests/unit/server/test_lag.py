"""The lag of groups, as a scrape shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.broker_config import load_config
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.server.broker import Broker
from kbroker.server.lag import measure_lag
from tests.kit.clients.group_load import await_coordinator
from tests.kit.clients.wire import WireClient
from tests.kit.logs.directory import NOW, message, write_partition
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.parts.shards import await_loaded


@contextmanager
def running(folder: Path) -> Iterator[tuple[Broker, WireClient]]:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", "offsets.topic.num.partitions=1", "log.retention.ms=-1"]
    broker = Broker(load_config(None, settings, folder, environment={}))
    try:
        broker.start()
        with WireClient("127.0.0.1", broker.endpoints[0].port) as client:
            yield broker, client
    finally:
        broker.stop()


def produce(client: WireClient, topic: str, *batches: bytes) -> None:
    for batch in batches:
        data = M.ProduceRequest.PartitionProduceData(index=0, records=batch)
        asked = M.ProduceRequest(
            acks=1, timeout_ms=1000, topic_data=[M.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
        )
        (answer,) = client.call(ApiKey.PRODUCE, 7, asked).responses[0].partition_responses
        assert answer.error_code == 0


def commit(client: WireClient, group_id: str, topic: str, offset: int) -> None:
    at = M.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [M.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[at])]
    asked = M.OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, topics=topics)
    assert client.call(ApiKey.OFFSET_COMMIT, 7, asked).topics[0].partitions[0].error_code == 0


def lags(broker: Broker, most: int = 100, now_ms: int = 10_000) -> dict[tuple[str, ...], Any]:
    class Clock:
        @staticmethod
        def wall_ms() -> int:
            return now_ms

    groups = broker._coordinators.groups.get()
    await_loaded(groups.shards)
    samples = measure_lag(groups, broker._logs, Clock, most)  # type: ignore[arg-type]
    return {(sample.name.removeprefix("kbroker_group_lag_"), *sample.labels): sample.value for sample in samples}


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[tuple[Broker, WireClient]]:
    """Topic `views` of three batches of two records, with timestamps from 1, 4 and 7 s on."""
    with running(tmp_path) as (broker, client):
        new = M.CreateTopicsRequest.CreatableTopic(name="views", num_partitions=1, replication_factor=1)
        client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[new], timeout_ms=30000))
        produce(client, "views", *(batch_of([b"a", b"b"], at) for at in (1000, 4000, 7000)))
        await_coordinator("127.0.0.1", broker.endpoints[0].port, "g")
        yield broker, client


def test_a_group_is_behind_by_records_and_by_the_age_of_the_oldest_it_has_not_committed(
    topics: tuple[Broker, WireClient],
) -> None:
    broker, client = topics
    for group_id, offset in (("all", 6), ("most", 4), ("some", 3), ("none", 0), ("beyond", 9)):
        commit(client, group_id, "views", offset)
    found = lags(broker)
    assert {key[1]: value for key, value in found.items() if key[0] == "records"} == {
        "all": 0, "most": 2, "some": 3, "none": 6, "beyond": 0
    }  # fmt: skip
    assert {key[1]: value for key, value in found.items() if key[0] == "seconds"} == {
        "all": 0, "most": 3, "some": 6, "none": 9, "beyond": 0
    }  # fmt: skip
    assert found["left_out",] == 0
    assert ("records", "all", "views", "0") in found
    # What was deleted nobody can be behind of.
    log = broker._logs.get(TopicPartition("views", 0))
    assert log is not None
    log.delete_records_before(4)
    found = lags(broker)
    assert (found["records", "none", "views", "0"], found["seconds", "none", "views", "0"]) == (2, 3)


def test_of_more_than_are_told_it_is_told_how_many_are_left_out(topics: tuple[Broker, WireClient]) -> None:
    broker, client = topics
    for group_id in ("c", "a", "b"):
        commit(client, group_id, "views", 1)
    found = lags(broker, most=2)
    assert ([key[1] for key in found if key[0] == "records"], found["left_out",]) == (["a", "b"], 1)
    assert lags(broker, most=0) == {("left_out",): 3}


def test_after_a_restart_lag_is_known_and_no_log_is_opened_for_it(
    topics: tuple[Broker, WireClient], tmp_path: Path
) -> None:
    broker, client = topics
    commit(client, "some", "views", 3)
    broker.stop()
    with running(tmp_path) as (again, _):
        log = again._logs.get(TopicPartition("views", 0))
        found = lags(again)
        assert log is not None and not log.is_open
        assert found == {("records", "some", "views", "0"): 3, ("left_out",): 0}


def test_a_topic_that_is_gone_has_no_lag(topics: tuple[Broker, WireClient]) -> None:
    broker, client = topics
    commit(client, "some", "views", 3)
    client.call(ApiKey.DELETE_TOPICS, 3, M.DeleteTopicsRequest(topic_names=["views"], timeout_ms=30000))
    assert lags(broker) == {("left_out",): 0}


@pytest.mark.parametrize(("magic", "seconds"), [(0, []), (1, [10])])
def test_messages_of_old_formats_have_an_age_if_they_have_a_timestamp(
    tmp_path: Path, magic: int, seconds: list[float]
) -> None:
    """That includes a log's last message, which may be shorter than the header of a batch."""
    at = TopicPartition("t", 0)
    write_partition(tmp_path, at, [(0, [message(0, magic, b"")])])
    home = LogHome(tmp_path, topic_partition=at)
    log = home.reopen(clean=True)
    groups = SimpleNamespace(offsets=SimpleNamespace(committed=lambda most: ([("g", at, 0)], 0)))
    clock = SimpleNamespace(wall_ms=lambda: NOW + 10_000)
    samples = list(measure_lag(groups, {at: log}, clock, 1))  # type: ignore[arg-type]
    assert [sample.value for sample in samples if sample.name == "kbroker_group_lag_seconds"] == seconds
