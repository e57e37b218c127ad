"""ListOffsets: the answers that Apache Kafka 3.9 gave to the same requests on the same records."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from kbroker.server.handlers import list_offsets
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.models.fetch_machine import produce_request

EPOCH = SmallBroker.leader_epoch
NOTHING = (-1, -1, -1)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, -6: 99}


@pytest.fixture(scope="module")
def broker(broker: SmallBroker) -> SmallBroker:
    # Partition 0 has records at 100, 105, 300, 305, 200 and 205; partition 1 none.
    broker.create_topic("t", 2)
    with WireClient("127.0.0.1", broker.port) as client:
        for timestamp in (100, 300, 200):
            batch = encode_batch([(timestamp, None, b"x"), (timestamp + 5, None, b"y")])
            client.call(ApiKey.PRODUCE, 9, produce_request("t", 0, batch))
    return broker


def ask(client: WireClient, version: int, *asked: dict[str, Any], topic: str = "t", **fields: Any) -> list[Any]:
    """Ask, and return the partitions of the response."""
    parts = [M.ListOffsetsRequest.ListOffsetsPartition(**({"partition_index": 0} | each)) for each in asked]
    request = M.ListOffsetsRequest(
        topics=[M.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=parts)], **({"replica_id": -1} | fields)
    )
    return list(client.call(ApiKey.LIST_OFFSETS, version, request).topics[0].partitions)


def found(
    client: WireClient, version: int, timestamp: int, partition_id: int = 0, **fields: Any
) -> tuple[int, int, int]:
    (part,) = ask(client, version, {"timestamp": timestamp, "partition_index": partition_id}, **fields)
    assert part.error_code == 0
    return part.timestamp, part.offset, part.leader_epoch


def error(client: WireClient, version: int, timestamp: int, topic: str = "t", **asked: Any) -> int:
    (part,) = ask(client, version, {"timestamp": timestamp, **asked}, topic=topic)
    assert (part.timestamp, part.offset, part.leader_epoch, part.old_style_offsets) == (*NOTHING, [])
    return int(part.error_code)


@pytest.mark.parametrize("version", range(1, 10))
def test_the_ends_of_the_log(client: WireClient, version: int) -> None:
    epoch = EPOCH if version >= 4 else -1
    assert found(client, version, LATEST) == (-1, 6, epoch)
    assert found(client, version, EARLIEST) == (-1, 0, epoch)
    assert found(client, version, LATEST, partition_id=1) == (-1, 0, epoch)
    assert found(client, version, EARLIEST, partition_id=1) == (-1, 0, epoch)


def test_a_consumer_is_told_of_no_end_that_it_may_not_read_up_to(broker: SmallBroker, client: WireClient) -> None:
    """With log.flush.visibility=flushed. From such an end a consumer would go on behind what a power cut takes."""
    broker.create_topic("u", 1, flushed_visibility=True)
    log = broker.logs.get(TopicPartition("u", 0))
    assert log is not None
    log.append(encode_batch([(100, None, b"x")]))
    for level in (0, 1):
        (part,) = ask(client, 9, {"timestamp": LATEST}, topic="u", isolation_level=level)
        assert part.offset == 0
    log.flush()
    (part,) = ask(client, 9, {"timestamp": LATEST}, topic="u")
    assert part.offset == 1


@pytest.mark.parametrize("version", range(1, 10))
def test_the_first_record_that_is_not_older(client: WireClient, version: int) -> None:
    expected = {
        0: (100, 0),
        100: (100, 0),
        101: (105, 1),
        105: (105, 1),
        106: (300, 2),
        300: (300, 2),
        301: (305, 3),
        306: (-1, -1),
    }
    for timestamp, (at, offset) in expected.items():
        epoch = EPOCH if version >= 4 and offset >= 0 else -1
        assert found(client, version, timestamp) == (at, offset, epoch)
    assert found(client, version, 0, partition_id=1) == NOTHING


def test_special_timestamps_are_known_from_their_version_on(client: WireClient) -> None:
    expected = {MAX_TIMESTAMP: (305, 3, EPOCH), EARLIEST_LOCAL: (-1, 0, EPOCH), LATEST_TIERED: NOTHING}
    for version in range(1, 10):
        for timestamp, since in SINCE.items():
            if version < since:
                assert error(client, version, timestamp) == ErrorCode.UNSUPPORTED_VERSION
            elif timestamp in expected:
                assert found(client, version, timestamp) == expected[timestamp]
    assert found(client, 7, MAX_TIMESTAMP, partition_id=1) == NOTHING
    assert error(client, 0, -3, max_num_offsets=1) == ErrorCode.UNSUPPORTED_VERSION


def test_version_0_lists_offsets_newest_first(client: WireClient) -> None:
    soon = int(time.time() * 1000) + 60_000
    for timestamp, count, offsets in [
        (LATEST, 10, [6, 0]),
        (LATEST, 1, [6]),
        (LATEST, 0, []),
        (EARLIEST, 10, [0]),
        (soon, 10, [6, 0]),
        (300, 10, []),
    ]:
        (part,) = ask(client, 0, {"timestamp": timestamp, "max_num_offsets": count})
        assert (part.error_code, part.old_style_offsets) == (0, offsets)
    (part,) = ask(client, 0, {"partition_index": 1, "timestamp": LATEST, "max_num_offsets": 10})
    assert part.old_style_offsets == [0]
    assert error(client, 0, LATEST, max_num_offsets=-1) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert error(client, 0, LATEST, partition_index=7, max_num_offsets=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_version_0_lists_a_last_segment_whose_records_are_all_deleted(broker: SmallBroker, client: WireClient) -> None:
    name = broker.new_name()
    broker.create_topic(name, 1)
    client.call(ApiKey.PRODUCE, 9, produce_request(name, 0, encode_batch([(10, None, b"x")])))
    broker.delete_records(name, 0, 1)
    (part,) = ask(client, 0, {"timestamp": LATEST, "max_num_offsets": 3}, topic=name)
    assert part.old_style_offsets == [1, 1]


@pytest.mark.parametrize("version", range(1, 10))
def test_partitions_that_are_not_there(client: WireClient, version: int) -> None:
    assert error(client, version, LATEST, partition_index=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error(client, version, LATEST, topic="nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_asked_twice_is_refused(client: WireClient) -> None:
    for version in range(10):
        twice = [{"timestamp": LATEST, **({} if version else {"max_num_offsets": 5})}] * 2
        assert [part.error_code for part in ask(client, version, *twice)] == [ErrorCode.INVALID_REQUEST] * 2


def test_version_0_looks_at_no_more_files_than_it_has_to(
    broker: SmallBroker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's time of change is its segment's: the files that are too new are looked at, and the first other one."""
    name = broker.new_name()
    broker.create_topic(name, 1, segment_bytes=400)
    for _ in range(20):
        client.call(ApiKey.PRODUCE, 9, produce_request(name, 0, encode_batch([(10, None, bytes(150))])))
    looked_at: list[str] = []

    def changed(path: str) -> int:
        looked_at.append(path)
        return 1000 if path.endswith("19.log") else 10

    monkeypatch.setattr(list_offsets, "changed_ms", changed)
    for timestamp, files, first in [(LATEST, 0, 20), (EARLIEST, 0, 0), (1000, 1, 19), (999, 2, 18), (9, 20, None)]:
        looked_at.clear()
        (part,) = ask(client, 0, {"timestamp": timestamp, "max_num_offsets": 2}, topic=name)
        assert part.old_style_offsets[:1] == ([] if first is None else [first])
        assert len(looked_at) == files


