"""DeleteRecords: the answers that Apache Kafka 3.9 gave to the same requests."""

from __future__ import annotations

import errno
from collections.abc import Collection

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import GROUP_OFFSETS_TOPIC
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from kbroker.storage.log import Log
from kbroker.storage.open_directory import OpenDirectory
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.models.fetch_machine import fetch_request, partition_request, produce_request


@pytest.fixture
def topic(broker: SmallBroker, client: WireClient) -> str:
    """A topic with six records in three batches, and an empty partition."""
    name = broker.new_name()
    broker.create_topic(name, 2)
    for _ in range(3):
        client.call(ApiKey.PRODUCE, 9, produce_request(name, 0, encode_batch([(1, b"k", b"v")] * 2)))
    return name


def delete(client: WireClient, version: int, topic: str, partition_id: int, offset: int) -> tuple[int, int]:
    """Delete records; return (error code, low watermark)."""
    part = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition_id, offset=offset)
    asked = M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[part])
    response = client.call(ApiKey.DELETE_RECORDS, version, M.DeleteRecordsRequest(topics=[asked], timeout_ms=1000))
    (answered,) = response.topics
    (answer,) = answered.partitions
    assert (answered.name, answer.partition_index) == (topic, partition_id)
    return answer.error_code, answer.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_the_log_starts_where_it_was_told_to(client: WireClient, topic: str, version: int) -> None:
    assert delete(client, version, topic, 0, 3) == (0, 3)
    assert delete(client, version, topic, 0, 1) == (0, 3)
    for offset, error in [(2, ErrorCode.OFFSET_OUT_OF_RANGE), (3, ErrorCode.NONE)]:
        request = fetch_request(12, [partition_request(topic, 0, offset)])
        (part,) = client.call(ApiKey.FETCH, 12, request).responses[0].partitions
        assert (part.error_code, part.log_start_offset) == (error, -1 if error else 3)
    assert delete(client, version, topic, 0, -1) == (0, 6)
    assert delete(client, version, topic, 1, 0) == (0, 0)


def test_a_request_is_one_checkpoint_whatever_it_names(
    client: WireClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a partition that is named several times, the last offset counts."""
    written: list[str] = []
    write = OpenDirectory.write_start_offsets

    def counted(home: OpenDirectory, moved: Collection[Log]) -> None:
        written.append(home.path)
        write(home, moved)

    monkeypatch.setattr(OpenDirectory, "write_start_offsets", counted)
    client.call(ApiKey.PRODUCE, 9, produce_request(topic, 1, encode_batch([(1, None, b"v")] * 3)))
    P, T = M.DeleteRecordsRequest.DeleteRecordsPartition, M.DeleteRecordsRequest.DeleteRecordsTopic
    parts = [P(partition_index=at, offset=offset) for at, offset in ((0, 1), (0, 2), (0, 5), (0, 4), (1, 2), (9, 0))]
    asked = M.DeleteRecordsRequest(topics=[T(name=topic, partitions=parts)] * 2, timeout_ms=1000)
    (answered,) = client.call(ApiKey.DELETE_RECORDS, 2, asked).topics
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(part.low_watermark, part.error_code) for part in answered.partitions] == [(4, 0), (2, 0), (-1, unknown)]
    assert len(written) == 1


def test_a_checkpoint_that_cannot_be_written_is_told_to_all_that_needed_it(
    client: WireClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(home: OpenDirectory, moved: Collection[Log]) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    client.call(ApiKey.PRODUCE, 9, produce_request(topic, 1, encode_batch([(1, None, b"v")] * 3)))
    P, T = M.DeleteRecordsRequest.DeleteRecordsPartition, M.DeleteRecordsRequest.DeleteRecordsTopic
    parts = [P(partition_index=at, offset=1) for at in (0, 1)]
    asked = M.DeleteRecordsRequest(topics=[T(name=topic, partitions=parts)], timeout_ms=1000)
    with monkeypatch.context() as disk:
        disk.setattr(OpenDirectory, "write_start_offsets", full)
        (answered,) = client.call(ApiKey.DELETE_RECORDS, 2, asked).topics
    assert {part.error_code for part in answered.partitions} == {ErrorCode.KAFKA_STORAGE_ERROR}
    (answered,) = client.call(ApiKey.DELETE_RECORDS, 2, asked).topics
    assert [(part.low_watermark, part.error_code) for part in answered.partitions] == [(1, 0), (1, 0)]


@pytest.mark.parametrize("version", range(3))
def test_what_cannot_be_deleted(broker: SmallBroker, client: WireClient, topic: str, version: int) -> None:
    for partition_id, offset in [(0, 7), (0, -2), (1, 1)]:
        assert delete(client, version, topic, partition_id, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(client, version, topic, 9, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(client, version, "nobody", 0, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_compacted_and_internal_topics_keep_their_records(broker: SmallBroker, client: WireClient) -> None:
    broker.create_topic("compacted", 1, compacted=True, deleted_by_retention=False)
    broker.create_topic("both", 1, compacted=True)
    broker.create_topic(GROUP_OFFSETS_TOPIC, 1, compacted=True, deleted_by_retention=False)
    assert delete(client, 2, "compacted", 0, 0) == (ErrorCode.POLICY_VIOLATION, -1)
    assert delete(client, 2, "both", 0, 0) == (0, 0)
    assert delete(client, 2, GROUP_OFFSETS_TOPIC, 0, 0) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
