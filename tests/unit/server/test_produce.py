"""Produce, every version: what is appended, what is refused with which error, and what an answer waits for."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch, read_batches
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.logs.home import batch_of
from tests.kit.parts.processors import ProcessorRig, produce_request
from tests.kit.threads import run_all
from tests.kit.wire.batches import changed

VERSIONS = range(3, 12)
NEWEST = 11
NOW_MS = 1_700_000_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ProcessorRig]:
    with ProcessorRig(tmp_path / "logs", max_inflated_size=1 << 20) as rig:
        yield rig


def produced(
    client: WireClient, topic: str, batch: Any, *, version: int = NEWEST, acks: int = 1, partition_id: int = 0
) -> Any:
    """Return the answer for that partition."""
    request = produce_request(topic, batch, acks=acks, partition_id=partition_id)
    return client.call(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]


# --- what is appended -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_appends_and_says_where(rig: ProcessorRig, version: int) -> None:
    rig.create("orders", 2)
    client = rig.connect()
    for turn in range(3):
        answer = produced(client, "orders", batch_of([b"a", b"b"]), version=version, partition_id=1)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2 * turn, -1)
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert answer.error_message is None
    assert [record.value for record in rig.records("orders", 1)] == [b"a", b"b"] * 3
    assert rig.records("orders", 0) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_many_partitions_in_one_request_each_get_their_answer(rig: ProcessorRig, version: int) -> None:
    for topic in ("one", "two", "three"):
        rig.create(topic, 4)
    message = M.ProduceRequest(acks=1, timeout_ms=1, topic_data=[])
    for topic in ("one", "nowhere", "two", "three"):
        message.topic_data.append(
            M.ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    M.ProduceRequest.PartitionProduceData(index=index, records=batch_of([f"{topic}-{index}".encode()]))
                    for index in (3, 0, 4)
                ],
            )
        )
    response = rig.connect().call(ApiKey.PRODUCE, version, message)
    told = {
        topic.name: [(part.index, part.error_code, part.base_offset) for part in topic.partition_responses]
        for topic in response.responses
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic in ("one", "two", "three"):
        assert told[topic] == [(3, 0, 0), (0, 0, 0), (4, unknown, -1)]
        assert [record.value for record in rig.records(topic, 3)] == [f"{topic}-3".encode()]
    assert told["nowhere"] == [(index, unknown, -1) for index in (3, 0, 4)]


def test_a_request_without_topics_or_without_partitions_is_answered(rig: ProcessorRig) -> None:
    client = rig.connect()
    for version in VERSIONS:
        empty = M.ProduceRequest(acks=1, timeout_ms=1, topic_data=[])
        assert client.call(ApiKey.PRODUCE, version, empty).responses == []
        empty.topic_data = [M.ProduceRequest.TopicProduceData(name="orders", partition_data=[])]
        assert client.call(ApiKey.PRODUCE, version, empty).responses == []


def test_log_append_time_is_told_and_stored(rig: ProcessorRig) -> None:
    rig.create("orders", log_append_time=True)
    before = int(time.time() * 1000)
    answer = produced(rig.connect(), "orders", batch_of([b"a", b"b"], timestamp=1))
    assert before <= answer.log_append_time_ms <= int(time.time() * 1000)
    assert {record.timestamp for record in rig.records("orders")} == {answer.log_append_time_ms}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [10, 3_000, 300_000])
def test_compressed_batches_are_stored_as_they_came(rig: ProcessorRig, codec: int, size: int) -> None:
    rig.create("orders")
    batch = batch_of([bytes(range(256)) * (size // 256 + 1)] * 3, codec=codec)
    assert produced(rig.connect(), "orders", batch).error_code == 0
    log = rig.logs.get(TopicPartition("orders", 0))
    assert log is not None
    assert log.read(0, 1 << 20)[61:] == batch[61:]


@pytest.mark.parametrize("wanted", range(5))
@pytest.mark.parametrize("codec", range(5))
def test_a_topics_own_codec_replaces_the_producers(rig: ProcessorRig, codec: int, wanted: int) -> None:
    rig.create("orders", compression=wanted)
    values = [b"value %d" % number * 50 for number in range(20)]
    answer = produced(rig.connect(), "orders", batch_of(values, codec=codec))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    log = rig.logs.get(TopicPartition("orders", 0))
    assert log is not None
    (batch,) = read_batches(log.read(0, 1 << 20))
    assert batch.info.codec == wanted
    assert [record.value for record in batch.records()] == values
    assert batch.records()[7].timestamp == NOW_MS + 7


@pytest.mark.parametrize(("codec", "least", "most"), [(1, 1, 9), (4, -1000, 19)])
def test_a_topic_may_be_compressed_harder(rig: ProcessorRig, codec: int, least: int, most: int) -> None:
    values = [b"%d, %d; " % (number, number * number) * 20 for number in range(200)]
    sizes = []
    for topic, level in (("fast", least), ("small", most)):
        rig.create(topic, compression=codec, compression_level=level)
        assert produced(rig.connect(), topic, batch_of(values)).error_code == 0
        log = rig.logs.get(TopicPartition(topic, 0))
        assert log is not None
        sizes.append(len(log.read(0, 1 << 20)))
    assert sizes[1] < sizes[0]


def test_idempotent_batches_are_taken_once_and_in_order(rig: ProcessorRig) -> None:
    rig.create("orders")
    client = rig.connect()

    def batch(sequence: int, epoch: int = 0) -> bytes:
        return batch_of([b"%d" % sequence], producer_id=5, producer_epoch=epoch, base_sequence=sequence)

    assert [produced(client, "orders", batch(number)).base_offset for number in range(7)] == list(range(7))
    again = produced(client, "orders", batch(4))
    assert (again.error_code, again.base_offset, again.log_append_time_ms) == (0, 4, NOW_MS)
    ahead = produced(client, "orders", batch(9))
    assert (ahead.error_code, ahead.base_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert produced(client, "orders", batch(0, epoch=1)).base_offset == 7
    fenced = produced(client, "orders", batch(7))
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(rig.records("orders")) == 8


# --- what is refused --------------------------------------------------------------------------------------

GOOD = batch_of([b"a", b"b"])
BEFORE_APPEND = -1  # what log_start_offset says where Kafka does not look at the log
REFUSED = [
    # name, batch, error, log start offset
    ("null records", None, ErrorCode.INVALID_RECORD, -1),
    ("empty records", b"", ErrorCode.INVALID_RECORD, -1),
    ("half a header", GOOD[:40], ErrorCode.INVALID_RECORD, -1),
    ("half a batch", GOOD[:-1], ErrorCode.INVALID_RECORD, -1),
    ("two batches", GOOD + GOOD, ErrorCode.INVALID_RECORD, -1),
    ("length below a header's", changed(GOOD, 8, b"\0\0\0\x0d", crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    ("length of lies", changed(GOOD, 8, b"\x7f\xff\xff\xff", crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    ("unknown magic", changed(GOOD, 16, b"\3", crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    ("magic 1", changed(GOOD, 16, b"\1", crc=False), ErrorCode.INVALID_RECORD, -1),
    ("a wrong checksum", changed(GOOD, 17, b"abcd", crc=False), ErrorCode.CORRUPT_MESSAGE, -1),
    ("a base offset", changed(GOOD, 0, b"\0\0\0\0\0\0\0\x09"), ErrorCode.INVALID_RECORD, 0),
    ("a control batch", changed(GOOD, 21, b"\0\x20"), ErrorCode.INVALID_RECORD, 0),
    ("more records than there are", changed(GOOD, 57, b"\0\0\0\x03"), ErrorCode.INVALID_RECORD, 0),
    ("a record that is cut", changed(GOOD, 61, b"\x7e"), ErrorCode.INVALID_RECORD, 0),
    ("a producer without sequence", changed(GOOD, 43, struct.pack(">qhi", 7, 0, -1)), ErrorCode.INVALID_RECORD, 0),
    ("too many bytes", batch_of([b"x" * 20_000]), ErrorCode.MESSAGE_TOO_LARGE, -1),
    ("bytes that do not inflate", changed(GOOD, 21, b"\0\x01"), ErrorCode.INVALID_RECORD, 0),
    ("a codec that does not exist", changed(GOOD, 21, b"\0\x07"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0),
    ("a bomb", batch_of([bytes(1 << 21)], codec=4), ErrorCode.MESSAGE_TOO_LARGE, 0),
]


@pytest.mark.parametrize(
    ("batch", "error", "log_start_offset"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_bad_batch_is_refused_alone(
    rig: ProcessorRig, batch: bytes | None, error: ErrorCode, log_start_offset: int
) -> None:
    rig.create("orders", 2, max_message_bytes=10_000)
    client = rig.connect()
    message = produce_request("orders", batch)
    message.topic_data[0].partition_data.append(M.ProduceRequest.PartitionProduceData(index=1, records=GOOD))
    bad, good = client.call(ApiKey.PRODUCE, NEWEST, message).responses[0].partition_responses
    assert (bad.error_code, bad.base_offset, bad.log_append_time_ms) == (error, -1, -1)
    assert bad.log_start_offset == log_start_offset
    assert (good.error_code, good.base_offset) == (0, 0)
    assert rig.records("orders", 0) == []
    assert len(rig.records("orders", 1)) == 2
    assert rig.processors[0].counters()[ApiKey.PRODUCE].errors == {error: 1}


def test_zstd_before_version_7_is_refused(rig: ProcessorRig) -> None:
    rig.create("orders")
    client = rig.connect()
    batch = batch_of([b"a"], codec=4)
    errors = [produced(client, "orders", batch, version=version).error_code for version in VERSIONS]
    assert errors == [ErrorCode.UNSUPPORTED_COMPRESSION_TYPE] * 4 + [0] * 5


@pytest.mark.parametrize("acks", [2, -2, 127, -(1 << 15), (1 << 15) - 1])
def test_acks_that_mean_nothing_are_refused(rig: ProcessorRig, acks: int) -> None:
    rig.create("orders")
    answer = produced(rig.connect(), "orders", GOOD, acks=acks)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert rig.records("orders") == []


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_take_nothing_from_clients(rig: ProcessorRig, topic: str) -> None:
    rig.create(topic)
    client = rig.connect()
    assert produced(client, topic, GOOD).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    client.client_id = "__admin_client"
    assert produced(client, topic, GOOD).error_code == 0


def test_records_without_a_key_are_named_one_by_one(rig: ProcessorRig) -> None:
    rig.create("table", compacted=True)
    client = rig.connect()
    for codec in (0, 1):
        batch = encode_batch([(1, b"k", b"v"), (2, None, b"v"), (3, b"k", None), (4, None, b"w")], codec=codec)
        for version in VERSIONS:
            answer = produced(client, "table", batch, version=version)
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert [each.batch_index for each in answer.record_errors] == ([1, 3] if version >= 8 else [])
            assert (answer.error_message is not None) == (version >= 8)
    assert produced(client, "table", encode_batch([(1, b"k", None)])).error_code == 0


@pytest.mark.parametrize("codec", [0, 1])
def test_of_bad_records_without_end_the_first_hundred_are_named(rig: ProcessorRig, codec: int) -> None:
    """A compressed batch of millions of records is small, but an answer that names them all is not."""
    rig.create("table", compacted=True)
    records = [(1, b"k", b"v"), (2, None, b"v")] * 1000
    answer = produced(rig.connect(), "table", encode_batch(records, codec=codec))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == list(range(1, 200, 2))
    assert answer.error_message is not None


def test_timestamps_out_of_bounds_are_refused_with_a_message(rig: ProcessorRig) -> None:
    rig.create("orders", timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)
    client = rig.connect()
    now_ms = int(time.time() * 1000)
    timestamps = [now_ms, 1, now_ms, 1 << 50, -1]
    batch = encode_batch([(timestamp, None, b"v") for timestamp in timestamps])
    for version in VERSIONS:
        answer = produced(client, "orders", batch, version=version)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in answer.record_errors] == ([1, 3] if version >= 8 else [])
        assert (answer.error_message is not None) == (version >= 8)
    assert produced(client, "orders", encode_batch([(now_ms, None, b"v")])).error_code == 0


def test_transactions_are_refused(rig: ProcessorRig) -> None:
    rig.create("orders", 2)
    client = rig.connect()
    batch = changed(batch_of([b"a"], producer_id=5, producer_epoch=0, base_sequence=0), 21, b"\0\x10")
    message = produce_request("orders", batch)
    message.topic_data[0].partition_data.append(M.ProduceRequest.PartitionProduceData(index=1, records=GOOD))
    parts = client.call(ApiKey.PRODUCE, NEWEST, message).responses[0].partition_responses
    assert [part.error_code for part in parts] == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    message.transactional_id = "mine"
    parts = client.call(ApiKey.PRODUCE, NEWEST, message).responses[0].partition_responses
    assert [part.error_code for part in parts] == [ErrorCode.INVALID_TXN_STATE, 0]


# --- acks -------------------------------------------------------------------------------------------------


def test_acks_0_gets_no_answer_and_loses_its_connection_on_an_error(rig: ProcessorRig) -> None:
    rig.create("orders")
    client = rig.connect()
    for _ in range(5):
        client.send(ApiKey.PRODUCE, NEWEST, produce_request("orders", GOOD, acks=0))
    assert produced(client, "orders", GOOD).base_offset == 10
    client.send(ApiKey.PRODUCE, NEWEST, produce_request("nowhere", GOOD, acks=0))
    client.send(ApiKey.PRODUCE, NEWEST, produce_request("orders", GOOD))
    with pytest.raises(ConnectionClosed):
        client.read_frame()


@pytest.mark.parametrize("acks", [1, -1])
def test_an_answer_waits_for_the_flush_that_the_topic_asks_for(rig: ProcessorRig, acks: int) -> None:
    (log,) = rig.create("orders", flush_messages=1)
    client = rig.connect()
    for turn in range(20):
        assert produced(client, "orders", batch_of([b"x"]), acks=acks).base_offset == turn
        assert log.state.flushed_offset > turn


def test_one_flush_serves_many_producers(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders", flush_messages=1)
    clients = [rig.connect() for _ in range(8)]
    directory = log.state.directory

    def load(client: WireClient) -> None:
        for _ in range(50):
            client.send(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"x"])))
        for _ in range(50):
            client.read_frame()

    run_all(*(partial(load, client) for client in clients))
    assert log.log_end_offset == log.state.flushed_offset == 400
    assert directory.flush_count < 400


def test_a_failed_directory_fails_the_answers_that_wait_for_it(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders", flush_messages=1)
    client = rig.connect()
    produced(client, "orders", GOOD)
    log.state.directory.fail("a test")
    answer = produced(client, "orders", GOOD)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_segments_roll_under_producers_and_their_order_holds(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders", segment_bytes=2_000)
    client = rig.connect()
    values = [b"%d" % number * 50 for number in range(200)]
    sent = [client.send(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([value]))) for value in values]
    for number, correlation_id in enumerate(sent):
        answer = client.receive(ApiKey.PRODUCE, 7, correlation_id).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert [record.value for record in rig.records("orders")] == values
    assert len(log.state.segments()) > 5


def test_one_partition_that_rolls_does_not_repeat_the_others_of_its_request(rig: ProcessorRig) -> None:
    """The handler does not append again what was appended before the request was handed over."""
    rig.create("orders", 3, segment_bytes=3_000)
    client = rig.connect()
    for turn in range(60):
        message = produce_request("orders", batch_of([b"%d" % turn]))
        for index in (1, 2):
            batch = batch_of([b"%d" % turn * (100 * index)])
            message.topic_data[0].partition_data.append(
                M.ProduceRequest.PartitionProduceData(index=index, records=batch)
            )
        parts = client.call(ApiKey.PRODUCE, NEWEST, message).responses[0].partition_responses
        assert [(part.error_code, part.base_offset) for part in parts] == [(0, turn)] * 3
    for index in range(3):
        assert len(rig.records("orders", index)) == 60