@pytest.mark.parametrize("version", range(4, 10))
def test_leader_epochs_are_compared(client: WireClient, version: int) -> None:
    assert error(client, version, LATEST, current_leader_epoch=EPOCH + 5) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(client, version, LATEST, current_leader_epoch=EPOCH - 1) == ErrorCode.FENCED_LEADER_EPOCH
    assert error(client, version, LATEST, current_leader_epoch=-2) == ErrorCode.FENCED_LEADER_EPOCH
    unknown = {"partition_index": 9, "current_leader_epoch": 5}
    assert error(client, version, -9, **unknown) == ErrorCode.UNSUPPORTED_VERSION


def test_isolation_and_replica_id(client: WireClient) -> None:
    assert found(client, 6, LATEST, isolation_level=1) == (-1, 6, EPOCH)
    (part,) = ask(client, 6, {"timestamp": LATEST}, isolation_level=3)
    assert part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    for replica_id in (5, -2):
        assert found(client, 6, LATEST, replica_id=replica_id, isolation_level=3) == (-1, 6, EPOCH)


def test_after_records_were_deleted(broker: SmallBroker, client: WireClient) -> None:
    name = broker.new_name()
    broker.create_topic(name, 1)
    for timestamp in (10, 20):
        client.call(ApiKey.PRODUCE, 9, produce_request(name, 0, encode_batch([(timestamp, None, b"x")])))
    broker.delete_records(name, 0, 1)
    assert found(client, 9, EARLIEST, topic=name) == (-1, 1, EPOCH)
    assert found(client, 9, 0, topic=name) == (20, 1, EPOCH)


def test_a_closed_log_is_asked_all_the_same(broker: SmallBroker, client: WireClient) -> None:
    for version, timestamp, expected in [(9, LATEST, (-1, 6, EPOCH)), (9, 101, (105, 1, EPOCH))]:
        broker.close_log("t", 0)
        assert found(client, version, timestamp) == expected
    broker.close_log("t", 0)
    assert ask(client, 0, {"timestamp": LATEST, "max_num_offsets": 3})[0].old_style_offsets == [6, 0]
